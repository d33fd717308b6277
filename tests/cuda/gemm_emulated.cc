// Gemm (kernels/cuda/ops/gemm.h) where the device is emulated: a block of one thread has one row of y, and an element
// is one chain of multiply-adds.
#include <cuda_bf16.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/ops/gemm.h"

namespace edgewise::cuda {
namespace {

struct EmulatedPlan : GemmPlan {
  GemmShape shape;
};

// Ends the process where cuBLASLt would be told something false about pointers and strides.
void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "gemm_emulated: %s\n", what);
  std::abort();
}

float AsFloat(float value) { return value; }
float AsFloat(__nv_bfloat16 value) { return __bfloat162float(value); }

struct Product {
  const void* weight;
  const void* x;
  float* y;
  int64_t x_stride, y_stride, out, in;
  bool accumulate;
};

template <typename T>
__global__ void RowKernel(Product p) {
  const T* x = static_cast<const T*>(p.x) + blockIdx.x * p.x_stride;
  float* y = p.y + blockIdx.x * p.y_stride;
  for (int64_t o = 0; o < p.out; o += kGemmOut) {
    const T* weight = static_cast<const T*>(p.weight) + o * p.in;
    float sum[kGemmOut] = {};
    for (int64_t i = 0; i < p.in; ++i) {
      for (int64_t c = 0; c < kGemmOut; ++c) sum[c] = fmaf(AsFloat(x[i]), AsFloat(weight[c * p.in + i]), sum[c]);
    }
    for (int64_t c = 0; c < kGemmOut; ++c) y[o + c] = p.accumulate ? sum[c] + y[o + c] : sum[c];
  }
}

class EmulatedGemm : public Gemm {
 public:
  explicit EmulatedGemm(cudaStream_t stream) : stream_(stream) {}

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
    const Product product = {weight, x, y, x_stride, y_stride, shape.out, shape.in, accumulate};
    return CudaStatus(Launch(stream_, rows, 1, 0,
                             shape.bf16 ? kLoaded<RowKernel<__nv_bfloat16>> : kLoaded<RowKernel<float>>, product),
                      "product");
  }

 private:
  const cudaStream_t stream_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Gemm>> Gemm::Create(std::shared_ptr<Device> device) {
  return std::make_unique<EmulatedGemm>(device->stream());
}

}  // namespace edgewise::cuda
