#include "server/schedule/queue.h"

#include "absl/synchronization/notification.h"
#include "server/status_details.h"

namespace edgewise::server {
namespace {

constexpr absl::Duration kAWhile = absl::Milliseconds(20);

void EndAll(const std::vector<EndedRequest>& ended, Time now) {
  for (const auto& [request, reason] : ended) {
    request->queue_seconds = Seconds(now - request->queued);
    request->done(reason);
  }
}

}  // namespace

absl::Status RequestQueue::Push(RequestPtr& request) {
  const Time now = clock_();
  std::vector<EndedRequest> ended;
  absl::Status status;
  {
    const absl::MutexLock lock(&mutex_);
    if (closed_ || cancelled()) return ShuttingDown();
    status = scheduler_.Add(request, now, ended);
  }
  EndAll(ended, now);
  return status;
}

absl::Status RequestQueue::Check(const Request& request) {
  const Time now = clock_();
  std::vector<EndedRequest> ended;
  absl::Status status;
  {
    const absl::MutexLock lock(&mutex_);
    status = scheduler_.Check(request, now, ended);
  }
  EndAll(ended, now);
  return status;
}

absl::Status RequestQueue::RunOnEngine(const std::function<absl::Status()>& work) {
  absl::Status status;
  absl::Notification done;
  {
    const absl::MutexLock lock(&mutex_);
    if (closed_) return ShuttingDown();
    jobs_.push_back([&] {
      status = work();
      done.Notify();
    });
  }
  done.WaitForNotification();
  return status;
}

Work RequestQueue::Next(Wait wait, const Running& running) {
  cache_left_.store(running.room.cache_bytes, std::memory_order_relaxed);
  Work work;
  std::vector<EndedRequest> ended;
  {
    const auto due = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      if (wait == Wait::kForWork ? closed_ : woken_ || cancelled()) return true;
      return !jobs_.empty() || scheduler_.HasPredict() || scheduler_.HasGeneration(running.room);
    };
    const absl::MutexLock lock(&mutex_);
    scheduler_.SetRunning(running.passes);  // before the wait: requests that come meanwhile are compared with it
    if (wait == Wait::kForWork) mutex_.Await(absl::Condition(&due));
    if (wait == Wait::kAWhile) mutex_.AwaitWithTimeout(absl::Condition(&due), kAWhile);
    woken_ = false;
    const Time now = clock_();
    ended = scheduler_.TakeEnded(now);
    if (!jobs_.empty()) {
      work.job = std::move(jobs_.front());
      jobs_.pop_front();
    } else {
      work.generation = scheduler_.NextGeneration(running.room);
      work.turn = scheduler_.Next(running.generations, now);
      if (work.turn.kind == Turn::kStart) work.batch = scheduler_.TakeBatch(work.turn.level, now);
    }
    work.closed = closed_ && scheduler_.size() == 0;
  }
  EndAll(ended, clock_());
  return work;
}

void RequestQueue::Charge(const Turn& turn, double seconds) {
  const absl::MutexLock lock(&mutex_);
  scheduler_.Charge(turn, seconds);
}

void RequestQueue::Wake() {
  const absl::MutexLock lock(&mutex_);
  woken_ = true;
}

void RequestQueue::Close() {
  const absl::MutexLock lock(&mutex_);
  closed_ = true;
}

void RequestQueue::CancelAll() {
  std::vector<EndedRequest> ended;
  {
    const absl::MutexLock lock(&mutex_);
    cancelled_.store(true, std::memory_order_relaxed);
    for (RequestPtr& request : scheduler_.TakeAll()) ended.push_back({std::move(request), ShuttingDown()});
  }
  EndAll(ended, clock_());
}

size_t RequestQueue::size() const {
  const absl::MutexLock lock(&mutex_);
  return scheduler_.size();
}

}  // namespace edgewise::server
