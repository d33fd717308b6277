// The Backend of one GPU, and the function by which the server makes it (kernels/cuda_module.h).
#include <cuda_bf16.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/backend.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/decode/decoder.h"
#include "kernels/cuda/device/cancel_flags.h"
#include "kernels/cuda/device/device_array.h"
#include "kernels/cuda/device/kernel_list.h"
#include "kernels/cuda/device/runtime.h"
#include "kernels/cuda/ops/gemm.h"
#include "kernels/cuda/ops/linear.h"
#include "kernels/cuda/ops/memberships.h"
#include "kernels/cuda/ops/pages.h"
#include "kernels/cuda/ops/rows.h"
#include "kernels/cuda/ops/token_chooser.h"
#include "kernels/cuda_module.h"

namespace edgewise::cuda {
namespace {

// Bytes that attention calls of a full wave take beside the model's matrices: scratch of edge caps (34 MB), results,
// lists of items, and a ledger for each text of a wave of very short texts.
constexpr int64_t kCallBytes = int64_t{64} << 20;
constexpr int32_t kCancelFlags = 16384;  // that kernels can see at a time, one word of device memory each

class CudaBackend : public Backend {
 public:
  CudaBackend(std::shared_ptr<Device> device, std::unique_ptr<LinearProducts> linears, bool bf16)
      : device_(std::move(device)),
        name_(absl::StrCat("cuda/sm_", device_->major(), device_->minor(), bf16 ? "/bf16" : "/fp32")),
        bf16_(bf16),
        linears_(std::move(linears)),
        attention_(*device_, bf16) {}

  ~CudaBackend() override {
    device_->Use().IgnoreError();
    device_->Synchronize().IgnoreError();  // kernels may read cancel flags
    if (throttle_ != nullptr) cudaEventDestroy(throttle_);
  }

  absl::Status Start() {
    absl::StatusOr<std::shared_ptr<CancelFlags>> flags =
        Use([&] { return CancelFlags::Create(device_, kCancelFlags); });
    if (!flags.ok()) return flags.status();
    cancel_flags_ = *std::move(flags);
    if (absl::Status status = Run("kernels", LoadKernels); !status.ok()) return status;
    if (absl::Status status = CheckWideTiles(); !status.ok()) return status;
    return Run("event", [&] { return cudaEventCreateWithFlags(&throttle_, cudaEventDisableTiming); });
  }

  const std::string& device() const override { return name_; }
  bool lost() const override { return lost_; }
  std::optional<DeviceMemory> Memory() const override { return lost_ ? std::nullopt : device_->Memory(); }

  int32_t HeadAlignment() const override { return kHeadAlignment; }

  absl::StatusOr<Buffer> Allocate(int64_t floats) override {
    absl::StatusOr<void*> memory = Use([&] { return device_->Allocate(floats * int64_t{sizeof(float)}); });
    if (!memory.ok()) return memory.status();
    return Buffer(static_cast<float*>(*memory), floats, [device = device_](float* data) { device->Free(data); });
  }

  absl::StatusOr<Buffer> AllocateWeights(int64_t floats) override {
    absl::StatusOr<DeviceArray> array = Use([&] {
      const Device::Weights weights(*device_);
      return DeviceArray::Create(*device_, floats * int64_t{sizeof(float)});
    });
    if (!array.ok()) return array.status();
    const auto owner = std::make_shared<DeviceArray>(*std::move(array));
    return Buffer(owner->as<float>(), floats, [owner](float*) {});
  }

  absl::Status Reserve(int64_t pass_floats, int64_t generation_floats) override {
    linears_->FreeScratch();
    attention_.FreeScratch();
    pass_floats = std::max(pass_floats_, pass_floats);
    generation_floats = std::max(generation_floats_, generation_floats);
    const int64_t floats = pass_floats + generation_floats;
    const int64_t bytes =
        floats * int64_t{sizeof(float)} + linears_->scratch_bytes() + kCallBytes + (draws_ ? kMostEdgeBytes : 0);
    // The pool keeps what it gets back.
    const absl::Status status = Use([&] { return linears_->WithParts(DeviceArray::Create(*device_, bytes).status()); });
    if (!status.ok()) return status;
    pass_floats_ = pass_floats;
    generation_floats_ = generation_floats;
    return absl::OkStatus();
  }

