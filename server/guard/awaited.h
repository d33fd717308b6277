// The calls whose message is on its way. Each takes room, so none may wait for ever.
#ifndef EDGEWISE_SERVER_GUARD_AWAITED_H_
#define EDGEWISE_SERVER_GUARD_AWAITED_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/base/memory.h"
#include "server/request/request.h"

namespace edgewise::server {

class AwaitedCall {
 public:
  // Ends the call with the status. On the thread of a method of AwaitedCalls, under its lock.
  virtual void GiveUp(const absl::Status& status) = 0;

 protected:
  ~AwaitedCall() = default;

 private:
  friend class AwaitedCalls;
  std::list<AwaitedCall*>::iterator place_;
  bool awaited_ = false;
  const MemoryAccount* account_ = nullptr;
  Time since_, until_;
};

// Every method may be called from any thread.
class AwaitedCalls {
 public:
  explicit AwaitedCalls(std::function<Time()> clock) : clock_(std::move(clock)) {}

  // The call awaits a message, for `patience` at most. UNAVAILABLE: the server drains. The call must be removed before
  // it and `account` are destroyed. `account`: of the memory that the call holds; null for those of health, which are
  // small, and nobody's request.
  absl::Status Add(AwaitedCall& call, Clock::duration patience, const MemoryAccount* account);
  // The message has come, or will not. False: GiveUp was called.
  bool Remove(AwaitedCall& call);

  // Gives up those whose time is over: DEADLINE_EXCEEDED.
  void EndExpired();
  // Gives up those that have waited for so long. Returns how many.
  size_t EndWaiting(Clock::duration at_least, const absl::Status& status);
  // Ends the calls that have waited for this long, as long as their principal holds more than this many bytes.
  size_t EndGreedy(Clock::duration at_least, uint64_t bytes, const absl::Status& status);
  // Gives up all, and refuses more: UNAVAILABLE.
  void Close();
  // Those of requests.
  size_t of_requests() const;

 private:
  void Erase(AwaitedCall& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  template <typename Condition>
  size_t End(const absl::Status& status, Condition condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<Time()> clock_;
  mutable absl::Mutex mutex_;
  std::list<AwaitedCall*> calls_ ABSL_GUARDED_BY(mutex_);
  size_t of_requests_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_GUARD_AWAITED_H_
