// The operations that a model needs, on one device.
#ifndef EDGEWISE_KERNELS_BACKEND_H_
#define EDGEWISE_KERNELS_BACKEND_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/decoder.h"
#include "kernels/device_memory.h"
#include "kernels/kv_page.h"
#include "kernels/phase.h"
#include "kernels/row_norm.h"
#include "kernels/tensor.h"
#include "kernels/token_choice.h"

namespace edgewise {

// y = activation(x W^T + b), W in a layout of the backend's choice. Made by Backend::PrepareLinear; immutable.
class LinearWeights {
 public:
  virtual ~LinearWeights() = default;
};

// Where the output of a sublayer goes: x += output; then the norm of x, by rows, to `y` and to `operand`.
struct Residual {
  Matrix x;
  RowNorm norm;
  Matrix y;        // may be x; data null: not wanted
  Matrix operand;  // in Backend::OperandForm; data null: not wanted
};

// The membership network of one layer in folded form; made by Backend::PrepareMemberships; immutable.
class MembershipWeights {
 public:
  virtual ~MembershipWeights() = default;
  virtual int32_t rank() const = 0;  // of x and y
};

// Host data of one layer's membership network (docs/model-format.md). Row-major.
struct MembershipParameters {
  int32_t num_heads = 0, head_dim = 0, num_clusters = 0;
  std::span<const float> weight0, bias0;  // [d, d], [d]
  std::span<const float> weight1, bias1;  // [d, d], [d]
  std::span<const float> clusters;        // [heads, k, d]
  std::span<const float> block_matrix;    // [heads, k, k], or empty: softmax over all entries of C C^T
};

// Attention that Backend::AttendInParts began. All that its call names outlives it; so does the backend.
class AttentionParts {
 public:
  virtual ~AttentionParts() = default;
  // Computes the next blocks of query rows, about `share` of the work (in (0, 1]). True: that was the last part, and
  // all is as after Backend::Attend. A cap's threshold is found, in parts too, before the first row attends, and
  // expected edges are counted, in parts too, behind the last. Errors: those of Attend.
  virtual absl::StatusOr<bool> Next(double share) = 0;
};

struct BackendOptions {
  std::string device = "cpu";       // auto | cpu | cuda[:N]
  int num_threads = 0;              // CPU: 0 means one per core that the process may use
  std::string isa = "auto";         // CPU: auto | amx | avx512 | avx2 | generic
  std::string precision = "fp32";   // or bf16, on a GPU: keys, values and weights rounded, sums in float32
  std::string weights = "float32";  // CPU: or bfloat16 | int8: how PrepareLinear stores them (docs/weights.md)
};

// Matrices are in this backend's memory, spans in host memory. Work is enqueued in order and may still run when a call
// returns; Download and Synchronize wait for it. One thread at a time per backend, but see PreparesBeside; threads may
// share prepared weights.
// Errors: RESOURCE_EXHAUSTED out of memory, INTERNAL a kernel failed.
// All of it is inline: a library of kernels that is loaded at run time has no kernels/devices/make_backend.cc.
class Backend {
 public:
  virtual ~Backend() = default;

  // Backend, instruction set and precision, as in answers: "cpu/avx512/fp32"; or, in place of the precision, the
  // weights where they are not float32: "cpu/avx512/int8". "amx" is in it only where tiles change bytes.
  virtual const std::string& device() const = 0;

  // Whether the device failed in a way that this process cannot recover from. Any thread.
  virtual bool lost() const { return false; }

  // Bytes of the host that passes and generations of this process hold or have left for the next, weights apart. Any
  // thread.
  virtual uint64_t WorkingBytes() const { return 0; }

  // None: the device's memory is the host's, or the device is lost. Any thread.
  virtual std::optional<DeviceMemory> Memory() const { return std::nullopt; }

  // Gives the system what is left for the next pass and was not needed since the call before the last. Any thread.
  virtual void ReleaseUnused() {}

