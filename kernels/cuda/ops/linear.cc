#include "kernels/cuda/ops/linear.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/ops/gemm_kernels.h"
#include "kernels/cuda/ops/rows.h"

namespace edgewise::cuda {
namespace {

// Limits of one product of more than 64 rows: bytes of x packed, floats of y in scratch, floats of y elsewhere.
constexpr int64_t kMostPacked = int64_t{256} << 20, kMostScratch = int64_t{1} << 23, kMostDirect = int64_t{1} << 26;

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Whether products go to y, and not to scratch from which FinishProduct takes them.
bool Direct(const CudaLinearWeights& w, const GemmShape& shape) { return shape.slices == 1 && w.out == w.out_padded; }

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
  weights->bf16 = bf16_;
  weights->activation = activation;
  const SumOrder order = OrderOf(in, bf16_, 10 * device_->major() + device_->minor());
  const int64_t columns = RoundUp(in, kGemmIn * order.slices);
  weights->in_padded = order.parts ? RoundUp(in, kGemmIn) : columns;

  absl::StatusOr<DeviceArray> matrix =
      bf16_ ? CopyPadded<__nv_bfloat16>(*device_, weight, *weights, [](float v) { return __float2bfloat16_rn(v); })
            : CopyPadded<float>(*device_, weight, *weights, [](float v) { return v; });
  if (!matrix.ok()) return WithParts(matrix.status());
  weights->weight = *std::move(matrix);
  absl::StatusOr<DeviceArray> vector = DeviceArray::Copy(*device_, bias);
  if (!vector.ok()) return WithParts(vector.status());
  weights->bias = *std::move(vector);

  GemmShape shape = {weights->out_padded, columns / order.slices * (order.parts ? kPartProducts : 1), order.slices,
                     bf16_ || order.parts};
  const int64_t most_floats = Direct(*weights, shape) ? kMostDirect : kMostScratch;
  shape.most_rows =
      std::clamp<int64_t>(std::min(kMostPacked / shape.row_bytes(), most_floats / shape.out), 64, kGemmRows);
  if (order.parts) {
    if (absl::Status status = MakeParts(*weights, shape); !status.ok()) return WithParts(status);
  }
  absl::StatusOr<std::shared_ptr<const GemmPlan>> plan = gemm_->Plan(shape, weights->many());
  if (!plan.ok()) return WithParts(plan.status());
  weights->plan = *std::move(plan);

