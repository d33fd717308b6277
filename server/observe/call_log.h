// The end of every call: its counters and its line in the log. Nothing that a client wrote is in that line but the id
// of the request, the name of a model that the server has, and the path of a field of our own messages.
#ifndef EDGEWISE_SERVER_OBSERVE_CALL_LOG_H_
#define EDGEWISE_SERVER_OBSERVE_CALL_LOG_H_

#include <atomic>
#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/observe/log.h"
#include "server/observe/metrics.h"
#include "server/request/call.h"

namespace edgewise::server {

// Any thread.
class CallLog {
 public:
  // `metrics` must outlive it. `clock`: as that of Call::arrival.
  CallLog(Metrics& metrics, std::function<Time()> clock) : metrics_(metrics), clock_(std::move(clock)) {}

  // The call ended with this status and, over HTTP, this code. Once for each call, before its answer is sent. Refused
  // calls are logged at most ten times a second for each status code.
  void End(Call& call, const absl::Status& status, int http_code = 0);
  // Logs how many refusals were held back in seconds that are over by `now`, and not told of yet.
  void TellHeldBack(Time now);
  Time now() const { return clock_(); }

 private:
  void LogAnswered(Call& call, int http_code, double seconds);
  void LogRefused(Call& call, const absl::Status& status, int http_code, double seconds, Time now);

  Metrics& metrics_;
  const std::function<Time()> clock_;
  std::atomic<bool> held_back_ = false;
  absl::Mutex mutex_;
  LogLimiter limiter_ ABSL_GUARDED_BY(mutex_);
};

// The path of the field that `status` names, for the log: "inputs[0].sequence.text". "unknown field" if a name in it is
// that of no field of our messages and of no header; empty if the status names none.
std::string LoggedField(const absl::Status& status);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_OBSERVE_CALL_LOG_H_
