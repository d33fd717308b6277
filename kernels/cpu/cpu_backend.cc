#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/cores.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/ops/linear.h"
#include "kernels/cpu/ops/memberships.h"
#include "kernels/cpu/runtime/buffer_pool.h"
#include "kernels/cpu/runtime/memory.h"
#include "kernels/cpu/runtime/thread_pool.h"
#include "kernels/cpu/simd/isa.h"
#include "kernels/cpu/simd/kernels.h"

namespace edgewise {
namespace {

constexpr int64_t kRowsPerItem = 64;  // of the row-wise loops
constexpr int kMaxThreads = 1024;

struct CpuLedger : EdgeLedger {
  explicit CpuLedger(uint64_t edges) : remaining(edges) {}
  uint64_t remaining;
};

// As the device says it, which stands for bytes: tiles change those of bfloat16 alone.
const char* DeviceIsa(Isa isa, WeightFormat format) {
  return IsaName(isa == Isa::kAmx && format != WeightFormat::kBfloat16 ? Isa::kAvx512 : isa);
}

class CpuBackend : public Backend {
 public:
  CpuBackend(Isa isa, int num_threads, WeightFormat format, const std::string& weights)
      : kernels_(KernelsFor(isa)),
        weights_(format),
        pool_(num_threads),
        scratch_(num_threads),
        device_(
            absl::StrCat("cpu/", DeviceIsa(isa, format), "/", format == WeightFormat::kFloat32 ? "fp32" : weights)) {}

  const std::string& device() const override { return device_; }

  uint64_t WorkingBytes() const override { return edgewise::WorkingBytes(); }

  void ReleaseUnused() override { buffers_.Age(); }

  bool PreparesBeside() const override { return true; }

  absl::StatusOr<Buffer> Allocate(int64_t floats) override { return buffers_.Allocate(floats); }

  absl::Status Reserve(int64_t pass_floats, int64_t) override {
    buffers_.Keep(pass_floats);
    return absl::OkStatus();
  }

  absl::Status Upload(std::span<const float> host, float* device) override {
    if (!host.empty()) std::memcpy(device, host.data(), host.size_bytes());
    return absl::OkStatus();
  }

  absl::Status Download(const float* device, std::span<float> host) override {
    pool_.Rest();  // results are taken
    if (!host.empty()) std::memcpy(host.data(), device, host.size_bytes());
    return absl::OkStatus();
  }

  absl::Status Synchronize() override { return absl::OkStatus(); }

  absl::Status Throttle() override { return absl::OkStatus(); }

  absl::StatusOr<std::unique_ptr<LinearWeights>> PrepareLinear(std::span<const float> weight,
                                                               std::span<const float> bias, int64_t out, int64_t in,
                                                               Activation activation) override {
    return CpuLinear::Create(kernels_, weights_, weight, bias, out, in, activation);
  }

  absl::Status Linear(const LinearWeights& weights, ConstMatrix x, Matrix y, bool accumulate, Phase) override {
    static_cast<const CpuLinear&>(weights).Run(pool_, x, y, accumulate, scratch_);
    return absl::OkStatus();
  }

  absl::Status FeedForward(const LinearWeights& up, const LinearWeights& down, ConstMatrix x, Matrix y,
                           Phase) override {
    CpuFeedForward(pool_, static_cast<const CpuLinear&>(up), static_cast<const CpuLinear&>(down), std::nullopt, x, y,
                   scratch_);
    return absl::OkStatus();
  }

  absl::Status GatedFeedForward(const LinearWeights& gate_up, const LinearWeights& down, Activation activation,
                                ConstMatrix x, Matrix y, Phase) override {
    CpuFeedForward(pool_, static_cast<const CpuLinear&>(gate_up), static_cast<const CpuLinear&>(down), activation, x, y,
                   scratch_);
    return absl::OkStatus();
  }

  absl::Status Embed(ConstMatrix word, ConstMatrix position, std::span<const int32_t> token_ids,
                     std::span<const int32_t> positions, Matrix y) override {
    ForRows(y, [&](int64_t r) {
      const float* token = word.row(token_ids[r]);
      float* out = y.row(r);
      if (position.data == nullptr) {
        std::copy_n(token, y.columns, out);
        return;
      }
      const float* place = position.row(positions[r]);
      for (int64_t c = 0; c < y.columns; ++c) out[c] = token[c] + place[c];
    });
    return absl::OkStatus();
  }

