#include "kernels/cuda/ops/linear.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/ops/gemm_kernels.h"

namespace edgewise::cuda {
namespace {

// Limits of one product of more than 64 rows: bytes of x packed, floats of sums in scratch, floats of y elsewhere.
constexpr int64_t kMostPacked = int64_t{256} << 20, kMostScratch = int64_t{1} << 23, kMostDirect = int64_t{1} << 26;

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// The most rows whose sums are in scratch, and the most wide rows of `floats` floats.
int64_t ScratchRows(const GemmShape& shape) { return std::max<int64_t>(64, kMostScratch / shape.out); }
int64_t WideRows(int64_t floats) {
  return std::clamp<int64_t>(kMostPacked / (floats * static_cast<int64_t>(sizeof(float))), 64, kGemmRows);
}

Residual RowsOf(const Residual& of, int64_t first, int64_t count) {
  return {of.x.Rows(first, count), of.norm, of.y.Rows(first, count), of.operand.Rows(first, count)};
}

// Whether products may go to a y of float32, and need no scratch from which FinishProduct takes them.
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

Form LinearProducts::OperandForm(int64_t columns) const {
  if (bf16_) return Form::kBfloat16;
  return OrderOf(columns, false, device_->sm()).parts ? Form::kParts : Form::kFloat32;
}

absl::StatusOr<std::unique_ptr<LinearWeights>> LinearProducts::Prepare(std::span<const float> weight,
                                                                       std::span<const float> bias, int64_t out,
                                                                       int64_t in, Activation activation) {
  auto weights = std::make_unique<CudaLinearWeights>();
  weights->out = out;
  weights->in = in;
  weights->out_padded = RoundUp(out, kGemmOut);
  weights->bf16 = bf16_;
  weights->activation = activation;
  const SumOrder order = OrderOf(in, bf16_, device_->sm());
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
  y_bytes_ = std::max(y_bytes_, MostSums(shape, std::min(shape.most_rows, ScratchRows(shape))) * of_float);
  // A product with an activation is the first of a feed-forward, or of a classifier; one without, that is twice as wide
  // as another's input, may be the first of a gated feed-forward.
  if (activation != Activation::kNone) wide_bytes_ = std::max(wide_bytes_, kGemmRows * weights->out_padded * of_float);
  if (activation == Activation::kNone) plain_outs_.insert(out);
  if (plain_outs_.contains(2 * in)) {
    wide_bytes_ = std::max(wide_bytes_, kGemmRows * RoundUp(2 * in, kGemmOut) * of_float);
  }
  const int64_t wide_floats = RoundUp(RowFloats(OperandForm(in), in, device_->sm()), 4);
  if (wide_bytes_ > 0) wide_bytes_ = std::max(wide_bytes_, WideRows(wide_floats) * wide_floats * of_float);
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
  return RunMany(w, x, {y, accumulate ? Activation::kNone : w.activation, accumulate});
}

absl::Status LinearProducts::Add(const LinearWeights& weights, ConstMatrix x, const Residual& to) {
  const Residual* normed = to.norm.weight != nullptr ? &to : nullptr;
  return RunMany(static_cast<const CudaLinearWeights&>(weights), x, {to.x, Activation::kNone, true, 0, normed});
}

absl::Status LinearProducts::RunMany(const CudaLinearWeights& w, ConstMatrix x, const Output& to) {
  const GemmShape& shape = w.plan->shape;
  const bool here = Direct(w, shape) && to.y.form == Form::kFloat32 && to.gated == 0 && Whole(to.y);
  for (int64_t first = 0, rows = 0; first < x.rows; first += rows) {
    rows = std::min(shape.most_rows, x.rows - first);
    const bool itself = FinishesItself(w, to, rows);
    if (!here && !itself) rows = std::min(rows, ScratchRows(shape));
    Output of_rows = to;
    of_rows.y = to.y.Rows(first, rows);
    Residual residual;
    if (to.residual != nullptr) {
      residual = RowsOf(*to.residual, first, rows);
      of_rows.residual = &residual;
    }
    absl::Status status = RunRows(w, x.Rows(first, rows), of_rows, here, itself);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// Whether our own kernel writes the output. A norm finishes the product of any kernel.
bool LinearProducts::FinishesItself(const CudaLinearWeights& w, const Output& to, int64_t rows) const {
  return w.out == w.out_padded && PaddedColumns(to.y.form, w.out, device_->sm()) == w.out && to.gated == 0 &&
         Whole(to.y) && Gemm::FinishesItself(*w.plan, rows, to.residual == nullptr);
}

// The rows as Gemm reads them: where they lie, or packed into scratch, with the same sums.
absl::StatusOr<LinearProducts::Source> LinearProducts::SourceOf(const CudaLinearWeights& w, ConstMatrix x) {
  const GemmShape& shape = w.plan->shape;
  const int64_t columns = shape.slices * shape.in;
  if (x.form != Form::kFloat32) return Source{x.data, 2 * x.stride};
  if (!shape.bf16 && w.in == columns && Whole(x)) return Source{x.data, x.stride};
  const absl::StatusOr<void*> packed = x_.Take(*device_, x.rows * shape.row_bytes());
  if (!packed.ok()) return packed.status();
  const cudaStream_t stream = device_->stream();
  const int64_t slice = w.bf16 ? shape.in : shape.in / kPartProducts;
  const cudaError_t error = shape.bf16 ? PackRows(stream, x, w.bf16 ? Packing::kRounded : Packing::kPartsOfX, slice,
                                                  shape.slices, static_cast<__nv_bfloat16*>(*packed))
                                       : PadRows(stream, x, static_cast<float*>(*packed), columns);
  if (error != cudaSuccess) return CudaStatus(error, "packing of rows");
  return Source{*packed, columns};
}

absl::Status LinearProducts::RunRows(const CudaLinearWeights& w, ConstMatrix x, const Output& to, bool here,
                                     bool itself) {
  const cudaStream_t stream = device_->stream();
  const GemmShape& shape = w.plan->shape;
  const absl::StatusOr<Source> source = SourceOf(w, x);
  if (!source.ok()) return source.status();
  Finish finish = {RowsOf(to.y, device_->sm()), w.bias.as<float>(), to.activation, to.accumulate};
  if (itself) {
    absl::Status status = gemm_->RunFinished(*w.plan, w.many(), source->data, source->stride, x.rows, finish);
    return status.ok() && to.residual != nullptr ? Norm(*to.residual) : status;
  }
  Matrix product = to.y;
  if (!here) {
    const absl::StatusOr<void*> sums =
        y_.Take(*device_, SumsApart(shape, x.rows) * x.rows * w.out_padded * static_cast<int64_t>(sizeof(float)));
    if (!sums.ok()) return sums.status();
    product = Matrix(static_cast<float*>(*sums), x.rows, w.out, w.out_padded);
  }
  const absl::StatusOr<int32_t> sums = gemm_->Run(*w.plan, w.many(), source->data, source->stride, x.rows, product.data,
                                                  product.stride, to.accumulate && here);
  if (!sums.ok()) return sums.status();
  finish.accumulate &= !here;
  if (to.residual != nullptr) {
    return Norm(*to.residual, {here ? ConstMatrix() : ConstMatrix(product), *sums, finish.bias});
  }
  if (here && finish.bias == nullptr && finish.activation == Activation::kNone) return absl::OkStatus();
  const int64_t columns = to.gated > 0 ? to.gated : w.out;
  return CudaStatus(FinishProduct(stream, product, *sums, finish, columns, to.gated), "bias and activation");
}

absl::Status LinearProducts::Norm(const Residual& to, const Added& added) const {
  if (to.norm.weight == nullptr) return absl::OkStatus();
  const FormRows y = RowsOf(to.y, device_->sm()), operand = RowsOf(to.operand, device_->sm());
  return CudaStatus(cuda::Norm(device_->stream(), added, to.x, to.norm, to.x.columns, y, operand), "norm of rows");
}

absl::Status LinearProducts::FeedForward(const LinearWeights& up, const LinearWeights& down,
                                         std::optional<Activation> gate, ConstMatrix x, const Residual& to) {
  const auto& w = static_cast<const CudaLinearWeights&>(up);
  const auto& next = static_cast<const CudaLinearWeights&>(down);
  const Form form = OperandForm(next.in);
  const int64_t stride = RoundUp(RowFloats(form, next.in, device_->sm()), 4), most = std::min(WideRows(stride), x.rows);
  const absl::StatusOr<void*> memory = wide_.Take(*device_, most * stride * static_cast<int64_t>(sizeof(float)));
  if (!memory.ok()) return memory.status();
  for (int64_t first = 0; first < x.rows; first += most) {
    const int64_t rows = std::min(most, x.rows - first);
    const Matrix wide(static_cast<float*>(*memory), rows, next.in, stride, form);
    absl::Status status =
        RunMany(w, x.Rows(first, rows), {wide, gate.value_or(w.activation), false, gate.has_value() ? next.in : 0});
    if (!status.ok()) return status;
    status = Add(down, wide, RowsOf(to, first, rows));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status LinearProducts::FeedForwardOfFew(const LinearWeights& up, const LinearWeights& down,
                                              std::optional<Activation> gate, ConstMatrix x, Matrix y) {
  const auto& w = static_cast<const CudaLinearWeights&>(up);
  const int64_t most = std::min(kGemmRows, x.rows);
  const absl::StatusOr<void*> memory = wide_.Take(*device_, most * w.out_padded * static_cast<int64_t>(sizeof(float)));
  if (!memory.ok()) return memory.status();
  for (int64_t first = 0; first < x.rows; first += most) {
    const int64_t rows = std::min(most, x.rows - first);
    Matrix wide(static_cast<float*>(*memory), rows, w.out, w.out_padded);
    absl::Status status = Run(up, x.Rows(first, rows), wide, false, Phase::kDecode);
    if (status.ok() && gate.has_value()) {
      wide = wide.Columns(0, w.out / 2);
      const Finish finish = {RowsOf(wide, device_->sm()), nullptr, *gate};
      status = CudaStatus(FinishProduct(device_->stream(), wide, 1, finish, w.out / 2, w.out / 2), "gate of rows");
    }
    if (status.ok()) status = Run(down, wide, y.Rows(first, rows), true, Phase::kDecode);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void LinearProducts::FreeScratch() {
  for (Scratch* scratch : {&x_, &y_, &wide_}) scratch->Free();
}

}  // namespace edgewise::cuda
