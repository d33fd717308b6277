// Gemm (kernels/cuda/gemm.h) where the device is emulated: the plainest loop, one chain of multiply-adds per element.
#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/gemm.h"

namespace edgewise::cuda {
namespace {

struct EmulatedPlan : GemmPlan {
  GemmShape shape;
};

// What cuBLASLt is told about pointers and strides must be true.
void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "gemm_emulated: %s\n", what);
  std::abort();
}

float ElementOf(const void* matrix, bool bf16, int64_t index) {
  return bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(matrix)[index])
              : static_cast<const float*>(matrix)[index];
}

class EmulatedGemm : public Gemm {
 public:
  absl::StatusOr<std::unique_ptr<GemmPlan>> Plan(const GemmShape& shape) override {
    Require(shape.out > 0 && shape.out % kGemmOut == 0 && shape.in > 0 && shape.in % kGemmIn == 0, "shape");
    auto plan = std::make_unique<EmulatedPlan>();
    plan->shape = shape;
    return plan;
  }

  absl::Status Run(const GemmPlan& plan, const void* weight, const void* x, int64_t x_stride, int64_t rows, float* y,
                   int64_t y_stride, bool accumulate) override {
    const GemmShape shape = static_cast<const EmulatedPlan&>(plan).shape;
    const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
    Require(aligned(weight) && aligned(x) && aligned(y), "alignment of a matrix");
    Require(x_stride >= shape.in && x_stride % (shape.bf16 ? 8 : 4) == 0, "stride of x");
    Require(y_stride >= shape.out && y_stride % 4 == 0, "stride of y");
    Require(rows >= 1 && rows <= kGemmRows, "number of rows");
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t o = 0; o < shape.out; ++o) {
        float sum = 0.0f;
        for (int64_t i = 0; i < shape.in; ++i) {
          sum = std::fma(ElementOf(x, shape.bf16, r * x_stride + i), ElementOf(weight, shape.bf16, o * shape.in + i),
                         sum);
        }
        float& place = y[r * y_stride + o];
        place = accumulate ? sum + place : sum;
      }
    }
    return absl::OkStatus();
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Gemm>> Gemm::Create(std::shared_ptr<Device>) { return std::make_unique<EmulatedGemm>(); }

}  // namespace edgewise::cuda
