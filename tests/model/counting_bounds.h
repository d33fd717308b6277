// Bounds that count what is asked of them.
#ifndef EDGEWISE_TESTS_MODEL_COUNTING_BOUNDS_H_
#define EDGEWISE_TESTS_MODEL_COUNTING_BOUNDS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "base/work_bounds.h"

namespace edgewise::tests {

// Counts what is asked and reserved; ends the work at the ask `ends_at`, and holds at most `most` bytes.
class CountingBounds : public WorkBounds {
 public:
  absl::Status Continue() override {
    return ++asks == ends_at ? absl::DeadlineExceededError("late") : absl::OkStatus();
  }
  absl::Status Reserve(uint64_t bytes) override {
    if (reserved + bytes > most) return absl::ResourceExhaustedError("no more bytes");
    reserved += bytes;
    reserved_peak = std::max(reserved_peak, reserved);
    return absl::OkStatus();
  }
  void Release(uint64_t bytes) override {
    ASSERT_GE(reserved, bytes);
    reserved -= bytes;
  }

  uint64_t asks = 0, ends_at = 0, reserved = 0, reserved_peak = 0, most = UINT64_MAX;
};

}  // namespace edgewise::tests

#endif  // EDGEWISE_TESTS_MODEL_COUNTING_BOUNDS_H_