  absl::Status Upload(std::span<const float> host, float* device) override {
    return Use([&] { return device_->staging().Upload(host.data(), Bytes(host), device); });
  }

  absl::Status Download(const float* device, std::span<float> host) override {
    return Collect({{host.data(), device, Bytes(host)}});
  }

  absl::Status Synchronize() override { return Collect({}); }

  absl::Status Throttle() override {
    // The wait ends at once the first time.
    const absl::Status status = Run("wait for an event", [&] { return cudaEventSynchronize(throttle_); });
    return status.ok() ? Run("event record", [&] { return cudaEventRecord(throttle_, device_->stream()); }) : status;
  }

  absl::StatusOr<std::unique_ptr<LinearWeights>> PrepareLinear(std::span<const float> weight,
                                                               std::span<const float> bias, int64_t out, int64_t in,
                                                               Activation activation) override {
    return Use([&] {
      const Device::Weights weights(*device_);
      return linears_->Prepare(weight, bias, out, in, activation);
    });
  }

  absl::Status Linear(const LinearWeights& weights, ConstMatrix x, Matrix y, bool accumulate, Phase phase) override {
    return Use([&] { return linears_->Run(weights, x, y, accumulate, phase); });
  }

  absl::Status FeedForward(const LinearWeights& up, const LinearWeights& down, ConstMatrix x, Matrix y,
                           Phase phase) override {
    return FeedForward(up, down, std::nullopt, x, y, phase);
  }

  absl::Status GatedFeedForward(const LinearWeights& gate_up, const LinearWeights& down, Activation activation,
                                ConstMatrix x, Matrix y, Phase phase) override {
    return FeedForward(gate_up, down, std::optional(activation), x, y, phase);
  }

  Form OperandForm(int64_t columns) const override { return linears_->OperandForm(columns); }
  int64_t RowFloats(Form form, int64_t columns) const override { return cuda::RowFloats(form, columns, device_->sm()); }

  AttentionForms FormsOfAttention(int64_t columns) const override {
    const Form form = OperandForm(columns);  // no kernel of attention adds columns of zeros
    const bool whole = PaddedColumns(form, columns, device_->sm()) == columns;
    return {bf16_ ? Form::kBfloat16 : Form::kFloat32, whole ? form : Form::kFloat32};
  }

  absl::Status AddLinear(const LinearWeights& weights, ConstMatrix x, const Residual& to, Phase phase) override {
    if (phase == Phase::kDecode) return Backend::AddLinear(weights, x, to, phase);
    return Use([&] { return linears_->Add(weights, x, to); });
  }

  absl::Status AddFeedForward(const LinearWeights& up, const LinearWeights& down, std::optional<Activation> gate,
                              ConstMatrix x, const Residual& to, Phase phase) override {
    if (phase == Phase::kDecode) return Backend::AddFeedForward(up, down, gate, x, to, phase);
    return Use([&] { return linears_->FeedForward(up, down, gate, x, to); });
  }

  absl::Status NormRows(const Residual& of) override {
    return Use([&] { return linears_->Norm(of); });
  }

  absl::Status Embed(ConstMatrix word, ConstMatrix position, std::span<const int32_t> token_ids,
                     std::span<const int32_t> positions, Matrix y) override {
    if (y.rows == 0) return absl::OkStatus();
    return Staged([&](Staging& staging) {
      const int32_t* tokens = staging.Add(token_ids.first(y.rows));
      const int32_t* places = position.data == nullptr ? nullptr : staging.Add(positions.first(y.rows));
      return [=, this] { return cuda::Embed(device_->stream(), word, position, tokens, places, y); };
    });
  }

