// A backend on which a caller stops work in the middle of a layer: for tests of what makes and reads cancel flags.
#ifndef EDGEWISE_TESTS_MODEL_CANCELLING_BACKEND_H_
#define EDGEWISE_TESTS_MODEL_CANCELLING_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tests/model/deferred_backend.h"

namespace edgewise::testing {

// Does what `inner` does, but of a problem whose flag is raised it makes all that may be anything absurd: rows NaN,
// counts and degrees huge.
class CancellingBackend : public DeferredBackend {
 public:
  explicit CancellingBackend(std::unique_ptr<Backend> inner) : DeferredBackend(std::move(inner)) {}

  // The call of Attend after so many more calls `stop` when it is under way.
  void CancelAfter(int64_t calls, std::function<void()> stop) {
    stop_after_ = calls;
    stop_ = std::move(stop);
  }
  int64_t calls() const { return calls_; }                  // of Attend
  int64_t last_problems() const { return last_problems_; }  // of the last call
  int64_t flags() const { return flags_; }                  // made
  int64_t dropped() const { return dropped_; }              // problems that were made absurd

  absl::StatusOr<std::unique_ptr<CancelFlag>> MakeCancelFlag() override;
  absl::Status Attend(const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                      std::span<EdgeCap> caps, Matrix out) override;

 private:
  int64_t calls_ = 0, last_problems_ = 0, flags_ = 0, dropped_ = 0;
  int64_t stop_after_ = -1;
  std::function<void()> stop_;
};

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_MODEL_CANCELLING_BACKEND_H_
