#include "server/guard/awaited.h"

#include "absl/strings/str_cat.h"
#include "server/base/status_details.h"

namespace edgewise::server {

absl::Status AwaitedCalls::Add(AwaitedCall& call, Clock::duration patience, const MemoryAccount* account) {
  const absl::MutexLock lock(&mutex_);
  if (closed_) return ShuttingDown();
  call.since_ = clock_();
  call.until_ = patience == Clock::duration::max() ? Time::max() : call.since_ + patience;
  call.place_ = calls_.insert(calls_.end(), &call);
  call.awaited_ = true;
  call.account_ = account;
  of_requests_ += account != nullptr;
  return absl::OkStatus();
}

void AwaitedCalls::Erase(AwaitedCall& call) {
  call.awaited_ = false;
  calls_.erase(call.place_);
  of_requests_ -= call.account_ != nullptr;
}

bool AwaitedCalls::Remove(AwaitedCall& call) {
  const absl::MutexLock lock(&mutex_);
  if (!call.awaited_) return false;
  Erase(call);
  return true;
}

template <typename Condition>
size_t AwaitedCalls::End(const absl::Status& status, Condition condition) {
  size_t ended = 0;
  for (auto next = calls_.begin(); next != calls_.end();) {
    AwaitedCall& call = **next++;
    if (!condition(call)) continue;
    Erase(call);
    ++ended;
    call.GiveUp(status);
  }
  return ended;
}

void AwaitedCalls::EndExpired() {
  const absl::MutexLock lock(&mutex_);
  if (calls_.empty()) return;
  const Time now = clock_();
  End(absl::DeadlineExceededError("the message of the call did not arrive in time"),
      [now](const AwaitedCall& call) { return call.until_ <= now; });
}

size_t AwaitedCalls::EndWaiting(Clock::duration at_least, const absl::Status& status) {
  const absl::MutexLock lock(&mutex_);
  const Time now = clock_();
  return End(status, [&](const AwaitedCall& call) { return now - call.since_ >= at_least; });
}

size_t AwaitedCalls::EndGreedy(Clock::duration at_least, uint64_t bytes, const absl::Status& status) {
  const absl::MutexLock lock(&mutex_);
  const Time now = clock_();
  return End(status, [&](const AwaitedCall& call) {
    return call.account_ != nullptr && now - call.since_ >= at_least && call.account_->used() > bytes;
  });
}

void AwaitedCalls::Close() {
  const absl::MutexLock lock(&mutex_);
  closed_ = true;
  End(ShuttingDown(), [](const AwaitedCall&) { return true; });
}

size_t AwaitedCalls::of_requests() const {
  const absl::MutexLock lock(&mutex_);
  return of_requests_;
}

}  // namespace edgewise::server
