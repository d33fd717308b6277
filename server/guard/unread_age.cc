#include "server/guard/unread_age.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status_details.h"

namespace edgewise::server {
namespace {

constexpr double kRetrySeconds = 0.2;
constexpr int kMarksOfAge = 16;
constexpr int64_t kManyLost = 50, kPartLost = 4;
constexpr double kMostDropped = 0.75;  // that so much is lost is but an estimate

int64_t Milliseconds(Clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

}  // namespace

absl::Status CheckWait(Clock::duration waited, Clock::duration limit, bool has_deadline) {
  if (waited == Clock::duration() || waited <= limit / 2) return absl::OkStatus();
  if (has_deadline && waited >= limit)
    return absl::DeadlineExceededError("the deadline had passed when the server read the call");
  absl::Status status = absl::ResourceExhaustedError(absl::StrCat("the server reads calls ", Milliseconds(waited),
                                                                  " ms late, more than half of the ",
                                                                  Milliseconds(limit), " ms that this one may take"));
  SetRetryDelay(status, kRetrySeconds);
  return WithRejection(std::move(status), Rejection::kQueueFull);
}

LostCalls::Remedy LostCalls::Look(uint64_t come, uint64_t begun, uint64_t refused, bool late) {
  const auto fresh = static_cast<int64_t>(come - std::exchange(come_, come));
  const int64_t unbegun = fresh - static_cast<int64_t>(begun - std::exchange(begun_, begun));
  const int64_t lost = unbegun + static_cast<int64_t>(refused - std::exchange(refused_, refused));
  const bool settling = std::exchange(dropped_, false);
  if (!late || lost < kManyLost || kPartLost * lost < fresh) {
    calm_ = std::min(calm_ + 1, kCalm);
    return {0.0, calm_ == kCalm ? kAnyNumber : 1 + calm_ / 2};
  }
  calm_ = 0;
  if (settling) return {0.0, 1};
  dropped_ = true;
  return {std::min(kMostDropped, static_cast<double>(lost) / static_cast<double>(std::max(lost, fresh))), 1};
}

Clock::duration UnreadAge::Observe(Time now, uint64_t received, uint64_t unread) {
  if (unread == 0) {
    marks_.clear();
    return {};
  }
  // The oldest unread byte came after the last mark that it is not part of.
  const uint64_t read = received - std::min(received, unread);
  const auto after = std::find_if(marks_.begin(), marks_.end(), [&](const Mark& mark) { return mark.received > read; });
  if (after != marks_.begin()) marks_.erase(marks_.begin(), after - 1);
  const Clock::duration age = marks_.empty() ? Clock::duration() : now - marks_.front().time;
  if (marks_.empty() || now - marks_.back().time >= age / kMarksOfAge) marks_.push_back({now, received});
  return age;
}

}  // namespace edgewise::server