  // Attend takes heads whose number of columns is a multiple of this; zeros may fill up a head.
  virtual int32_t HeadAlignment() const { return 1; }

  // Whether Allocate, Reserve, Upload, PrepareLinear and PrepareMemberships may be called, on memory and weights of the
  // caller's own, while another thread uses the backend.
  virtual bool PreparesBeside() const { return false; }

  virtual absl::StatusOr<Buffer> Allocate(int64_t floats) = 0;
  // The same, for a model's weights.
  virtual absl::StatusOr<Buffer> AllocateWeights(int64_t floats) { return Allocate(floats); }
  // Takes from the system, once and beside the weights, the memory of a pass and of the generations that run beside it;
  // each is the most that any call asked for. A GPU keeps the memory for later calls of Allocate and adds what its own
  // operations need with the weights prepared so far. The CPU takes nothing yet, but keeps what passes free, up to
  // `pass_floats`.
  virtual absl::Status Reserve(int64_t pass_floats, int64_t generation_floats) {
    static_cast<void>(pass_floats);
    static_cast<void>(generation_floats);
    return absl::OkStatus();
  }
  virtual absl::Status Upload(std::span<const float> host, float* device) = 0;
  virtual absl::Status Download(const float* device, std::span<float> host) = 0;
  virtual absl::Status Synchronize() = 0;
  // Keeps the host from running far ahead: waits for all work that was enqueued before the previous call of Throttle
  // (the first call returns at once). Fills no report. Errors as Synchronize.
  virtual absl::Status Throttle() = 0;

  // weight [out, in], bias [out] or empty.
  virtual absl::StatusOr<std::unique_ptr<LinearWeights>> PrepareLinear(std::span<const float> weight,
                                                                       std::span<const float> bias, int64_t out,
                                                                       int64_t in, Activation activation) = 0;
  // y = activation(x W^T + b), or y += x W^T + b with `accumulate`. x [rows, in], y [rows, out]; without `accumulate` y
  // may be in OperandForm. A row of y depends only on the same row of x, bit for bit.
  virtual absl::Status Linear(const LinearWeights& weights, ConstMatrix x, Matrix y, bool accumulate,
                              Phase phase = Phase::kPrefill) = 0;

  // y += down(up(x)) with the bytes of two calls of Linear; the wide rows in between are scratch. x [rows, in of up],
  // y [rows, out of down]; y may be x.
  virtual absl::Status FeedForward(const LinearWeights& up, const LinearWeights& down, ConstMatrix x, Matrix y,
                                   Phase phase = Phase::kPrefill) = 0;

  // y += down(activation(a) * b), where the halves of a row of gate_up(x) are a and b. x [rows, in of gate_up], y
  // [rows, out of down]; y may be x. gate_up was prepared without an activation, and its `out` is twice the `in` of
  // down.
  virtual absl::Status GatedFeedForward(const LinearWeights& gate_up, const LinearWeights& down, Activation activation,
                                        ConstMatrix x, Matrix y, Phase phase = Phase::kPrefill) = 0;

  // The form in which an input of products is best kept between two operations of phase prefill. Where it is not
  // float32, x of Linear and AddLinear may have it, and x and `y` of operations as they say so; a row has the bytes
  // that it has when it comes as float32.
  virtual Form OperandForm(int64_t /*columns*/) const { return Form::kFloat32; }
  // Floats of a row of this many columns.
  virtual int64_t RowFloats(Form /*form*/, int64_t columns) const { return columns; }
  // Linear onto a residual stream.
  virtual absl::Status AddLinear(const LinearWeights& weights, ConstMatrix x, const Residual& to,
                                 Phase phase = Phase::kPrefill) {
    absl::Status status = Linear(weights, x, to.x, true, phase);
    return status.ok() ? NormRows(to) : status;
  }
  // FeedForward, or with `gate` GatedFeedForward, onto a residual stream.
  virtual absl::Status AddFeedForward(const LinearWeights& up, const LinearWeights& down,
                                      std::optional<Activation> gate, ConstMatrix x, const Residual& to,
                                      Phase phase = Phase::kPrefill) {
    absl::Status status =
        gate.has_value() ? GatedFeedForward(up, down, *gate, x, to.x, phase) : FeedForward(up, down, x, to.x, phase);
    return status.ok() ? NormRows(to) : status;
  }
  // The norm alone.
  virtual absl::Status NormRows(const Residual& of) {
    if (of.norm.weight == nullptr) return absl::OkStatus();
    return of.norm.bias == nullptr ? RmsNorm(of.x, of.norm.weight, of.norm.epsilon, of.x.columns, of.y)
                                   : LayerNorm(of.x, of.norm.weight, of.norm.bias, of.norm.epsilon, of.y);
  }

