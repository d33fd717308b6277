// Rows of several generations on their way through the layers together: every weight is read once for all of them.
#ifndef EDGEWISE_MODEL_FORWARD_GENERATION_STEP_H_
#define EDGEWISE_MODEL_FORWARD_GENERATION_STEP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
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

// Start; StepLayer until done(); Finish. No generation's bytes depend on the others. One thread at a time; what was
// started must live until Finish, Remove or the destructor. Errors of all methods: those of the backend.
class GenerationStep {
 public:
  // Of one generation; at least one of the two.
  struct Rows {
    GenerationRows* before = nullptr;  // tokens before its last one, which are not cached yet; null: none run
    GenerationRows* last = nullptr;    // its last token, after all of those before; null: it does not run yet
  };

  explicit GenerationStep(const Model& model) : wave_(Wave::Take(model)) {}

  // Samples share the layers below `first_drawn`.
  absl::Status Start(std::span<const Rows> rows, int32_t first_drawn, Phase phase);
  size_t generations() const { return rows_.size(); }  // those included that have left
  bool done() const { return wave_->done(); }
  int64_t rows() const;   // of the next layer
  bool predicts() const;  // whether the last token of any generation runs
  absl::Status StepLayer();
  // The rows of generation i leave. Where they cannot, the next call of StepLayer or Finish says why.
  void Remove(size_t i);
  // Calls visit(i, distribution, finite) for each generation i whose last token ran, in order: the mean over its
  // samples of the next token's distribution, valid during the call and only where all logits are finite. Then the
  // results are whole.
  absl::Status Finish(absl::FunctionRef<void(size_t, const std::vector<double>&, bool)> visit);

 private:
  absl::Status StartSamples();

  const std::unique_ptr<Wave, Wave::Return> wave_;
  std::vector<Rows> rows_;  // of a generation that has left: none
  Phase phase_ = Phase::kDecode;
  absl::Status removed_;
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_GENERATION_STEP_H_
