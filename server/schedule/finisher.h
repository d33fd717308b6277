// Ends the requests of passes beside the engine: the device computes on while answers are written, sent and logged.
#ifndef EDGEWISE_SERVER_SCHEDULE_FINISHER_H_
#define EDGEWISE_SERVER_SCHEDULE_FINISHER_H_

#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/request/request.h"

namespace edgewise::server {

// Used by one thread at a time.
class Finisher {
 public:
  // That wait for the thread. Beyond it the caller ends its own, so that no answer waits long.
  static constexpr size_t kMostWaiting = 32;

  Finisher() = default;
  ~Finisher() { Stop(); }
  Finisher(const Finisher&) = delete;
  Finisher& operator=(const Finisher&) = delete;

  // From now on a thread ends requests.
  void Start();
  // Waits until all have ended. From now on End ends them before it returns.
  void Stop();
  // While true, End ends them before it returns: for a caller that has nothing to do beside.
  void SetInline(bool is_inline) { inline_ = is_inline; }

  // Calls Request::done once: soon, on the thread, or before it returns. The caller may keep the request, whose inputs
  // a pass refers to, but reads nothing of it that `done` changes.
  void End(std::shared_ptr<Request> request, const absl::Status& status);

 private:
  struct Ended {
    std::shared_ptr<Request> request;
    absl::Status status;
  };
  void Run();

  bool inline_ = false;
  std::thread thread_;
  absl::Mutex mutex_;
  std::vector<Ended> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_SCHEDULE_FINISHER_H_