  absl::Status LayerNorm(ConstMatrix x, const float* weight, const float* bias, float epsilon, Matrix y) override {
    return Norm("layer norm", x, {weight, bias, epsilon}, x.columns, y);
  }

  absl::Status RmsNorm(ConstMatrix x, const float* weight, float epsilon, int64_t group, Matrix y) override {
    return Norm("RMS norm", x, {weight, nullptr, epsilon}, group, y);
  }

  absl::Status Rotate(Matrix x, ConstMatrix table, std::span<const int32_t> positions) override {
    if (x.rows == 0) return absl::OkStatus();
    return Staged([&](Staging& staging) {
      const int32_t* places = staging.Add(positions.first(x.rows));
      return [=, this] { return cuda::Rotate(device_->stream(), x, table, places); };
    });
  }

  int64_t CacheFloats(int64_t numbers) const override { return bf16_ ? numbers / 2 : numbers; }

  absl::Status StoreInPages(ConstMatrix x, const KvPage& shape, std::span<const PagePlace> places) override {
    if (places.empty()) return absl::OkStatus();
    return Staged([&](Staging& staging) {
      const PagePlace* staged = staging.Add(places);
      const auto count = static_cast<int64_t>(places.size());
      return [=, this] { return cuda::StoreInPages(device_->stream(), x, shape, staged, count, bf16_); };
    });
  }

  absl::Status GatherRows(ConstMatrix x, std::span<const int64_t> rows, Matrix y) override {
    if (rows.empty()) return absl::OkStatus();
    return Staged([&](Staging& staging) {
      const int64_t* staged = staging.Add(rows);
      const Matrix to = y.Rows(0, static_cast<int64_t>(rows.size()));
      return [=, this] { return cuda::GatherRows(device_->stream(), x, staged, to); };
    });
  }

  absl::Status PoolMean(ConstMatrix x, std::span<const int64_t> offsets, std::span<const float> divisors,
                        Matrix y) override {
    return Staged([&](Staging& staging) {
      const int64_t* begins = staging.Add(offsets);
      const float* by = staging.Add(divisors);
      return [=, this] { return cuda::PoolMean(device_->stream(), x, begins, by, y); };
    });
  }

  absl::StatusOr<std::unique_ptr<PreparedDecoder>> PrepareDecoder(const Decoder& decoder) override {
    return Use([&] { return CudaDecoder::Create(device_, decoder); });
  }

  absl::Status Decode(PreparedDecoder& decoder, std::span<const DecodedRow> rows, Matrix logits) override {
    return Use([&] { return static_cast<CudaDecoder&>(decoder).Run(rows, logits); });
  }

  absl::StatusOr<std::unique_ptr<TokenChooser>> MakeTokenChooser(std::span<const TokenChoice> choices,
                                                                 int64_t vocabulary) override {
    return Use([&] { return CudaTokenChooser::Create(device_, choices, vocabulary); });
  }

  absl::Status AddLogits(TokenChooser& chooser, Matrix logits) override {
    auto& of = static_cast<CudaTokenChooser&>(chooser);
    if (const std::vector<int64_t> rows = of.HostRows(logits.rows); !rows.empty()) {
      std::vector<float> host(rows.size() * static_cast<size_t>(logits.columns));
      const ConstMatrix placed(host.data(), std::ssize(rows), logits.columns);
      std::vector<Staging::ToHost> copies;
      for (size_t i = 0; i < rows.size(); ++i) {
        float* const to = host.data() + i * static_cast<size_t>(logits.columns);
        copies.push_back({to, logits.row(rows[i]), logits.columns * static_cast<int64_t>(sizeof(float))});
      }
      if (absl::Status status = Collect(std::move(copies)); !status.ok()) return status;
      of.AddOnHost(placed);
    }
    return Use([&] { return of.Add(logits); });
  }

