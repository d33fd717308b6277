#include "server/schedule/queue.h"

#include "absl/synchronization/notification.h"
#include "server/status_details.h"

namespace edgewise::server {
namespace {

constexpr absl::Duration kAWhile = absl::Milliseconds(20);
constexpr size_t kMostBackground = 64;  // that wait

void EndAll(const std::vector<EndedRequest>& ended, Time now) {
  for (const auto& [request, reason] : ended) {
    request->queue_seconds = Seconds(now - request->queued);
    request->done(reason);
  }
}

}  // namespace

absl::Status RequestQueue::Push(RequestPtr& request, bool* lent) {
  const double seconds = request->predicted_seconds;
  const bool brief = lent && !request->generation && seconds > 0.0 && seconds <= kLoanSeconds;
  const Time now = clock_();
  std::vector<EndedRequest> ended;
  absl::Status status;
  {
    const absl::MutexLock lock(&mutex_);
    if (closed_ || cancelled()) return ShuttingDown();
    const bool alone = brief && idle_ && !lent_ && jobs_.empty() && scheduler_.size() == 0;
    status = scheduler_.Add(request, now, ended);
    if (alone && status.ok()) *lent = lent_ = true;
  }
  EndAll(ended, now);
  return status;
}

void RequestQueue::GiveBack(std::span<const RunningPass> passes, bool left) {
  const absl::MutexLock lock(&mutex_);
  scheduler_.SetRunning(passes);
  lent_ = false;
  left_ = left;
}

absl::Status RequestQueue::PushBackground(RequestPtr& request) {
  request->queued = clock_();
  const absl::MutexLock lock(&mutex_);
  if (closed_ || cancelled()) return ShuttingDown();
  if (background_.size() >= kMostBackground) return absl::ResourceExhaustedError("the background is full");
  background_.push_back(std::move(request));
  return absl::OkStatus();
}

void RequestQueue::TakeBackground(const std::function<absl::Status(const Request&)>& reason,
                                  std::vector<EndedRequest>& ended) {
  std::erase_if(background_, [&](RequestPtr& request) {
    absl::Status status = reason(*request);
    if (status.ok()) return false;
    ended.push_back({std::move(request), std::move(status)});
    return true;
  });
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
  cache_bytes_.store(running.cache_bytes, std::memory_order_relaxed);
  Work work;
  std::vector<EndedRequest> ended;
  {
    const auto due = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      if (lent_) return false;
      if (wait == Wait::kForWork ? closed_ || left_ : woken_ || cancelled()) return true;
      return !jobs_.empty() || scheduler_.HasPredict() || scheduler_.HasGeneration(running.room) ||
             !background_.empty();
    };
    const absl::MutexLock lock(&mutex_);
    scheduler_.SetRunning(running.passes);  // before the wait: requests that come meanwhile are compared with it
    if (wait == Wait::kForWork) {
      idle_ = true;
      mutex_.Await(absl::Condition(&due));
      idle_ = false;
      if (std::exchange(left_, false)) return work;  // `running` has changed
    }
    if (wait == Wait::kAWhile) mutex_.AwaitWithTimeout(absl::Condition(&due), kAWhile);
    woken_ = false;
    const Time now = clock_();
    ended = scheduler_.TakeEnded(now);
    TakeBackground([now](const Request& request) { return CancelledOrExpired(request, now); }, ended);
    if (!jobs_.empty()) {
      work.job = std::move(jobs_.front());
      jobs_.pop_front();
    } else {
      work.generation = scheduler_.NextGeneration(running.room);
      work.turn = scheduler_.Next(running.generations, now);
      if (work.turn.kind == Turn::kStart) work.batch = scheduler_.TakeBatch(work.turn.level, now);
    }
    if (work.none() && !running.background && !background_.empty()) {
      work.background = std::move(background_.front());
      background_.pop_front();
    }
    work.closed = closed_ && scheduler_.size() == 0;
  }
  EndAll(ended, clock_());
  return work;
}

void RequestQueue::SetRunning(std::span<const RunningPass> passes) {
  const absl::MutexLock lock(&mutex_);
  scheduler_.SetRunning(passes);
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
  std::vector<EndedRequest> ended;
  {
    const absl::MutexLock lock(&mutex_);
    closed_ = true;
    TakeBackground([](const Request&) { return ShuttingDown(); }, ended);
  }
  EndAll(ended, clock_());
}

void RequestQueue::CancelAll() {
  std::vector<EndedRequest> ended;
  {
    const absl::MutexLock lock(&mutex_);
    cancelled_.store(true, std::memory_order_relaxed);
    for (RequestPtr& request : scheduler_.TakeAll()) ended.push_back({std::move(request), ShuttingDown()});
    TakeBackground([](const Request&) { return ShuttingDown(); }, ended);
  }
  EndAll(ended, clock_());
}

size_t RequestQueue::size() const {
  const absl::MutexLock lock(&mutex_);
  return scheduler_.size();
}

bool RequestQueue::HasMore() const {
  const absl::MutexLock lock(&mutex_);
  return !jobs_.empty() || scheduler_.size() > 0;
}

}  // namespace edgewise::server
