#include "kernels/cuda/decode/decoder.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/cuda/ops/linear.h"

namespace edgewise::cuda {
namespace {

constexpr int64_t kAlignment = 16;
constexpr int32_t kMostHeadDim = 256;

const CudaLinearWeights& Of(const LinearWeights* weights) { return static_cast<const CudaLinearWeights&>(*weights); }

DecodeProduct ProductOf(const LinearWeights* weights) {
  const CudaLinearWeights& w = Of(weights);
  return {w.weight.as<__nv_bfloat16>(), w.bias.as<float>(), static_cast<int32_t>(w.out), static_cast<int32_t>(w.in),
          static_cast<int32_t>(w.in_padded)};
}

// In bytes from the start: counts, rows, wanted rows, pages.
constexpr int64_t kRowsAt = kAlignment;
constexpr int64_t kWantedAt = kRowsAt + int64_t{kMostDecodedRows} * static_cast<int64_t>(sizeof(DecodeRow));
constexpr int64_t kPagesAt = kWantedAt + int64_t{kMostDecodedRows} * static_cast<int64_t>(sizeof(int32_t));

bool Takes(const Device& device, const Decoder& decoder) {
  const DecoderLayer& first = decoder.layers[0];
  if (decoder.head_dim > kMostHeadDim || decoder.head_dim % 8 != 0) return false;
  for (const DecoderLayer& layer : decoder.layers) {
    for (const LinearWeights* weights : {layer.query_key_value, layer.output, layer.up, layer.down}) {
      if (!Of(weights).bf16 || Of(weights).in != Of(weights).in_padded) return false;
      if (DecodeSharedBytes(Of(weights).in_padded) > device.shared_memory()) return false;
    }
    if (Of(layer.down).in != Of(first.down).in) return false;
  }
  return Of(decoder.head).bf16 && DecodeSharedBytes(Of(decoder.head).in_padded) <= device.shared_memory();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PreparedDecoder>> CudaDecoder::Create(std::shared_ptr<Device> device,
                                                                     const Decoder& decoder) {
  if (!Takes(*device, decoder)) return nullptr;
  std::unique_ptr<CudaDecoder> made(new CudaDecoder(std::move(device), decoder));
  absl::Status status = made->TakeMemory();
  if (status.ok()) status = made->MakeGraphs();
  if (!status.ok()) return status;
  return made;
}

absl::Status CudaDecoder::TakeMemory() {
  state_.hidden = static_cast<int32_t>(of_.words.columns);
  state_.heads = of_.heads;
  state_.page = {of_.key_value_heads, of_.head_dim};
  state_.score_scale = of_.score_scale;
  state_.blocks = device_->multiprocessors();
  state_.overlaps = device_->major() >= 9;
  most_pages_ = (of_.most_tokens + KvPage::kTokens - 1) / KvPage::kTokens;
  const int64_t width = int64_t{of_.heads} * of_.head_dim, wide = Of(of_.layers[0].down).in;
  const int64_t floats = int64_t{kMostDecodedRows} * (state_.hidden + width),
                halves = kMostDecodedRows * (width + wide);
  absl::StatusOr<DeviceArray> memory = DeviceArray::Create(*device_, 4 * floats + 2 * halves);
  if (!memory.ok()) return memory.status();
  memory_ = *std::move(memory);
  state_.x = memory_.as<float>();
  state_.q = state_.x + int64_t{kMostDecodedRows} * state_.hidden;
  state_.attended = reinterpret_cast<__nv_bfloat16*>(state_.x + floats);
  state_.wide = state_.attended + kMostDecodedRows * width;
  absl::StatusOr<DeviceArray> inputs = DeviceArray::Create(
      *device_, kPagesAt + int64_t{kMostDecodedRows} * most_pages_ * static_cast<int64_t>(sizeof(float*)));
  if (!inputs.ok()) return inputs.status();
  inputs_ = *std::move(inputs);
  const auto* const bytes = inputs_.as<unsigned char>();
  state_.count = reinterpret_cast<const int32_t*>(bytes);
  state_.rows = reinterpret_cast<const DecodeRow*>(bytes + kRowsAt);
  state_.wanted = reinterpret_cast<const int32_t*>(bytes + kWantedAt);
  state_.pages = reinterpret_cast<const float* const*>(bytes + kPagesAt);
  return absl::OkStatus();
}

cudaError_t CudaDecoder::RunLayers(cudaStream_t stream, int32_t rows) const {
  cudaError_t error = DecodeEmbed(stream, state_, rows, of_.words.data, of_.positions.data);
  const int64_t of_layer = state_.page.floats() / 2;  // bf16
  for (size_t l = 0; l < of_.layers.size() && error == cudaSuccess; ++l) {
    const DecoderLayer& layer = of_.layers[l];
    const int64_t pages = static_cast<int64_t>(l) * of_layer;
    error = DecodeQueries(stream, state_, {layer.norm_weight, layer.norm_bias, of_.norm_epsilon},
                          ProductOf(layer.query_key_value), layer.rotary, pages);
    if (error == cudaSuccess) error = DecodeAttention(stream, state_, rows, layer.reach, pages);
    if (error == cudaSuccess) error = DecodeResidual(stream, state_, state_.attended, ProductOf(layer.output));
    if (error == cudaSuccess) {
      const DecodeNorm norm = {layer.mlp_norm_weight, layer.mlp_norm_bias, of_.norm_epsilon};
      error = DecodeUp(stream, state_, norm, ProductOf(layer.up), of_.gated,
                       of_.gated ? of_.activation : Of(layer.up).activation);
    }
    if (error == cudaSuccess) error = DecodeResidual(stream, state_, state_.wide, ProductOf(layer.down));
  }
  return error;
}

#ifdef EDGEWISE_CUDA_EMULATED

CudaDecoder::~CudaDecoder() = default;
absl::Status CudaDecoder::MakeGraphs() { return absl::OkStatus(); }

#else

CudaDecoder::~CudaDecoder() {
  device_->Use().IgnoreError();
  for (cudaGraphExec_t graph : graphs_) {
    if (graph != nullptr) cudaGraphExecDestroy(graph);
  }
}

// On a stream of their own: others may free memory on the device's.
absl::Status CudaDecoder::MakeGraphs() {
  cudaStream_t stream = nullptr;
  cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  for (size_t c = 0; c < kClasses && error == cudaSuccess; ++c) {
    cudaGraph_t graph = nullptr;
    error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    if (error != cudaSuccess) break;
    error = RunLayers(stream, 1 << c);
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    if (error == cudaSuccess) error = ended;
    if (error == cudaSuccess) error = cudaGraphInstantiate(&graphs_[c], graph, 0);
    if (error == cudaSuccess) error = cudaGraphUpload(graphs_[c], device_->stream());
    if (graph != nullptr) cudaGraphDestroy(graph);
  }
  if (stream != nullptr) cudaStreamDestroy(stream);
  return CudaStatus(error, "graphs of a decoder");
}

#endif

absl::Status CudaDecoder::Run(std::span<const DecodedRow> rows, Matrix logits) {
  std::vector<DecodeRow> staged(kMostDecodedRows, DecodeRow{});
  std::vector<int32_t> wanted;
  std::vector<const float*> pages;
  for (size_t r = 0; r < rows.size(); ++r) {
    const DecodedRow& row = rows[r];
    staged[r] = {row.token, row.position, row.keys, static_cast<int32_t>(pages.size())};
    pages.insert(pages.end(), row.pages, row.pages + (row.keys + KvPage::kTokens - 1) / KvPage::kTokens);
    if (row.predicts) wanted.push_back(static_cast<int32_t>(r));
  }
  const auto wants = static_cast<int32_t>(wanted.size());
  const int32_t count[4] = {static_cast<int32_t>(rows.size()), wants};
  wanted.resize(kMostDecodedRows);
  std::vector<unsigned char> inputs;  // one copy takes all
  const auto put = [&](const auto& values) {
    const auto bytes = std::as_bytes(std::span(values));
    const auto* const first = reinterpret_cast<const unsigned char*>(bytes.data());
    inputs.insert(inputs.end(), first, first + bytes.size());
  };
  put(count);
  put(staged);
  put(wanted);
  put(pages);
  const absl::Status status =
      device_->staging().Upload(inputs.data(), static_cast<int64_t>(inputs.size()), inputs_.as<unsigned char>());
  if (!status.ok()) return status;
  cudaStream_t stream = device_->stream();
#ifdef EDGEWISE_CUDA_EMULATED
  cudaError_t error = RunLayers(stream, count[0]);
#else
  const auto of_class = static_cast<size_t>(std::bit_width(static_cast<unsigned>(count[0] - 1)));
  cudaError_t error = cudaGraphLaunch(graphs_[of_class], stream);
#endif
  if (error == cudaSuccess && wants > 0) {
    DecodeState state = state_;
    state.logits = logits.data;
    error = DecodeLogits(stream, state, {of_.norm_weight, of_.norm_bias, of_.norm_epsilon}, ProductOf(of_.head));
  }
  return CudaStatus(error, "step of a decoder");
}

}  // namespace edgewise::cuda
