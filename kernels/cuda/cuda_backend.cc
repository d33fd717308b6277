// The Backend of one GPU, and the function by which the server makes it (kernels/cuda_module.h).
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/backend.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/device/cancel_flags.h"
#include "kernels/cuda/device/device_array.h"
#include "kernels/cuda/device/runtime.h"
#include "kernels/cuda/ops/gemm.h"
#include "kernels/cuda/ops/linear.h"
#include "kernels/cuda/ops/memberships.h"
#include "kernels/cuda/ops/rows.h"
#include "kernels/cuda_module.h"

namespace edgewise::cuda {
namespace {

constexpr int64_t kRounding = 256 << 10;  // so much the sizes of a workspace's blocks may be rounded up together
// For the budgets of a full wave of very short texts: each is a block of its own.
constexpr int64_t kLedgerBytes = int64_t{8} << 20;
constexpr int32_t kCancelFlags = 16384;  // that kernels can see at a time, one word of device memory each

class CudaBackend : public Backend {
 public:
  CudaBackend(std::shared_ptr<Device> device, std::unique_ptr<LinearProducts> linears, bool bf16)
      : device_(std::move(device)),
        name_(absl::StrCat("cuda/sm_", device_->major(), device_->minor(), bf16 ? "/bf16" : "/fp32")),
        linears_(std::move(linears)),
        bf16_(bf16),
        staging_(*device_),
        attention_(*device_, staging_, bf16) {}

  ~CudaBackend() override {
    if (throttle_ != nullptr) cudaEventDestroy(throttle_);
  }

  absl::Status Start() {
    absl::StatusOr<std::shared_ptr<CancelFlags>> flags =
        Use([&] { return CancelFlags::Create(device_, kCancelFlags); });
    if (!flags.ok()) return flags.status();
    cancel_flags_ = *std::move(flags);
    return Run("event", [&] { return cudaEventCreateWithFlags(&throttle_, cudaEventDisableTiming); });
  }

  const std::string& device() const override { return name_; }
  bool lost() const override { return lost_; }

  int32_t HeadAlignment() const override { return kHeadAlignment; }

  absl::StatusOr<Buffer> Allocate(int64_t floats) override { return AllocateFrom(device_->memory(), floats); }
  absl::StatusOr<Buffer> AllocateIn(Workspace workspace, int64_t floats) override {
    return AllocateFrom(device_->memory(workspace), floats);
  }

  absl::Status Reserve(Workspace workspace, int64_t floats) override {
    return Use([&] {
      // Keys and values that are attended to as they are need nothing.
      const bool needed = workspace != Workspace::kAttention || bf16_;
      const int64_t bytes = workspace == Workspace::kAttention ? floats * 2 : floats * 4;
      absl::Status status = needed ? device_->Reserve(workspace, bytes + kRounding) : absl::OkStatus();
      if (status.ok()) status = device_->ReserveOthers(kLedgerBytes);
      if (status.ok()) status = staging_.Prepare();
      if (status.ok()) status = attention_.Prepare(draws_);
      return status.ok() ? linears_->Reserve() : status;
    });
  }

  absl::Status Upload(std::span<const float> host, float* device) override {
    return Use([&] {
      const absl::Status status = CopyAsync(device, host.data(), Bytes(host), cudaMemcpyHostToDevice, *device_);
      return status.ok() ? device_->Synchronize() : status;  // `host` may go
    });
  }

  absl::Status Download(const float* device, std::span<float> host) override {
    const absl::Status status =
        Use([&] { return CopyAsync(host.data(), device, Bytes(host), cudaMemcpyDeviceToHost, *device_); });
    return status.ok() ? Synchronize() : status;
  }

  absl::Status Synchronize() override {
    const absl::Status status = Use([&] { return device_->Synchronize(); });
    if (status.ok()) return attention_.Collect();
    attention_.Forget();
    return status;
  }

  absl::Status Throttle() override {
    // The wait ends at once the first time.
    const absl::Status status = Run("wait for an event", [&] { return cudaEventSynchronize(throttle_); });
    return status.ok() ? Run("event record", [&] { return cudaEventRecord(throttle_, device_->stream()); }) : status;
  }

  absl::StatusOr<std::unique_ptr<LinearWeights>> PrepareLinear(std::span<const float> weight,
                                                               std::span<const float> bias, int64_t out, int64_t in,
                                                               Activation activation) override {
    return Use([&] { return linears_->Prepare(weight, bias, out, in, activation); });
  }

  absl::Status Linear(const LinearWeights& weights, ConstMatrix x, Matrix y, bool accumulate, Phase phase) override {
    return Use([&] { return linears_->Run(weights, x, y, accumulate, phase); });
  }

