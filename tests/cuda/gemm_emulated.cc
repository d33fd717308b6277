#include "tests/cuda/gemm_emulated.h"

#include <cuda_bf16.h>

#include <cstdio>
#include <cstdlib>
#include <optional>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/ops/gemm.h"

namespace edgewise::cuda {
namespace {

using testing::FakeLibrary;
using testing::Fault;

FakeLibrary ordinary_library, *fake_library = &ordinary_library;

// Ends the process where cuBLASLt would be told something false about pointers and strides.
void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "gemm_emulated: %s\n", what);
  std::abort();
}

// As the emulator's MmaBf16.
void Add(float& sum, __nv_bfloat16 x, __nv_bfloat16 w) { sum += __bfloat162float(x) * __bfloat162float(w); }
void Add(float& sum, float x, float w) { sum = fmaf(x, w, sum); }

struct Product {
  GemmCall call;
  const void* weight;
  const void* x;
  float* y;
  bool accumulate, backwards;
};

// A block of one thread has one row of y.
template <typename T>
__global__ void RowKernel(Product p) {
  const GemmShape& shape = p.call.shape;
  for (int64_t s = 0; s < (p.call.apart ? shape.slices : 1); ++s) {
    const T* x = static_cast<const T*>(p.x) + blockIdx.x * p.call.x_stride + s * shape.in;
    float* y = p.y + (s * p.call.rows + blockIdx.x) * p.call.y_stride;
    for (int64_t o = 0; o < shape.out; ++o) {
      const T* weight = static_cast<const T*>(p.weight) + (o * shape.slices + s) * shape.in;
      float sum = 0.0f;
      for (int64_t i = 0; i < shape.in; ++i) {
        const int64_t k = p.backwards ? shape.in - 1 - i : i;
        Add(sum, x[k], weight[k]);
      }
      y[o] = p.accumulate ? sum + y[o] : sum;
    }
  }
}

class EmulatedLibrary : public GemmLibrary {
 public:
  explicit EmulatedLibrary(cudaStream_t stream) : stream_(stream), fake_(fake_library) {}

  absl::StatusOr<std::vector<Algorithm>> Offer(const GemmCall& call) override {
    Require(call.shape.out > 0 && call.shape.out % kGemmOut == 0 && call.shape.in > 0 && call.shape.in % kGemmIn == 0,
            "shape");
    return call.rows <= fake_->most_rows ? fake_->offered : std::vector<Algorithm>();
  }

  absl::Status Run(cudaStream_t stream, const GemmCall& call, const Algorithm& algorithm, const void* weight,
                   const void* x, float* y, bool accumulate) override {
    const GemmShape& shape = call.shape;
    const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
    Require(aligned(weight) && aligned(x) && aligned(y), "alignment of a matrix");
    Require(call.x_stride >= shape.slices * shape.in && call.x_stride * shape.element() % 16 == 0, "stride of x");
    Require(call.y_stride >= shape.out && call.y_stride % 4 == 0, "stride of y");
    Require(call.rows >= 1 && call.rows <= shape.most_rows, "number of rows");
    Require(!call.apart || (!accumulate && shape.slices > 1 && call.y_stride == shape.out), "slices apart");
    const auto fault = static_cast<Fault>(algorithm[1]);
    const auto from = static_cast<int64_t>(algorithm[2]);
    if (fault == Fault::kRefuses && call.rows == from) return absl::UnimplementedError("as a test asks");
    if (fake_->records) fake_->runs.emplace_back(algorithm[0], call);
    last_ = algorithm;
    const Product product = {call, weight, x, y, accumulate, fault == Fault::kSumsBackwards && call.rows >= from};
    return CudaStatus(Launch(stream, call.rows, 1, 0,
                             shape.bf16 ? kLoaded<RowKernel<__nv_bfloat16>> : kLoaded<RowKernel<float>>, product),
                      "product");
  }

  absl::StatusOr<float> Time(const std::function<absl::Status(cudaStream_t)>& run) override {
    last_.reset();
    const absl::Status status = run(stream_);
    if (!status.ok()) return status;
    return last_.has_value() ? fake_->milliseconds(*last_) : fake_->own_milliseconds;
  }

 private:
  const cudaStream_t stream_;
  FakeLibrary* const fake_;
  std::optional<Algorithm> last_;  // that ran
};

}  // namespace

namespace testing {
void SetFakeLibrary(FakeLibrary* library) {
  fake_library = library == nullptr ? &ordinary_library : library;
  Gemm::ForgetPlans();
}
}  // namespace testing

absl::StatusOr<std::unique_ptr<GemmLibrary>> GemmLibrary::Create(std::shared_ptr<Device> device) {
  return std::make_unique<EmulatedLibrary>(device->stream());
}

}  // namespace edgewise::cuda
