// The rows of new tokens, those of several generations in one step: every weight is read once for all of them.
#ifndef EDGEWISE_MODEL_FORWARD_DECODE_H_
#define EDGEWISE_MODEL_FORWARD_DECODE_H_

#include <cstdint>
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

  // `draw` and `cache` must outlive the rows.
  GenerationRows(const ModelConfig& config, const Draw& draw, uint32_t samples, KvCache& cache);
  // These tokens run next.
  void Select(QueryRange range, uint64_t max_edges);
  // Adds the samples, as members of a wave that runs them.
  void AddSamples(std::vector<Wave::Sample>& samples);
};

// The last token of one generation, and those before it that are not cached yet.
struct DecodedRow {
  GenerationRows* before = nullptr;  // null: all are cached
  GenerationRows* last = nullptr;    // one token
};

// Runs all layers of one row of each generation, whose samples share the layers below `first_drawn`. Calls
// visit(i, distribution, finite) for generation i in order: the mean over its samples of the next token's distribution,
// valid during the call and only where all logits are finite. Then the results are whole. No generation's bytes depend
// on the others. Errors: those of the backend.
absl::Status DecodeRows(const Model& model, int32_t first_drawn, std::span<const DecodedRow> rows,
                        absl::FunctionRef<void(size_t, const std::vector<double>&, bool)> visit);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_DECODE_H_
