#include "kernels/cuda/attention/drawn_parts.h"

#include "kernels/cuda/attention/kernels.h"

namespace edgewise::cuda {

cudaError_t DrawnParts::ForDrawn(const Use& use) {
  return ForParts(-1, [&](const DeviceCall& part, bool) { return use(part); });
}

cudaError_t DrawnParts::ForKept(const Use& use, int32_t problem) {
  const cudaError_t error = ForParts(problem, [&](const DeviceCall& part, bool drawn_now) {
    cudaError_t kept = cudaSuccess;
    if (!kept_ && part.num_slots > 0) {
      // Bits that were drawn before the caps were settled.
      if (!drawn_now && part.num_caps > 0) kept = DrawPairHeads(device_.stream(), part, true);
      if (kept == cudaSuccess) kept = KeepAndCount(device_.stream(), part, !counted_);
      kept_ = parts_.size() == 1;
    }
    return kept == cudaSuccess ? use(part) : kept;
  });
  counted_ = true;
  return error;
}

cudaError_t DrawnParts::ForParts(int32_t problem, const std::function<cudaError_t(const DeviceCall&, bool)>& use) {
  cudaError_t error = cudaSuccess;
  for (size_t p = 0; p < parts_.size() && error == cudaSuccess; ++p) {
    if (problem >= 0 && (problem < parts_[p].first_problem || problem > parts_[p].last_problem)) continue;
    const DeviceCall part = PartOf(call_, parts_[p]);
    const bool draws = !drawn_ || parts_.size() > 1;
    if (draws && part.num_slots > 0) {
      error = DrawEventHeads(device_.stream(), part, device_.shared_memory());
      if (error == cudaSuccess) error = DrawPairHeads(device_.stream(), part, false);
    }
    if (error == cudaSuccess) error = use(part, draws);
    drawn_ = true;
  }
  return error;
}

}  // namespace edgewise::cuda
