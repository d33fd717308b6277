// A device that computes what the CPU computes, but takes the time that a simulation says and fails where it says.
#ifndef EDGEWISE_TESTS_SERVER_SIMULATOR_DEVICE_H_
#define EDGEWISE_TESTS_SERVER_SIMULATOR_DEVICE_H_

#include <functional>
#include <memory>
#include <utility>

#include "tests/model/counting_backend.h"
#include "tests/model/run_model.h"

namespace edgewise::server {

// One thread, as the simulation.
class SimulatedDevice : public testing::CountingBackend {
 public:
  // `pass`: lets so many seconds pass. It is called while an operation is under way, so clients may come and go in it.
  explicit SimulatedDevice(std::function<void(double)> pass)
      : CountingBackend(testing::MakeBackend()), pass_(std::move(pass)) {}

  // The operation after so many more fails.
  void FailAfter(int64_t operations) { fail_after_ = operations; }
  int64_t failures() const { return failures_; }
  // Every operation takes so many times as long as at first.
  void SetSlowness(double slowness) { slowness_ = slowness; }

  bool PreparesBeside() const override { return false; }
  absl::StatusOr<Buffer> Allocate(int64_t floats) override;
  absl::Status Upload(std::span<const float> host, float* device) override;
  absl::Status Download(const float* device, std::span<float> host) override;
  absl::Status Throttle() override;
  absl::Status Linear(const LinearWeights& weights, ConstMatrix x, Matrix y, bool accumulate, Phase phase) override;
  absl::Status FeedForward(const LinearWeights& up, const LinearWeights& down, ConstMatrix x, Matrix y,
                           Phase phase) override;
  absl::StatusOr<std::unique_ptr<EdgeLedger>> MakeLedger(uint64_t edges) override;
  absl::Status Attend(const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                      std::span<EdgeCap> caps, Matrix out) override;

 private:
  // Whether this operation fails, after it took so long.
  bool Fails(double seconds);

  const std::function<void(double)> pass_;
  double slowness_ = 1.0;
  int64_t fail_after_ = -1, failures_ = 0;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_TESTS_SERVER_SIMULATOR_DEVICE_H_