  // y[r] = word[token_ids[r]] + position[positions[r]]; position may be empty. y [rows, hidden].
  virtual absl::Status Embed(ConstMatrix word, ConstMatrix position, std::span<const int32_t> token_ids,
                             std::span<const int32_t> positions, Matrix y) = 0;
  // y = (x - mean) / sqrt(variance + epsilon) * weight + bias, per row; biased variance. y may be x.
  virtual absl::Status LayerNorm(ConstMatrix x, const float* weight, const float* bias, float epsilon, Matrix y) = 0;
  // y = x / sqrt(mean of x^2 + epsilon) * weight, for each run of `group` columns of a row by itself: the row, or a
  // head. weight [group]; group divides x.columns; y may be x.
  virtual absl::Status RmsNorm(ConstMatrix x, const float* weight, float epsilon, int64_t group, Matrix y) = 0;
  // Rotates each run of table.columns columns of row r, in place: with the first half a and the second half b, and row
  // positions[r] of the table as cosines c and sines s, side by side, (a, b) = (a c - b s, b c + a s). positions
  // [x.rows], host.
  virtual absl::Status Rotate(Matrix x, ConstMatrix table, std::span<const int32_t> positions) = 0;
  // The floats that `numbers` numbers of a page (kernels/kv_page.h) take: fewer where the precision rounds keys and
  // values anyhow.
  virtual int64_t CacheFloats(int64_t numbers) const { return numbers; }
  // Writes rows of keys and values to pages of the shape, each of CacheFloats(shape.floats()) floats. x [.., 2 *
  // shape.heads * shape.head_dim]: the keys of each head, then the values, in a form of FormsOfAttention.
  virtual absl::Status StoreInPages(ConstMatrix x, const KvPage& shape, std::span<const PagePlace> places) = 0;
  // y[i] = x[rows[i]].
  virtual absl::Status GatherRows(ConstMatrix x, std::span<const int64_t> rows, Matrix y) = 0;
  // y[s] = sum of rows offsets[s]..offsets[s+1]-1 of x, divided by divisors[s]. offsets [sequences + 1].
  virtual absl::Status PoolMean(ConstMatrix x, std::span<const int64_t> offsets, std::span<const float> divisors,
                                Matrix y) = 0;
  // A decoder for calls of Decode, which the backend outlives; null where it does not take its shape, and runs such
  // layers operation by operation.
  virtual absl::StatusOr<std::unique_ptr<PreparedDecoder>> PrepareDecoder(const Decoder& /*decoder*/) {
    return nullptr;
  }
  // Runs at most kMostDecodedRows tokens through all layers: their keys and values are stored, then they attend. logits
  // [rows that predict, vocabulary], in the order of rows. A row's bytes depend on its own text alone; the order of its
  // sums is that of Decode, not of the operations one by one.
  virtual absl::Status Decode(PreparedDecoder& /*decoder*/, std::span<const DecodedRow> /*rows*/, Matrix /*logits*/) {
    return NotHere("step of a decoder");
  }
  // Chooses a token for each of `choices`. The logits [.., vocabulary] of their samples follow each other, in the order
  // of choices, and may come in any number of calls of AddLogits, which may change them. ChosenTokens waits. A choice
  // depends on its own rows alone, bit for bit, and on the CPU is ChooseToken's; a GPU sums weights as multiples of
  // 2^-40 of the largest. Rows of choices with penalties, min_p or alternatives are copied to the host, which chooses
  // where there are penalties or a min_p.
  virtual absl::StatusOr<std::unique_ptr<TokenChooser>> MakeTokenChooser(std::span<const TokenChoice> choices,
                                                                         int64_t vocabulary) = 0;
  virtual absl::Status AddLogits(TokenChooser& chooser, Matrix logits) = 0;
  virtual absl::StatusOr<std::vector<ChosenToken>> ChosenTokens(TokenChooser& chooser) = 0;
  // y = (x0, x1, x0 * x1, x0 - x1), side by side. x0, x1 [rows, hidden], y [rows, 4 * hidden].
  virtual absl::Status PairFeatures(ConstMatrix x0, ConstMatrix x1, Matrix y) = 0;