  absl::Status LayerNorm(ConstMatrix x, const float* weight, const float* bias, float epsilon, Matrix y) override {
    ForRows(y, [&](int64_t r) { kernels_.layer_norm(x.row(r), weight, bias, epsilon, x.columns, y.row(r)); });
    return absl::OkStatus();
  }

  absl::Status RmsNorm(ConstMatrix x, const float* weight, float epsilon, int64_t group, Matrix y) override {
    ForRows(y, [&](int64_t r) {
      for (int64_t c = 0; c < x.columns; c += group) {
        kernels_.rms_norm(x.row(r) + c, weight, epsilon, group, y.row(r) + c);
      }
    });
    return absl::OkStatus();
  }

  absl::Status Rotate(Matrix x, ConstMatrix table, std::span<const int32_t> positions) override {
    ForRows(x, [&](int64_t r) {
      for (int64_t c = 0; c < x.columns; c += table.columns) {
        kernels_.rotate(table.row(positions[r]), table.columns / 2, x.row(r) + c);
      }
    });
    return absl::OkStatus();
  }

  absl::Status StoreInPages(ConstMatrix x, const KvPage& shape, std::span<const PagePlace> places) override {
    for (const auto& [page, token, row] : places) {
      for (int32_t part = 0; part < 2 * shape.heads; ++part) {
        std::copy_n(x.row(row) + int64_t{part} * shape.head_dim, shape.head_dim,
                    page + shape.Keys(part) + int64_t{token} * shape.head_dim);
      }
    }
    return absl::OkStatus();
  }

  absl::Status GatherRows(ConstMatrix x, std::span<const int64_t> rows, Matrix y) override {
    for (size_t r = 0; r < rows.size(); ++r) std::copy_n(x.row(rows[r]), x.columns, y.row(static_cast<int64_t>(r)));
    return absl::OkStatus();
  }

