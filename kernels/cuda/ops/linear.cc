#include "kernels/cuda/ops/linear.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cuda/ops/rows.h"

namespace edgewise::cuda {
namespace {

constexpr int64_t kMostPadded = int64_t{1} << 22;  // floats of y in scratch, but at least 64 rows

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Rows of one product at most.
int64_t MostRows(const CudaLinearWeights& w) {
  return w.out == w.out_padded ? kGemmRows : std::clamp<int64_t>(kMostPadded / w.out_padded, 64, kGemmRows);
}

// Whether Gemm takes the matrix where it lies.
bool Whole(ConstMatrix m) {
  return (reinterpret_cast<uintptr_t>(m.data) | static_cast<uintptr_t>(m.stride) * sizeof(float)) % 16 == 0;
}

template <typename T, typename Convert>
absl::StatusOr<DeviceArray> CopyPadded(Device& device, std::span<const float> weight, const CudaLinearWeights& w,
                                       const Convert& convert) {
  std::vector<T> padded(static_cast<size_t>(w.out_padded * w.in_padded), convert(0.0f));
  for (int64_t o = 0; o < w.out; ++o) {
    std::transform(weight.begin() + o * w.in, weight.begin() + (o + 1) * w.in, padded.begin() + o * w.in_padded,
                   convert);
  }
  return DeviceArray::Copy(device, std::span<const T>(padded));
}

}  // namespace

GemvWeights CudaLinearWeights::few() const {
  return {weight.data(), bias.as<float>(), out, in, in_padded, bf16, activation};
}

absl::StatusOr<std::unique_ptr<LinearProducts>> LinearProducts::Create(std::shared_ptr<Device> device, bool bf16) {
  absl::StatusOr<std::unique_ptr<Gemm>> gemm = Gemm::Create(device);
  if (!gemm.ok()) return gemm.status();
  return std::unique_ptr<LinearProducts>(new LinearProducts(std::move(device), *std::move(gemm), bf16));
}

LinearProducts::LinearProducts(std::shared_ptr<Device> device, std::unique_ptr<Gemm> gemm, bool bf16)
    : device_(std::move(device)), gemm_(std::move(gemm)), bf16_(bf16) {}

absl::StatusOr<std::unique_ptr<LinearWeights>> LinearProducts::Prepare(std::span<const float> weight,
                                                                       std::span<const float> bias, int64_t out,
                                                                       int64_t in, Activation activation) {
  auto weights = std::make_unique<CudaLinearWeights>();
  weights->out = out;
  weights->in = in;
  weights->out_padded = RoundUp(out, kGemmOut);
  weights->in_padded = RoundUp(in, kGemmIn);
  weights->bf16 = bf16_;
  weights->activation = activation;

  absl::StatusOr<DeviceArray> matrix =
      bf16_ ? CopyPadded<__nv_bfloat16>(*device_, weight, *weights, [](float v) { return __float2bfloat16_rn(v); })
            : CopyPadded<float>(*device_, weight, *weights, [](float v) { return v; });
  if (!matrix.ok()) return matrix.status();
  weights->weight = *std::move(matrix);
  absl::StatusOr<DeviceArray> vector = DeviceArray::Copy(*device_, bias);
  if (!vector.ok()) return vector.status();
  weights->bias = *std::move(vector);
  absl::StatusOr<std::unique_ptr<GemmPlan>> plan = gemm_->Plan({weights->out_padded, weights->in_padded, bf16_});
  if (!plan.ok() && !absl::IsNotFound(plan.status())) return plan.status();
  if (plan.ok()) {
    weights->plan = *std::move(plan);
    if (absl::Status status = LoadProduct(*weights); !status.ok()) return status;
  }

  const int64_t of_float = sizeof(float);
  if (bf16_ || weights->in != weights->in_padded) {
    const int64_t of_element = bf16_ ? static_cast<int64_t>(sizeof(__nv_bfloat16)) : of_float;
    x_bytes_ = std::max(x_bytes_, kGemmRows * weights->in_padded * of_element);
  }
  if (weights->out != weights->out_padded) {
    y_bytes_ = std::max(y_bytes_, MostRows(*weights) * weights->out_padded * of_float);
  }
  // A product with an activation is the first of a feed-forward, or of a classifier; one without, that is twice as wide
  // as what another takes, may be the first of a gated feed-forward.
  if (activation != Activation::kNone) wide_bytes_ = std::max(wide_bytes_, kGemmRows * weights->out_padded * of_float);
  if (activation == Activation::kNone) plain_outs_.insert(out);
  if (plain_outs_.contains(2 * in)) {
    wide_bytes_ = std::max(wide_bytes_, kGemmRows * RoundUp(2 * in, kGemmOut) * of_float);
  }
  return weights;
}

// The library loads its kernel with the first product.
absl::Status LinearProducts::LoadProduct(const CudaLinearWeights& w) {
  const int64_t x_bytes = w.in_padded * static_cast<int64_t>(bf16_ ? sizeof(__nv_bfloat16) : sizeof(float));
  const int64_t bytes = x_bytes + w.out_padded * static_cast<int64_t>(sizeof(float));
  const absl::StatusOr<DeviceArray> rows = DeviceArray::Create(*device_, bytes);
  if (!rows.ok()) return rows.status();
  const absl::Status status =
      CudaStatus(cudaMemsetAsync(rows->data(), 0, bytes, device_->stream()), "memory of a first product");
  if (!status.ok()) return status;
  auto* const y = reinterpret_cast<float*>(rows->as<unsigned char>() + x_bytes);
  return gemm_->Run(*w.plan, w.weight.data(), rows->data(), w.in_padded, 1, y, w.out_padded, false);
}

absl::Status LinearProducts::Run(const LinearWeights& weights, ConstMatrix x, Matrix y, bool accumulate, Phase phase) {
  const auto& w = static_cast<const CudaLinearWeights&>(weights);
  if (phase == Phase::kDecode || w.plan == nullptr) {
    return CudaStatus(GemvLinear(device_->stream(), w.few(), x, y, accumulate), "product of few rows");
  }
  const int64_t most = MostRows(w);
  for (int64_t first = 0; first < x.rows; first += most) {
    const int64_t rows = std::min(most, x.rows - first);
    absl::Status status = RunMany(w, x.Rows(first, rows), y.Rows(first, rows), accumulate);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status LinearProducts::RunMany(const CudaLinearWeights& w, ConstMatrix x, Matrix y, bool accumulate) {
  const cudaStream_t stream = device_->stream();
  // Matrices that Gemm cannot read or write where they lie go through scratch, with the same sums.
  DeviceArray packed, padded;
  const void* source = x.data;
  int64_t source_stride = x.stride;
  if (w.bf16 || w.in != w.in_padded || !Whole(x)) {
    const int64_t bytes = w.bf16 ? sizeof(__nv_bfloat16) : sizeof(float);
    absl::StatusOr<DeviceArray> scratch = DeviceArray::Create(*device_, x.rows * w.in_padded * bytes);
    if (!scratch.ok()) return scratch.status();
    packed = *std::move(scratch);
    const cudaError_t error = w.bf16 ? PadRoundRows(stream, x, packed.as<__nv_bfloat16>(), w.in_padded)
                                     : PadRows(stream, x, packed.as<float>(), w.in_padded);
    if (error != cudaSuccess) return CudaStatus(error, "packing of rows");
    source = packed.data();
    source_stride = w.in_padded;
  }
  const bool direct = w.out == w.out_padded && Whole(y);
  Matrix product = y;
  if (!direct) {
    absl::StatusOr<DeviceArray> scratch =
        DeviceArray::Create(*device_, x.rows * w.out_padded * static_cast<int64_t>(sizeof(float)));
    if (!scratch.ok()) return scratch.status();
    padded = *std::move(scratch);
    product = Matrix(padded.as<float>(), x.rows, w.out, w.out_padded);
  }
  absl::Status status = gemm_->Run(*w.plan, w.weight.data(), source, source_stride, x.rows, product.data,
                                   product.stride, accumulate && direct);
  if (!status.ok()) return status;

  const Activation activation = accumulate ? Activation::kNone : w.activation;
  if (direct && w.bias.data() == nullptr && activation == Activation::kNone) return absl::OkStatus();
  return CudaStatus(FinishProduct(stream, product, w.bias.as<float>(), activation, accumulate && !direct, y),
                    "bias and activation");
}

absl::Status LinearProducts::FeedForward(const LinearWeights& up, const LinearWeights& down,
                                         std::optional<Activation> gate, ConstMatrix x, Matrix y, Phase phase) {
  const auto& w = static_cast<const CudaLinearWeights&>(up);
  const absl::StatusOr<DeviceArray> scratch =
      DeviceArray::Create(*device_, std::min(x.rows, kGemmRows) * w.out_padded * static_cast<int64_t>(sizeof(float)));
  if (!scratch.ok()) return scratch.status();
  for (int64_t first = 0; first < x.rows; first += kGemmRows) {
    const int64_t rows = std::min(kGemmRows, x.rows - first);
    Matrix wide(scratch->as<float>(), rows, w.out, w.out_padded);
    absl::Status status = Run(up, x.Rows(first, rows), wide, false, phase);
    if (status.ok() && gate.has_value()) {
      wide = wide.Columns(0, w.out / 2);
      status =
          CudaStatus(FinishProduct(device_->stream(), wide, nullptr, *gate, false, wide, w.out / 2), "gate of rows");
    }
    if (status.ok()) status = Run(down, wide, y.Rows(first, rows), true, phase);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace edgewise::cuda