  absl::StatusOr<std::vector<ChosenToken>> ChosenTokens(TokenChooser& chooser) override {
    auto& of = static_cast<CudaTokenChooser&>(chooser);
    std::vector<ChosenToken> chosen(static_cast<size_t>(of.choices()));
    const absl::Status status = Collect({{chosen.data(), of.chosen(), Bytes(std::span(chosen))}});
    if (!status.ok()) return status;
    of.TakeHost(chosen);
    return chosen;
  }

  absl::Status PairFeatures(ConstMatrix x0, ConstMatrix x1, Matrix y) override {
    return Run("pair features", [&] { return cuda::PairFeatures(device_->stream(), x0, x1, y); });
  }

  absl::StatusOr<std::unique_ptr<MembershipWeights>> PrepareMemberships(
      const MembershipParameters& parameters) override {
    draws_ = true;
    return Use([&] {
      const Device::Weights weights(*device_);
      return cuda::PrepareMemberships(device_, parameters);
    });
  }

  absl::Status ComputeMemberships(const MembershipWeights& weights, ConstMatrix q, ConstMatrix k,
                                  const Memberships& out) override {
    return Use([&] { return cuda::ComputeMemberships(*device_, weights, q, k, out); });
  }

  absl::StatusOr<std::unique_ptr<CancelFlag>> MakeCancelFlag() override { return cancel_flags_->Make(); }

  absl::StatusOr<std::unique_ptr<EdgeLedger>> MakeLedger(uint64_t edges) override {
    return NewLedger([&](uint64_t* to) { return device_->staging().Upload(&edges, sizeof(edges), to); });
  }

  absl::StatusOr<std::unique_ptr<EdgeLedger>> CopyLedger(const EdgeLedger& ledger) override {
    const uint64_t* from = static_cast<const CudaLedger&>(ledger).edges();
    return NewLedger([&](uint64_t* to) {
      return CudaStatus(cudaMemcpyAsync(to, from, sizeof(*to), cudaMemcpyDeviceToDevice, device_->stream()),
                        "copy of a ledger");
    });
  }

  absl::StatusOr<uint64_t> Remaining(const EdgeLedger& ledger) override {
    uint64_t edges = 0;
    const Staging::ToHost copy = {&edges, static_cast<const CudaLedger&>(ledger).edges(), sizeof(edges)};
    const absl::Status status = Use([&] { return device_->staging().Download({&copy, 1}); });
    if (!status.ok()) return status;
    return edges;
  }

  absl::Status Attend(const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                      std::span<EdgeCap> caps, Matrix out) override {
    return Use([&] { return attention_.Attend(inputs, problems, caps, out); });
  }

 private:
  // FAILED_PRECONDITION: attention needs the code of sm_90a on this GPU, and the module has other code for it.
  absl::Status CheckWideTiles() {
    if (device_->sm() != 90) return absl::OkStatus();
    absl::StatusOr<DeviceArray> array = Use([&] { return DeviceArray::Create(*device_, sizeof(bool)); });
    if (!array.ok()) return array.status();
    bool found = false;
    absl::Status status = Run("wgmma", [&] { return HasWideTiles(device_->stream(), array->as<bool>()); });
    if (status.ok()) status = Collect({{&found, array->data(), sizeof(found)}});
    if (!status.ok() || found) return status;
    return absl::FailedPreconditionError(
        absl::StrCat("the CUDA module has no code of sm_90a, which attention needs on ", device_->name(),
                     "; build it with 90a-real among CMAKE_CUDA_ARCHITECTURES, and leave CUDA_FORCE_PTX_JIT unset"));
  }

  absl::Status FeedForward(const LinearWeights& up, const LinearWeights& down, std::optional<Activation> gate,
                           ConstMatrix x, Matrix y, Phase phase) {
    return Use([&] {
      return phase == Phase::kDecode ? linears_->FeedForwardOfFew(up, down, gate, x, y)
                                     : linears_->FeedForward(up, down, gate, x, {.x = y});
    });
  }

  absl::Status Norm(const char* what, ConstMatrix x, const RowNorm& norm, int64_t columns, Matrix y) {
    const Matrix source(const_cast<float*>(x.data), x.rows, x.columns, x.stride);  // read only: nothing is added
    return Run(what,
               [&] { return cuda::Norm(device_->stream(), {}, source, norm, columns, RowsOf(y, device_->sm()), {}); });
  }

