#include "server/rpc/unread_age.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/status_details.h"

namespace edgewise::server {
namespace {

constexpr double kRetrySeconds = 0.2;
constexpr int kMarksOfAge = 16;
constexpr int64_t kManyUnbegun = 50, kPartUnbegun = 4;

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

bool UnbegunCalls::Observe(uint64_t come, uint64_t begun) {
  const auto fresh = static_cast<int64_t>(come - std::exchange(come_, come));
  const int64_t unbegun = fresh - static_cast<int64_t>(begun - std::exchange(begun_, begun));
  return unbegun >= kManyUnbegun && kPartUnbegun * unbegun >= fresh;
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
