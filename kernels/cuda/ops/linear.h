// Linear and the feed-forwards of Backend: products of many rows by Gemm, of few rows by GemvLinear.
//
// Precision bf16: weights are kept as bf16 and x is rounded to bf16; sums, bias, activation and y are float32.
#ifndef EDGEWISE_KERNELS_CUDA_OPS_LINEAR_H_
#define EDGEWISE_KERNELS_CUDA_OPS_LINEAR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/device/device_array.h"
#include "kernels/cuda/ops/gemm.h"
#include "kernels/cuda/ops/gemv.h"

namespace edgewise::cuda {

// Immutable. W is zero-padded to [out_padded, in_padded], as Gemm needs it.
struct CudaLinearWeights : public LinearWeights {
  int64_t out = 0, in = 0, out_padded = 0, in_padded = 0;
  bool bf16 = false;
  Activation activation = Activation::kNone;
  DeviceArray weight, bias;        // bias [out], or null
  std::unique_ptr<GemmPlan> plan;  // null: Gemm has none, and GemvLinear takes many rows too

  GemvWeights few() const;
};

// The products of one backend, on its stream. One thread at a time.
class LinearProducts {
 public:
  static absl::StatusOr<std::unique_ptr<LinearProducts>> Create(std::shared_ptr<Device> device, bool bf16);

  // Backend::PrepareLinear; finished when the call returns.
  absl::StatusOr<std::unique_ptr<LinearWeights>> Prepare(std::span<const float> weight, std::span<const float> bias,
                                                         int64_t out, int64_t in, Activation activation);
  // The most scratch that a call with the weights prepared so far takes.
  int64_t scratch_bytes() const { return x_bytes_ + y_bytes_ + wide_bytes_; }
  // Backend::Linear. With `accumulate` there is no activation.
  absl::Status Run(const LinearWeights& weights, ConstMatrix x, Matrix y, bool accumulate, Phase phase);
  // Backend::FeedForward, or with `gate` GatedFeedForward. At most kGemmRows wide rows are in scratch.
  absl::Status FeedForward(const LinearWeights& up, const LinearWeights& down, std::optional<Activation> gate,
                           ConstMatrix x, Matrix y, Phase phase);

 private:
  LinearProducts(std::shared_ptr<Device> device, std::unique_ptr<Gemm> gemm, bool bf16);
  absl::Status LoadProduct(const CudaLinearWeights& weights);
  // At most kGemmRows rows.
  absl::Status RunMany(const CudaLinearWeights& weights, ConstMatrix x, Matrix y, bool accumulate);

  const std::shared_ptr<Device> device_;
  const std::unique_ptr<Gemm> gemm_;
  const bool bf16_;
  int64_t x_bytes_ = 0, y_bytes_ = 0, wide_bytes_ = 0;  // of rows of x packed, of y padded, between two products
  std::set<int64_t> plain_outs_;                        // of the weights without an activation
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_OPS_LINEAR_H_