  template <typename T>
  static int64_t Bytes(std::span<T> values) {
    return static_cast<int64_t>(values.size_bytes());
  }

  static const absl::Status& StatusOf(const absl::Status& status) { return status; }
  template <typename T>
  static const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
    return result.status();
  }

  // Runs `body` with this device as the thread's, and remembers when the device is lost.
  template <typename Body>
  auto Use(const Body& body) -> decltype(body()) {
    const absl::Status used = device_->Use();
    Note(used);
    if (!used.ok()) return used;
    auto result = body();
    Note(StatusOf(result));
    return result;
  }

  void Note(const absl::Status& status) {
    if (!status.ok() && status.GetPayload(kDeviceLost).has_value()) lost_ = true;
  }

  absl::Status Collect(std::vector<Staging::ToHost> copies) {
    absl::Status status = Use([&] { return attention_.Collect(std::move(copies)); });
    if (!status.ok()) attention_.Forget();
    return status;
  }

  template <typename Call>
  absl::Status Run(const char* what, const Call& call) {
    return Use([&] { return CudaStatus(call(), what); });
  }

  // `add` puts arrays into the staging memory and returns what launches the kernel that reads them.
  template <typename Add>
  absl::Status Staged(const Add& add) {
    return Use([&] {
      const auto launch = add(device_->staging());
      const absl::Status status = device_->staging().Commit();
      return status.ok() ? CudaStatus(launch(), "kernel over rows") : status;
    });
  }

  template <typename Fill>
  absl::StatusOr<std::unique_ptr<EdgeLedger>> NewLedger(const Fill& fill) {
    return Use([&]() -> absl::StatusOr<std::unique_ptr<EdgeLedger>> {
      absl::StatusOr<DeviceArray> block = DeviceArray::Create(*device_, sizeof(uint64_t));
      if (!block.ok()) return block.status();
      absl::Status status = fill(block->as<uint64_t>());
      if (!status.ok()) return status;
      return std::make_unique<CudaLedger>(*std::move(block));
    });
  }

  const std::shared_ptr<Device> device_;
  const std::string name_;
  const bool bf16_;
  const std::unique_ptr<LinearProducts> linears_;
  std::shared_ptr<CancelFlags> cancel_flags_;
  Attention attention_;
  cudaEvent_t throttle_ = nullptr;                   // recorded by the last Throttle
  int64_t pass_floats_ = 0, generation_floats_ = 0;  // what Reserve took
  bool draws_ = false;                               // some model has memberships
  std::atomic<bool> lost_ = false;
};

absl::StatusOr<std::unique_ptr<Backend>> Create(const BackendOptions& options, int ordinal) {
  const bool bf16 = options.precision == "bf16";
  absl::StatusOr<std::shared_ptr<Device>> device = Device::Open(ordinal);
  if (!device.ok()) return device.status();
  if ((*device)->major() < 8) {
    return absl::UnavailableError(absl::StrCat("CUDA device ", ordinal, " (", (*device)->name(),
                                               ") has compute capability ", (*device)->major(), ".", (*device)->minor(),
                                               ", less than 8.0"));
  }
  absl::StatusOr<std::unique_ptr<LinearProducts>> linears = LinearProducts::Create(*device, bf16);
  if (!linears.ok()) return linears.status();
  auto backend = std::make_unique<CudaBackend>(*device, *std::move(linears), bf16);
  absl::Status status = backend->Start();
  if (!status.ok()) return status;
  return backend;
}

}  // namespace
}  // namespace edgewise::cuda

extern "C" __attribute__((visibility("default"))) void EdgewiseCreateCudaBackend(
    const edgewise::BackendOptions& options, int ordinal, absl::StatusOr<std::unique_ptr<edgewise::Backend>>* backend) {
  *backend = edgewise::cuda::Create(options, ordinal);
}
