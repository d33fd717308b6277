// Matrix products of many rows. One implementation per build: cuBLASLt, or a plain loop where the device is emulated.
#ifndef EDGEWISE_KERNELS_CUDA_OPS_GEMM_H_
#define EDGEWISE_KERNELS_CUDA_OPS_GEMM_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device/runtime.h"

namespace edgewise::cuda {

// Columns of x and W are in multiples of this, so that rows packed in either type are whole 16-byte words.
inline constexpr int64_t kGemmIn = 8;
// Rows of W likewise.
inline constexpr int64_t kGemmOut = 4;
// Rows of x in one product at most.
inline constexpr int64_t kGemmRows = 16384;

// y = x W^T. x and W are float32 (multiplied as such, not as TF32) or bf16; sums and y are float32.
struct GemmShape {
  int64_t out = 0;  // multiple of kGemmOut
  int64_t in = 0;   // multiple of kGemmIn
  bool bf16 = false;
};

// The algorithm for products of one shape. Immutable; for every Gemm on a device of the same kind.
class GemmPlan {
 public:
  virtual ~GemmPlan() = default;
};

class Gemm {
 public:
  static absl::StatusOr<std::unique_ptr<Gemm>> Create(std::shared_ptr<Device> device);
  virtual ~Gemm() = default;

  // NOT_FOUND: no algorithm of the library gives rows that do not depend on the number of rows.
  virtual absl::StatusOr<std::unique_ptr<GemmPlan>> Plan(const GemmShape& shape) = 0;

  // y [rows, out] = x [rows, in] W [out, in]^T, or y += with `accumulate`, on the device's stream. W is packed; the
  // strides are in elements. All three begin at 16-byte addresses and their rows are multiples of 16 bytes apart;
  // 1 <= rows <= kGemmRows. A row of y depends on its row of x and on the plan alone, bit for bit.
  virtual absl::Status Run(const GemmPlan& plan, const void* weight, const void* x, int64_t x_stride, int64_t rows,
                           float* y, int64_t y_stride, bool accumulate) = 0;
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_OPS_GEMM_H_
