// A library of matrix products, which offers algorithms. One implementation per build: cuBLASLt, or the emulator's.
#ifndef EDGEWISE_KERNELS_CUDA_OPS_GEMM_LIBRARY_H_
#define EDGEWISE_KERNELS_CUDA_OPS_GEMM_LIBRARY_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device/runtime.h"

namespace edgewise::cuda {

// Slices have whole multiples of this many columns, so that rows of either type are whole 16-byte words.
inline constexpr int64_t kGemmIn = 8;
// Rows of W likewise.
inline constexpr int64_t kGemmOut = 4;

// x [rows, slices * in] and W [out, slices * in] are bf16, or float32 (multiplied as such, not as TF32); sums and y are
// float32.
struct GemmShape {
  int64_t out = 0;  // multiple of kGemmOut
  int64_t in = 0;   // columns of a slice, multiple of kGemmIn
  int32_t slices = 1;
  bool bf16 = false;
  int64_t most_rows = 0;  // of one product

  bool operator==(const GemmShape&) const = default;
  int64_t element() const { return bf16 ? 2 : 4; }  // bytes
  int64_t row_bytes() const { return slices * in * element(); }
};

// Rows of W are packed; the other strides are in elements. apart: all slices at once, y [slices][rows][y_stride]; else
// the slice that x and W begin with.
struct GemmCall {
  GemmShape shape;
  int64_t rows = 0, x_stride = 0, y_stride = 0;
  bool apart = false;
};

class GemmLibrary {
 public:
  // With the description of a product, so that none is made for a call.
  using Algorithm = std::array<uint64_t, 64>;

  static absl::StatusOr<std::unique_ptr<GemmLibrary>> Create(std::shared_ptr<Device> device);
  virtual ~GemmLibrary() = default;

  // Those that sum each element in one part; may be none.
  virtual absl::StatusOr<std::vector<Algorithm>> Offer(const GemmCall& call) = 0;
  // y = or += the products, on `stream`. UNIMPLEMENTED, with y as it was: the algorithm does not take it.
  virtual absl::Status Run(cudaStream_t stream, const GemmCall& call, const Algorithm& algorithm, const void* weight,
                           const void* x, float* y, bool accumulate) = 0;
  // Milliseconds of what `run` enqueues on the stream that it is given. Waits.
  virtual absl::StatusOr<float> Time(const std::function<absl::Status(cudaStream_t)>& run) = 0;
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_OPS_GEMM_LIBRARY_H_
