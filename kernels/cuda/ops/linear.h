// Linear and the feed-forwards of Backend: products of many rows by Gemm, of few rows by GemvLinear.
//
// Precision bf16: weights are kept as bf16 and x is rounded to bf16, or is bf16; sums, bias and activation are float32,
// and what is rounded then is y.
// Precision fp32: GemvLinear reads the weights as float32; where Gemm multiplies bf16 parts (gemm.h) they are kept
// beside.
#ifndef EDGEWISE_KERNELS_CUDA_OPS_LINEAR_H_
#define EDGEWISE_KERNELS_CUDA_OPS_LINEAR_H_

#include <atomic>
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
#include "kernels/cuda/ops/rows.h"

namespace edgewise::cuda {

// Immutable. W is zero-padded to [out_padded, in_padded].
struct CudaLinearWeights : public LinearWeights {
  ~CudaLinearWeights() override {
    if (all_parts != nullptr) *all_parts -= parts_bytes;
  }

  int64_t out = 0, in = 0, out_padded = 0, in_padded = 0;
  bool bf16 = false;
  Activation activation = Activation::kNone;
  DeviceArray weight, bias;  // bias [out], or null
  DeviceArray parts;         // [out_padded] rows of Packing::kPartsOfW; null: Gemm reads `weight`
  int64_t parts_bytes = 0;
  std::shared_ptr<std::atomic<int64_t>> all_parts;  // bytes of the parts of all weights
  std::shared_ptr<const GemmPlan> plan;

  GemvWeights few() const;
  const void* many() const { return parts.data() != nullptr ? parts.data() : weight.data(); }  // for Gemm
};

// The products of one backend, on its stream. One thread at a time.
class LinearProducts {
 public:
  static absl::StatusOr<std::unique_ptr<LinearProducts>> Create(std::shared_ptr<Device> device, bool bf16);

  // Backend::PrepareLinear; finished when the call returns.
  absl::StatusOr<std::unique_ptr<LinearWeights>> Prepare(std::span<const float> weight, std::span<const float> bias,
                                                         int64_t out, int64_t in, Activation activation);
  // `status`, and where memory was too small, how much of it the parts of weights take.
  absl::Status WithParts(absl::Status status) const;
  // The most scratch that a call with the weights prepared so far takes. It stays for the next call until FreeScratch.
  int64_t scratch_bytes() const { return x_bytes_ + y_bytes_ + wide_bytes_; }
  void FreeScratch();
  // Backend::OperandForm.
  Form OperandForm(int64_t columns) const;

  // Backend::Linear. With `accumulate` there is no activation.
  absl::Status Run(const LinearWeights& weights, ConstMatrix x, Matrix y, bool accumulate, Phase phase);
  // Backend::AddLinear, and AddFeedForward, of phase prefill.
  absl::Status Add(const LinearWeights& weights, ConstMatrix x, const Residual& to);
  absl::Status FeedForward(const LinearWeights& up, const LinearWeights& down, std::optional<Activation> gate,
                           ConstMatrix x, const Residual& to);
  // Backend::NormRows: with `added`, of what x is then.
  absl::Status Norm(const Residual& to, const Added& added = {}) const;
  // Backend::FeedForward, or with `gate` GatedFeedForward, of phase decode. At most kGemmRows wide rows are in scratch.
  absl::Status FeedForwardOfFew(const LinearWeights& up, const LinearWeights& down, std::optional<Activation> gate,
                                ConstMatrix x, Matrix y);

 private:
  // Where the rows of a product go: y = activation(x W^T + b), or y += x W^T + b.
  struct Output {
    Matrix y;
    Activation activation = Activation::kNone;
    bool accumulate = false;
    int64_t gated = 0;                   // > 0: as FinishProduct, of twice as many outputs
    const Residual* residual = nullptr;  // with `accumulate`: its x is y
  };
  struct Source {
    const void* data;
    int64_t stride;  // elements of Gemm
  };

  LinearProducts(std::shared_ptr<Device> device, std::unique_ptr<Gemm> gemm, bool bf16);
  absl::Status MakeParts(CudaLinearWeights& weights, const GemmShape& shape);
  absl::Status RunMany(const CudaLinearWeights& w, ConstMatrix x, const Output& to);
  // At most plan->shape.most_rows rows. `here`: Gemm may write to y. `itself`: FinishesItself.
  absl::Status RunRows(const CudaLinearWeights& w, ConstMatrix x, const Output& to, bool here, bool itself);
  bool FinishesItself(const CudaLinearWeights& w, const Output& to, int64_t rows) const;
  absl::StatusOr<Source> SourceOf(const CudaLinearWeights& w, ConstMatrix x);

  const std::shared_ptr<Device> device_;
  const std::unique_ptr<Gemm> gemm_;
  const bool bf16_;
  const std::shared_ptr<std::atomic<int64_t>> all_parts_ = std::make_shared<std::atomic<int64_t>>(0);
  Scratch x_, y_, wide_;                                // of rows of x packed, of sums, between two products
  int64_t x_bytes_ = 0, y_bytes_ = 0, wide_bytes_ = 0;  // the most of each
  std::set<int64_t> plain_outs_;                        // of the weights without an activation
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_OPS_LINEAR_H_
