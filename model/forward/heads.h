// The head of a model on rows that have run through all layers: classifier, values, or distribution of the next token.
#ifndef EDGEWISE_MODEL_FORWARD_HEADS_H_
#define EDGEWISE_MODEL_FORWARD_HEADS_H_

#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/backend.h"
#include "model/forward/wave.h"
#include "model/model.h"

namespace edgewise {

// Fills logits, probabilities and token_probabilities of the results of the wave's samples, and `finite`. Waits for the
// backend. causal-lm: tokens of all sequences are scored; the distribution after the last sequence is computed where
// the text ends there. Errors: those of the backend.
absl::Status ComputeOutputs(Wave& wave);

// causal-lm, fill-mask: calls visit(first, logits [.., vocab_size] that the rows places[first] and next ones give, in
// the backend's memory), in order. Runs a few rows at a time: memory does not grow with rows x vocabulary. Errors:
// those of the backend and of `visit`.
absl::Status VisitLogits(Wave& wave, std::span<const int64_t> places, Phase phase,
                         absl::FunctionRef<absl::Status(size_t first, Matrix logits)> visit);

// The floats that the head takes for `sequences` of one row each.
int64_t HeadFloats(const ModelConfig& config, int64_t sequences);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_HEADS_H_
