#include "server/schedule/queue.h"

#include "absl/synchronization/notification.h"
#include "server/base/status_details.h"

namespace edgewise::server {
namespace {

constexpr absl::Duration kAWhile = absl::Milliseconds(20);
constexpr size_t kMostBackground = 64;  // that wait

void EndAll(const std::vector<EndedRequest>& ended, Time now) {
  for (const auto& [request, reason] : ended) {
    request->outcome.queue_seconds = Seconds(now - request->outcome.queued);
    request->done(reason);
  }
}

}  // namespace

absl::Status RequestQueue::Push(RequestPtr& request) {
  const double seconds = request->forecast.seconds;
  const bool brief =
      take_turns_ && request->ticket.alone && !request->work.generation && seconds > 0.0 && seconds <= kLoanSeconds;
  bool lent = false;
  const Time now = clock_();
  std::vector<EndedRequest> ended;
  absl::Status status;
  {
    const absl::MutexLock lock(&mutex_);
    if (closed_ || cancelled()) return ShuttingDown();
    lent = brief && idle_ && !lent_ && jobs_.empty() && scheduler_.size() == 0;
    status = scheduler_.Add(request, now, ended);
    lent &= status.ok();
    lent_ |= lent;
  }
  EndAll(ended, now);
  if (lent) take_turns_();
  return status;
}

void RequestQueue::GiveBack(bool left) {
  const absl::MutexLock lock(&mutex_);
  lent_ = false;
  left_ = left;
}

absl::Status RequestQueue::PushBackground(RequestPtr& request) {
  request->outcome.queued = clock_();
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

absl::Status RequestQueue::Check(const Ticket& ticket, double seconds) {
  const Time now = clock_();
  std::vector<EndedRequest> ended;
  absl::Status status;
  {
    const absl::MutexLock lock(&mutex_);
    status = scheduler_.Check(ticket, seconds, now, ended);
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

Assignment RequestQueue::Next(Wait wait, const UnderWay& under_way) {
  cache_bytes_.store(under_way.cache_bytes, std::memory_order_relaxed);
  Assignment work;
  std::vector<EndedRequest> ended;
  {
    const auto due = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      if (lent_) return false;
      if (wait == Wait::kForWork ? closed_ || left_ : woken_ || cancelled()) return true;
      return !jobs_.empty() || scheduler_.HasWork(under_way.room) || !background_.empty();
    };
    const absl::MutexLock lock(&mutex_);
    scheduler_.CloseIdle();  // before the wait: requests that come meanwhile are compared with those that are left
    if (wait == Wait::kForWork) {
      idle_ = true;
      mutex_.Await(absl::Condition(&due));
      idle_ = false;
      if (std::exchange(left_, false)) return work;  // what is under way has changed
    }
    if (wait == Wait::kAWhile) mutex_.AwaitWithTimeout(absl::Condition(&due), kAWhile);
    woken_ = false;
    const Time now = clock_();
    ended = scheduler_.TakeEnded(now);
    if (!background_.empty()) {
      TakeBackground([now](const Request& request) { return CancelledOrExpired(request, now); }, ended);
    }
    if (!jobs_.empty()) {
      work.job = std::move(jobs_.front());
      jobs_.pop_front();
    } else {
      work.generation = scheduler_.NextGeneration(under_way.room);
      work.turn = scheduler_.Next(under_way.generations, now);
      if (work.turn.kind == Turn::kStart) work.batch = scheduler_.TakeBatch(work.turn, now);
    }
    if (work.none() && !under_way.background && !background_.empty()) {
      work.background = std::move(background_.front());
      background_.pop_front();
    }
    work.closed = closed_ && scheduler_.size() == 0;
  }
  EndAll(ended, clock_());
  return work;
}

uint64_t RequestQueue::Started(RunningPass pass) {
  const absl::MutexLock lock(&mutex_);
  return scheduler_.Started(std::move(pass));
}

void RequestQueue::Stepped(uint64_t pass, const Progress& progress, double seconds) {
  const absl::MutexLock lock(&mutex_);
  scheduler_.Stepped(pass, progress, seconds);
}

void RequestQueue::Ended(uint64_t pass) {
  const absl::MutexLock lock(&mutex_);
  scheduler_.Ended(pass);
}

void RequestQueue::Generated(uint32_t level, double seconds) {
  const absl::MutexLock lock(&mutex_);
  scheduler_.Generated(level, seconds);
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
