#include "tests/server/simulator/device.h"

namespace edgewise::server {
namespace {

// Of an operation, of a row of a product, of a pair of an attention call, and of one under a cap: a short text takes
// about a millisecond.
constexpr double kFixed = 20e-6, kRow = 4e-6, kPair = 1e-6, kCappedPair = 0.2e-6;

absl::Status Failure() { return absl::InternalError("the simulated device failed"); }

}  // namespace

bool SimulatedDevice::Fails(double seconds) {
  pass_(seconds * slowness_);
  if (fail_after_ < 0 || fail_after_-- > 0) return false;
  ++failures_;
  return true;
}

absl::StatusOr<Buffer> SimulatedDevice::Allocate(int64_t floats) {
  if (Fails(0.0)) return absl::ResourceExhaustedError("the simulated device has no memory");
  return CountingBackend::Allocate(floats);
}

absl::Status SimulatedDevice::Upload(std::span<const float> host, float* device) {
  return Fails(0.0) ? Failure() : CountingBackend::Upload(host, device);
}

absl::Status SimulatedDevice::Download(const float* device, std::span<float> host) {
  return Fails(kFixed) ? Failure() : CountingBackend::Download(device, host);
}

absl::Status SimulatedDevice::Throttle() { return Fails(0.0) ? Failure() : CountingBackend::Throttle(); }

absl::Status SimulatedDevice::Linear(const LinearWeights& weights, ConstMatrix x, Matrix y, bool accumulate,
                                     Phase phase) {
  if (Fails(kFixed + kRow * static_cast<double>(x.rows))) return Failure();
  return CountingBackend::Linear(weights, x, y, accumulate, phase);
}

absl::Status SimulatedDevice::FeedForward(const LinearWeights& up, const LinearWeights& down, ConstMatrix x, Matrix y,
                                          Phase phase) {
  if (Fails(kFixed + 2 * kRow * static_cast<double>(x.rows))) return Failure();
  return CountingBackend::FeedForward(up, down, x, y, phase);
}

absl::StatusOr<std::unique_ptr<EdgeLedger>> SimulatedDevice::MakeLedger(uint64_t edges) {
  if (Fails(0.0)) return Failure();
  return CountingBackend::MakeLedger(edges);
}

absl::Status SimulatedDevice::Attend(const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                                     std::span<EdgeCap> caps, Matrix out) {
  double seconds = kFixed;
  for (const AttentionProblem& problem : problems) {
    const double pairs = static_cast<double>(problem.tokens - problem.first_query) * problem.tokens;
    seconds += pairs * (problem.cap < 0 ? kPair : kCappedPair);
  }
  if (Fails(seconds)) return Failure();
  return CountingBackend::Attend(inputs, problems, caps, out);
}

}  // namespace edgewise::server
