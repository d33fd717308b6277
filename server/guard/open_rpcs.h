// The RPCs whose status is not sent yet. A drain waits for them.
#ifndef EDGEWISE_SERVER_GUARD_OPEN_RPCS_H_
#define EDGEWISE_SERVER_GUARD_OPEN_RPCS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace edgewise::server {

// A call that goes on by itself until a drain ends it.
class Drainable {
 public:
  // Stops reading; ends once all is answered.
  virtual void Drain() = 0;

 protected:
  ~Drainable() = default;
};

// Any thread.
class OpenRpcs {
 public:
  // Counts a Predict or Generate call until the result is destroyed, which must be before this.
  std::shared_ptr<void> HoldCall() {
    calls_.fetch_add(1);
    return {nullptr, [this](std::nullptr_t) { calls_.fetch_sub(1); }};
  }
  int64_t calls() const { return calls_.load(); }

  void AddStream(Drainable* stream);
  void RemoveStream(Drainable* stream);
  // Ends each stream once its requests are answered. After RequestHandler::Drain().
  void DrainStreams();
  int64_t streams() const;

  // For a call of `peer` that ends during a drain: `finish` sends its status once the peer has all that was written
  // before. gRPC closes a connection with its last call then, and what the kernel had not sent yet would be lost.
  void FinishAfterWrites(std::string peer, std::function<void()> finish);
  // Finishes the calls of the peers that have all.
  void FinishWritten(const std::function<bool(const std::string& peer)>& has_all);
  // Finishes all of them, and others at once from now on.
  void FinishAll();

 private:
  struct Ending {
    std::string peer;
    std::function<void()> finish;
  };

  std::atomic<int64_t> calls_ = 0;
  mutable absl::Mutex mutex_;
  std::set<Drainable*> streams_ ABSL_GUARDED_BY(mutex_);

  absl::Mutex endings_mutex_;  // a stream that drains ends under the lock above
  std::vector<Ending> endings_ ABSL_GUARDED_BY(endings_mutex_);
  bool waits_ ABSL_GUARDED_BY(endings_mutex_) = true;  // for writes
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_GUARD_OPEN_RPCS_H_
