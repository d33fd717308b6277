// A backend that tells nothing before it must, as one on another device may: for tests of what reads reports.
#ifndef EDGEWISE_TESTS_MODEL_DEFERRED_BACKEND_H_
#define EDGEWISE_TESTS_MODEL_DEFERRED_BACKEND_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/backend.h"

namespace edgewise::testing {

// Does at once what `inner` does, but keeps reports and what was capped to itself until Synchronize, Download,
// Remaining or a report with a graph; before that they hold absurd values. Then they must still be as it left them, and
// the ledgers and flags alive, or the process fails.
class DeferredBackend : public Backend {
 public:
  explicit DeferredBackend(std::unique_ptr<Backend> inner);
  ~DeferredBackend() override;

  // Reports that are held back, and calls of Throttle.
  int64_t pending() const { return static_cast<int64_t>(reports_.size()); }
  int64_t throttles() const { return throttles_; }
  // The call of Attend after so many more fails when it has been done; -1: none.
  void FailAfter(int64_t calls) { fail_after_ = calls; }

  const std::string& device() const override { return inner_->device(); }
  int32_t HeadAlignment() const override { return inner_->HeadAlignment(); }
  absl::StatusOr<Buffer> Allocate(int64_t floats) override { return inner_->Allocate(floats); }
  absl::Status Upload(std::span<const float> host, float* device) override { return inner_->Upload(host, device); }
  absl::Status Download(const float* device, std::span<float> host) override;
  absl::Status Synchronize() override;
  absl::Status Throttle() override;
  absl::StatusOr<std::unique_ptr<LinearWeights>> PrepareLinear(std::span<const float> weight,
                                                               std::span<const float> bias, int64_t out, int64_t in,
                                                               Activation activation) override {
    return inner_->PrepareLinear(weight, bias, out, in, activation);
  }
  absl::Status Linear(const LinearWeights& weights, ConstMatrix x, Matrix y, bool accumulate, Phase phase) override {
    return inner_->Linear(weights, x, y, accumulate, phase);
  }
  absl::Status FeedForward(const LinearWeights& up, const LinearWeights& down, ConstMatrix x, Matrix y,
                           Phase phase) override {
    return inner_->FeedForward(up, down, x, y, phase);
  }
  absl::Status Embed(ConstMatrix word, ConstMatrix position, std::span<const int32_t> token_ids,
                     std::span<const int32_t> positions, Matrix y) override {
    return inner_->Embed(word, position, token_ids, positions, y);
  }
  absl::Status LayerNorm(ConstMatrix x, const float* weight, const float* bias, float epsilon, Matrix y) override {
    return inner_->LayerNorm(x, weight, bias, epsilon, y);
  }
  absl::Status GatedFeedForward(const LinearWeights& gate_up, const LinearWeights& down, Activation activation,
                                ConstMatrix x, Matrix y, Phase phase) override {
    return inner_->GatedFeedForward(gate_up, down, activation, x, y, phase);
  }
  absl::Status RmsNorm(ConstMatrix x, const float* weight, float epsilon, int64_t group, Matrix y) override {
    return inner_->RmsNorm(x, weight, epsilon, group, y);
  }
  absl::Status Rotate(Matrix x, ConstMatrix table, std::span<const int32_t> positions) override {
    return inner_->Rotate(x, table, positions);
  }
  int64_t CacheFloats(int64_t numbers) const override { return inner_->CacheFloats(numbers); }
  absl::Status StoreInPages(ConstMatrix x, const KvPage& shape, std::span<const PagePlace> places) override {
    return inner_->StoreInPages(x, shape, places);
  }
  absl::Status GatherRows(ConstMatrix x, std::span<const int64_t> rows, Matrix y) override {
    return inner_->GatherRows(x, rows, y);
  }
  absl::Status PoolMean(ConstMatrix x, std::span<const int64_t> offsets, std::span<const float> divisors,
                        Matrix y) override {
    return inner_->PoolMean(x, offsets, divisors, y);
  }
  absl::StatusOr<std::unique_ptr<PreparedDecoder>> PrepareDecoder(const Decoder& decoder) override {
    return inner_->PrepareDecoder(decoder);
  }
  absl::Status Decode(PreparedDecoder& decoder, std::span<const DecodedRow> rows, Matrix logits) override {
    return inner_->Decode(decoder, rows, logits);
  }
  absl::StatusOr<std::unique_ptr<TokenChooser>> MakeTokenChooser(std::span<const TokenChoice> choices,
                                                                 int64_t vocabulary) override {
    return inner_->MakeTokenChooser(choices, vocabulary);
  }
  absl::Status AddLogits(TokenChooser& chooser, Matrix logits) override { return inner_->AddLogits(chooser, logits); }
  absl::StatusOr<std::vector<ChosenToken>> ChosenTokens(TokenChooser& chooser) override {
    return inner_->ChosenTokens(chooser);
  }
  absl::Status PairFeatures(ConstMatrix x0, ConstMatrix x1, Matrix y) override {
    return inner_->PairFeatures(x0, x1, y);
  }
  absl::StatusOr<std::unique_ptr<MembershipWeights>> PrepareMemberships(
      const MembershipParameters& parameters) override {
    return inner_->PrepareMemberships(parameters);
  }
  absl::Status ComputeMemberships(const MembershipWeights& weights, ConstMatrix q, ConstMatrix k,
                                  const Memberships& out) override {
    return inner_->ComputeMemberships(weights, q, k, out);
  }
  absl::StatusOr<std::unique_ptr<CancelFlag>> MakeCancelFlag() override;
  absl::StatusOr<std::unique_ptr<EdgeLedger>> MakeLedger(uint64_t edges) override;
  absl::StatusOr<std::unique_ptr<EdgeLedger>> CopyLedger(const EdgeLedger& ledger) override;
  absl::StatusOr<uint64_t> Remaining(const EdgeLedger& ledger) override;
  absl::Status Attend(const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                      std::span<EdgeCap> caps, Matrix out) override;

 private:
  struct Report {
    AttentionReport* to;
    AttentionReport value;
  };
  struct Capped {
    EdgeCap* to;
    bool value;
  };
  struct Flag;
  void Tell();

  std::unique_ptr<Backend> inner_;
  std::vector<Report> reports_;
  std::vector<Capped> capped_;
  std::vector<const Flag*> flags_;  // of what is held back
  int64_t throttles_ = 0;
  int64_t fail_after_ = -1;
};

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_MODEL_DEFERRED_BACKEND_H_
