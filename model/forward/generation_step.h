// Rows of several generations on their way through the layers together: every weight is read once for all of them.
#ifndef EDGEWISE_MODEL_FORWARD_GENERATION_STEP_H_
#define EDGEWISE_MODEL_FORWARD_GENERATION_STEP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "model/forward/attention_call.h"
#include "model/forward/result.h"
#include "model/forward/wave.h"
#include "model/model.h"

namespace edgewise {

// Tokens of one generation, whose earlier tokens are cached.
struct GenerationRows {
  RunningInput input;                 // one range, a cache
  std::vector<SampleResult> results;  // of its samples: edges alone

  // `draw` and `cache` must outlive the rows. `fills_cache`: these are rows of a prompt, which nobody reads.
  GenerationRows(const ModelConfig& config, const Draw& draw, uint32_t samples, KvCache& cache, bool fills_cache);
  // These tokens run next.
  void Select(QueryRange range, uint64_t max_edges);
  // Adds the samples, as members of a wave that runs them.
  void AddSamples(std::vector<Wave::Sample>& samples);
};

// Rows that the decoder runs, of all generations, kMostDecodedRows at a time.
struct RowsOfDecoder {
  std::vector<DecodedRow> rows;
  std::vector<size_t> generations;  // of each row
  size_t next = 0;                  // row
  Buffer logits;                    // of the rows that predict
  int64_t predicted = 0;            // of these, those that have run
};

// Start; StepLayer until done(); Finish. No generation's bytes depend on the others. One thread at a time; what was
// started must live until Finish, Remove or the destructor. Errors of all methods: those of the backend.
class GenerationStep {
 public:
  // The rows of one generation: at least one of the two.
  struct Rows {
    GenerationRows* before = nullptr;  // tokens before its last one, which are not cached yet; null: none run
    GenerationRows* last = nullptr;    // its last token, after all of those before; null: it does not run yet
    TokenChoice choice;                // of the token that follows the last; `samples` are those of the rows
  };

  explicit GenerationStep(const Model& model) : wave_(Wave::Take(model)) {}

  // Samples share the layers below `first_drawn`. `decoded`: ModelWeights::decoder runs the rows; each generation has
  // one sample, attends to all pairs as the decoder does, and no cap binds.
  absl::Status Start(std::span<const Rows> rows, int32_t first_drawn, Phase phase, bool decoded);
  size_t generations() const { return rows_.size(); }  // those included that have left
  bool done() const { return decoded_.has_value() ? decoded_->next == decoded_->rows.size() : wave_->done(); }
  int64_t rows() const;   // of the next layer
  bool predicts() const;  // whether the last token of any generation runs
  absl::Status StepLayer();
  // The rows of generation i leave. Where they cannot, the next call of StepLayer or Finish says why.
  void Remove(size_t i);
  // Calls visit(i, token, alternatives) for each generation i whose last token ran, in order. Then the results are
  // whole.
  absl::Status Finish(absl::FunctionRef<void(size_t, const ChosenToken&, const TokenAlternatives&)> visit);

 private:
  void SelectDecoded();
  absl::Status StepDecoded();
  absl::Status FinishDecoded(TokenChooser& chooser) const;
  void CountEdges();
  absl::Status StartSamples();

  const std::unique_ptr<Wave, Wave::Return> wave_;
  std::vector<Rows> rows_;  // of a generation that has left: none
  Phase phase_ = Phase::kDecode;
  std::optional<RowsOfDecoder> decoded_;
  absl::Status removed_;
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_GENERATION_STEP_H_