  virtual absl::StatusOr<std::unique_ptr<MembershipWeights>> PrepareMemberships(
      const MembershipParameters& parameters) = 0;
  // Memberships of queries and keys. q, k [rows, heads * head_dim]. `out` points into this backend's memory; its arrays
  // have weights.rank(), and heads that lie out.rows rows apart, which may be more than those of q and k.
  virtual absl::Status ComputeMemberships(const MembershipWeights& weights, ConstMatrix q, ConstMatrix k,
                                          const Memberships& out) = 0;

  // A flag for attention problems. It must outlive the work that names it, and be destroyed before the backend.
  virtual absl::StatusOr<std::unique_ptr<CancelFlag>> MakeCancelFlag() { return std::make_unique<CancelFlag>(); }

  // The edges that a budget leaves over the layers of one sample. Remaining waits for enqueued work.
  virtual absl::StatusOr<std::unique_ptr<EdgeLedger>> MakeLedger(uint64_t edges) = 0;
  virtual absl::StatusOr<std::unique_ptr<EdgeLedger>> CopyLedger(const EdgeLedger& ledger) = 0;
  virtual absl::StatusOr<uint64_t> Remaining(const EdgeLedger& ledger) = 0;

  // The forms in which Attend takes queries, keys and values, beside float32 and with the results that they have as
  // float32, but for reports with a graph; and in which it can give an output of this many columns to products.
  struct AttentionForms {
    Form inputs = Form::kFloat32, out = Form::kFloat32;
  };
  virtual AttentionForms FormsOfAttention(int64_t /*columns*/) const { return {}; }
  // softmax over each query's edges, times v. A query without edges gets zeros, a query whose scores overflow float32
  // gets NaN. out [.., heads * value_dim]. Reports and EdgeCap::capped are filled once Synchronize or Download returns;
  // they and the ledgers must live until then. All other memory that problems and caps point to is read before the call
  // returns. A report that wants a graph makes the call wait.
  virtual absl::Status Attend(const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                              std::span<EdgeCap> caps, Matrix out) = 0;
  // The same, with the same bytes, but the caller may do other work on this backend between the parts. Null: the work
  // has been enqueued as a whole, as by Attend.
  virtual absl::StatusOr<std::unique_ptr<AttentionParts>> AttendInParts(const AttentionInputs& inputs,
                                                                        std::span<const AttentionProblem> problems,
                                                                        std::span<EdgeCap> caps, Matrix out) {
    if (absl::Status status = Attend(inputs, problems, caps, out); !status.ok()) return status;
    return nullptr;
  }

 private:
  absl::Status NotHere(const char* operation) const {
    return absl::UnimplementedError(absl::StrCat(device(), " has no ", operation, "; use --device=cpu"));
  }
};

// Device auto is the first GPU, or the CPU where there is none; `why_cpu` then gets the reason. Weights other than
// float32 make it the CPU, without one. INVALID_ARGUMENT: unknown device, instruction set, precision or weights;
// UNIMPLEMENTED: not in this build, or weights that a GPU does not have; UNAVAILABLE: not on this machine.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options, std::string* why_cpu = nullptr);

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_BACKEND_H_