  if (shape.bf16 || in != columns) x_bytes_ = std::max(x_bytes_, shape.most_rows * shape.row_bytes());
  const int64_t of_float = sizeof(float);
  if (!Direct(*weights, shape)) y_bytes_ = std::max(y_bytes_, MostSums(shape, shape.most_rows) * of_float);
  // A product with an activation is the first of a feed-forward, or of a classifier; one without, that is twice as wide
  // as another's input, may be the first of a gated feed-forward.
  if (activation != Activation::kNone) wide_bytes_ = std::max(wide_bytes_, kGemmRows * weights->out_padded * of_float);
  if (activation == Activation::kNone) plain_outs_.insert(out);
  if (plain_outs_.contains(2 * in)) {
    wide_bytes_ = std::max(wide_bytes_, kGemmRows * RoundUp(2 * in, kGemmOut) * of_float);
  }
  return weights;
}

// On the device, from the weights that are there.
absl::Status LinearProducts::MakeParts(CudaLinearWeights& w, const GemmShape& shape) {
  w.parts_bytes = w.out_padded * shape.row_bytes();
  w.all_parts = all_parts_;
  *all_parts_ += w.parts_bytes;
  absl::StatusOr<DeviceArray> parts = DeviceArray::Create(*device_, w.parts_bytes);
  if (!parts.ok()) return parts.status();
  w.parts = *std::move(parts);
  const int64_t packed = w.out * shape.row_bytes();
  cudaError_t error = PackRows(device_->stream(), {w.weight.as<float>(), w.out, w.in_padded}, Packing::kPartsOfW,
                               shape.in / kPartProducts, shape.slices, w.parts.as<__nv_bfloat16>());
  if (error == cudaSuccess) {
    error = cudaMemsetAsync(w.parts.as<unsigned char>() + packed, 0, static_cast<size_t>(w.parts_bytes - packed),
                            device_->stream());
  }
  return error == cudaSuccess ? device_->Synchronize() : CudaStatus(error, "parts of weights");
}

absl::Status LinearProducts::WithParts(absl::Status status) const {
  const int64_t bytes = *all_parts_;
  if (!absl::IsResourceExhausted(status) || bytes == 0) return status;
  return absl::ResourceExhaustedError(absl::StrCat(
      status.message(), "; float32 weights are kept a second time, as bf16 parts, in 12 bytes an element: ", bytes,
      " bytes so far; --precision=bf16 needs none of them"));
}

absl::Status LinearProducts::Run(const LinearWeights& weights, ConstMatrix x, Matrix y, bool accumulate, Phase phase) {
  const auto& w = static_cast<const CudaLinearWeights&>(weights);
  if (phase == Phase::kDecode) {
    return CudaStatus(GemvLinear(device_->stream(), w.few(), x, y, accumulate), "product of few rows");
  }
  const int64_t most = w.plan->shape.most_rows;
  for (int64_t first = 0; first < x.rows; first += most) {
    const int64_t rows = std::min(most, x.rows - first);
    absl::Status status = RunMany(w, x.Rows(first, rows), y.Rows(first, rows), accumulate);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status LinearProducts::RunMany(const CudaLinearWeights& w, ConstMatrix x, Matrix y, bool accumulate) {
  const cudaStream_t stream = device_->stream();
  const GemmShape& shape = w.plan->shape;
  const int64_t columns = shape.slices * shape.in;
  // Matrices that Gemm cannot read or write where they lie go through scratch, with the same sums.
  DeviceArray packed, scratch;
  const void* source = x.data;
  int64_t source_stride = x.stride;
  if (shape.bf16 || w.in != columns || !Whole(x)) {
    absl::StatusOr<DeviceArray> memory = DeviceArray::Create(*device_, x.rows * shape.row_bytes());
    if (!memory.ok()) return memory.status();
    packed = *std::move(memory);
    const int64_t slice = w.bf16 ? shape.in : shape.in / kPartProducts;
    const cudaError_t error = shape.bf16 ? PackRows(stream, x, w.bf16 ? Packing::kRounded : Packing::kPartsOfX, slice,
                                                    shape.slices, packed.as<__nv_bfloat16>())
                                         : PadRows(stream, x, packed.as<float>(), columns);
    if (error != cudaSuccess) return CudaStatus(error, "packing of rows");
    source = packed.data();
    source_stride = columns;
  }
  const bool direct = Direct(w, shape) && Whole(y);
  Matrix product = y;
  if (!direct) {
    absl::StatusOr<DeviceArray> memory = DeviceArray::Create(
        *device_, SumsApart(shape, x.rows) * x.rows * w.out_padded * static_cast<int64_t>(sizeof(float)));
    if (!memory.ok()) return memory.status();
    scratch = *std::move(memory);
    product = Matrix(scratch.as<float>(), x.rows, w.out, w.out_padded);
  }
  const absl::StatusOr<int32_t> sums =
      gemm_->Run(*w.plan, w.many(), source, source_stride, x.rows, product.data, product.stride, accumulate && direct);
  if (!sums.ok()) return sums.status();

  const Activation activation = accumulate ? Activation::kNone : w.activation;
  if (direct && w.bias.data() == nullptr && activation == Activation::kNone) return absl::OkStatus();
  return CudaStatus(FinishProduct(stream, product, *sums, w.bias.as<float>(), activation, accumulate && !direct, y),
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
          CudaStatus(FinishProduct(device_->stream(), wide, 1, nullptr, *gate, false, wide, w.out / 2), "gate of rows");
    }
    if (status.ok()) status = Run(down, wide, y.Rows(first, rows), true, phase);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace edgewise::cuda