  absl::Status FeedForward(const LinearWeights& up, const LinearWeights& down, ConstMatrix x, Matrix y,
                           Phase phase) override {
    return Use([&] { return linears_->FeedForward(up, down, x, y, phase); });
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
    return Run("layer norm", [&] { return cuda::LayerNorm(device_->stream(), x, weight, bias, epsilon, y); });
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

  absl::Status PairFeatures(ConstMatrix x0, ConstMatrix x1, Matrix y) override {
    return Run("pair features", [&] { return cuda::PairFeatures(device_->stream(), x0, x1, y); });
  }

  absl::StatusOr<std::unique_ptr<MembershipWeights>> PrepareMemberships(
      const MembershipParameters& parameters) override {
    draws_ = true;
    return Use([&] { return cuda::PrepareMemberships(device_, parameters); });
  }

  absl::Status ComputeMemberships(const MembershipWeights& weights, ConstMatrix q, ConstMatrix k,
                                  const Memberships& out) override {
    return Use([&] { return cuda::ComputeMemberships(*device_, weights, q, k, out); });
  }

  absl::StatusOr<std::unique_ptr<CancelFlag>> MakeCancelFlag() override { return cancel_flags_->Make(); }

  absl::StatusOr<std::unique_ptr<EdgeLedger>> MakeLedger(uint64_t edges) override {
    return NewLedger([&](uint64_t* to) {
      const uint64_t* staged = staging_.Add(std::span<const uint64_t>(&edges, 1));
      const absl::Status status = staging_.Commit();
      return status.ok() ? CopyAsync(to, staged, sizeof(edges), cudaMemcpyDeviceToDevice, *device_) : status;
    });
  }

  absl::StatusOr<std::unique_ptr<EdgeLedger>> CopyLedger(const EdgeLedger& ledger) override {
    const uint64_t* from = static_cast<const CudaLedger&>(ledger).edges();
    return NewLedger(
        [&](uint64_t* to) { return CopyAsync(to, from, sizeof(*to), cudaMemcpyDeviceToDevice, *device_); });
  }

  absl::StatusOr<uint64_t> Remaining(const EdgeLedger& ledger) override {
    uint64_t edges = 0;
    const uint64_t* from = static_cast<const CudaLedger&>(ledger).edges();
    absl::Status status = Use([&] { return CopyAsync(&edges, from, sizeof(edges), cudaMemcpyDeviceToHost, *device_); });
    if (status.ok()) status = Use([&] { return device_->Synchronize(); });
    if (!status.ok()) return status;
    return edges;
  }

  absl::Status Attend(const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                      std::span<EdgeCap> caps, Matrix out) override {
    return Use([&] { return attention_.Attend(inputs, problems, caps, out); });
  }

 private:
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

  template <typename Call>
  absl::Status Run(const char* what, const Call& call) {
    return Use([&] { return CudaStatus(call(), what); });
  }

  // `add` puts arrays into the staging memory and returns what launches the kernel that reads them.
  template <typename Add>
  absl::Status Staged(const Add& add) {
    return Use([&] {
      const auto launch = add(staging_);
      absl::Status status = staging_.Commit();
      return status.ok() ? CudaStatus(launch(), "kernel over rows") : status;
    });
  }

  absl::StatusOr<Buffer> AllocateFrom(MemoryCache& cache, int64_t floats) {
    absl::StatusOr<void*> memory =
        Use([&] { return device_->Allocate(floats * static_cast<int64_t>(sizeof(float)), cache); });
    if (!memory.ok()) return memory.status();
    return Buffer(static_cast<float*>(*memory), floats, [device = device_, &cache](float* data) {
      if (device->Use().ok()) cache.Give(data);
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
  const std::unique_ptr<LinearProducts> linears_;
  const bool bf16_;
  std::shared_ptr<CancelFlags> cancel_flags_;  // outlives the kernels that attention_ waits for
  Staging staging_;
  Attention attention_;
  cudaEvent_t throttle_ = nullptr;  // recorded by the last Throttle
  bool draws_ = false;              // some weights are memberships
  std::atomic<bool> lost_ = false;
};

absl::StatusOr<std::unique_ptr<Backend>> Create(const BackendOptions& options, int ordinal) {
  const bool bf16 = options.precision == "bf16";
  absl::StatusOr<std::shared_ptr<Device>> device = Device::Open(ordinal);
  if (!device.ok()) return device.status();
  if ((*device)->major() < 8) {
    return absl::UnavailableError(absl::StrCat("CUDA device ", ordinal, " (", (*device)->name(),
                                               ") has compute capability ", (*device)->major(), ".", (*device)->minor(),
                                               "; 8.0 or more is needed"));
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