  absl::Status PoolMean(ConstMatrix x, std::span<const int64_t> offsets, std::span<const float> divisors,
                        Matrix y) override {
    pool_.For(y.rows, x.rows * x.columns, [&](int64_t s, int) {
      constexpr int64_t kColumns = 64;  // at a time
      for (int64_t first = 0; first < x.columns; first += kColumns) {
        const int64_t columns = std::min(kColumns, x.columns - first);
        double sum[kColumns] = {};
        for (int64_t r = offsets[s]; r < offsets[s + 1]; ++r) {
          for (int64_t c = 0; c < columns; ++c) sum[c] += x.row(r)[first + c];
        }
        for (int64_t c = 0; c < columns; ++c) y.row(s)[first + c] = static_cast<float>(sum[c] / divisors[s]);
      }
    });
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<TokenChooser>> MakeTokenChooser(std::span<const TokenChoice> choices,
                                                                 int64_t vocabulary) override {
    return std::make_unique<HostTokenChooser>(choices, vocabulary);
  }
  absl::Status AddLogits(TokenChooser& chooser, Matrix logits) override {
    static_cast<HostTokenChooser&>(chooser).Add(logits);
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<ChosenToken>> ChosenTokens(TokenChooser& chooser) override {
    return static_cast<HostTokenChooser&>(chooser).chosen();
  }

  absl::Status PairFeatures(ConstMatrix x0, ConstMatrix x1, Matrix y) override {
    const int64_t n = x0.columns;
    for (int64_t r = 0; r < y.rows; ++r) {
      for (int64_t c = 0; c < n; ++c) {
        const float a = x0.row(r)[c], b = x1.row(r)[c];
        float* out = y.row(r) + c;
        out[0] = a;
        out[n] = b;
        out[2 * n] = a * b;
        out[3 * n] = a - b;
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<MembershipWeights>> PrepareMemberships(
      const MembershipParameters& parameters) override {
    return std::make_unique<CpuMembershipWeights>(kernels_, parameters);
  }

  absl::Status ComputeMemberships(const MembershipWeights& weights, ConstMatrix q, ConstMatrix k,
                                  const Memberships& out) override {
    static_cast<const CpuMembershipWeights&>(weights).Run(pool_, scratch_.wide, q, k, out);
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<EdgeLedger>> MakeLedger(uint64_t edges) override {
    return std::make_unique<CpuLedger>(edges);
  }

  absl::StatusOr<std::unique_ptr<EdgeLedger>> CopyLedger(const EdgeLedger& ledger) override {
    return std::make_unique<CpuLedger>(static_cast<const CpuLedger&>(ledger));
  }

  absl::StatusOr<uint64_t> Remaining(const EdgeLedger& ledger) override {
    return static_cast<const CpuLedger&>(ledger).remaining;
  }

  absl::Status Attend(const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                      std::span<EdgeCap> caps, Matrix out) override {
    return Caught(attention_scratch_, [&] {
      Allow(caps);
      CpuAttention(kernels_, pool_, attention_scratch_, inputs, problems, caps, out).Next(1.0);
      Charge(problems, caps);
    });
  }

  absl::StatusOr<std::unique_ptr<AttentionParts>> AttendInParts(const AttentionInputs& inputs,
                                                                std::span<const AttentionProblem> problems,
                                                                std::span<EdgeCap> caps, Matrix out) override {
    std::unique_ptr<Parts> parts;
    const absl::Status status = Caught(attention_scratch_, [&] {
      Allow(caps);
      parts = std::make_unique<Parts>(kernels_, pool_, inputs, problems, caps, out);
    });
    if (!status.ok()) return status;
    return parts;
  }

 private:
  // Has memory of its own, since other calls come between its parts.
  struct Parts : AttentionParts {
    Parts(const CpuKernels& kernels, ThreadPool& pool, const AttentionInputs& inputs,
          std::span<const AttentionProblem> problems, std::span<EdgeCap> caps, Matrix out)
        : problems(problems), caps(caps), attention(kernels, pool, scratch, inputs, problems, caps, out) {}
    absl::StatusOr<bool> Next(double share) override {
      bool done = false;
      const absl::Status status = Caught(scratch, [&] { done = attention.Next(share); });
      if (!status.ok()) return status;
      if (done) Charge(problems, caps);
      return done;
    }

    AttentionScratch scratch;
    const std::span<const AttentionProblem> problems;
    const std::span<EdgeCap> caps;
    CpuAttention attention;
  };

  // RESOURCE_EXHAUSTED where `attend` throws std::bad_alloc.
  template <typename Attend>
  static absl::Status Caught(AttentionScratch& scratch, const Attend& attend) {
    try {
      attend();
    } catch (const std::bad_alloc&) {
      scratch = AttentionScratch();
      return absl::ResourceExhaustedError("attention: out of memory");
    }
    return absl::OkStatus();
  }

  // The ledgers' allowances for the call, which loses its edges from them.
  static void Allow(std::span<EdgeCap> caps) {
    for (EdgeCap& cap : caps) {
      if (cap.ledger == nullptr) continue;
      const uint64_t remaining = static_cast<const CpuLedger&>(*cap.ledger).remaining;
      cap.max_edges = std::min(cap.max_edges, LayerAllowance(remaining, cap.share));
    }
  }
  static void Charge(std::span<const AttentionProblem> problems, std::span<const EdgeCap> caps) {
    for (const AttentionProblem& problem : problems) {
      if (problem.cap < 0 || caps[problem.cap].ledger == nullptr) continue;
      auto& ledger = static_cast<CpuLedger&>(*caps[problem.cap].ledger);
      for (const HeadReport& head : problem.report->heads) ledger.remaining -= head.edges;
    }
  }

  // body(row) for every row of y, a few operations for each number of it.
  template <typename Body>
  void ForRows(const Matrix& y, const Body& body) {
    pool_.For((y.rows + kRowsPerItem - 1) / kRowsPerItem, y.rows * y.columns / 2, [&](int64_t item, int) {
      const int64_t end = std::min(y.rows, (item + 1) * kRowsPerItem);
      for (int64_t r = item * kRowsPerItem; r < end; ++r) body(r);
    });
  }

  const CpuKernels& kernels_;
  const WeightFormat weights_;
  BufferPool buffers_;
  ThreadPool pool_;
  AttentionScratch attention_scratch_;
  LinearScratch scratch_;  // of the operation that runs
  const std::string device_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const BackendOptions& options) {
  if (options.precision != "fp32") {
    return absl::InvalidArgumentError(
        absl::StrCat("precision is \"", options.precision, "\"; the CPU backend of this build serves fp32"));
  }
  if (options.num_threads < 0 || options.num_threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads is ", options.num_threads, "; allowed: 0 (one per core) to ", kMaxThreads));
  }
  absl::StatusOr<Isa> isa = SelectIsa(options.isa);
  if (!isa.ok()) return isa.status();
  absl::StatusOr<WeightFormat> format = ParseWeightFormat(options.weights);
  if (!format.ok()) return format.status();
  const int threads = options.num_threads > 0 ? options.num_threads : std::min(UsableCores(), kMaxThreads);
  return std::make_unique<CpuBackend>(*isa, threads, *format, options.weights);
}

}  // namespace edgewise
