// The head of a model on rows that have run through all layers: classifier, values, or distribution of the next token.
#ifndef EDGEWISE_MODEL_FORWARD_HEADS_H_
#define EDGEWISE_MODEL_FORWARD_HEADS_H_

#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "model/forward/activations.h"
#include "model/forward/attention_call.h"
#include "model/model.h"

namespace edgewise {

// Fills logits, probabilities and token_probabilities of the members' results, and `finite`. Waits for the backend.
// `rows`: those of the members. causal-lm: tokens of all sequences are scored; the distribution after the last sequence
// is computed where the text ends there. Errors: those of the backend.
absl::Status ComputeOutputs(const Model& model, Activations& rows, const Members& members);

// causal-lm: calls visit(i, logits of the token after row places[i] [vocab_size], host) for every i in order. Runs a
// few rows at a time: memory does not grow with rows x vocabulary. Waits for the backend. Errors: those of the backend.
absl::Status NextTokenLogits(const Model& model, const Activations& rows, std::span<const int64_t> places, Phase phase,
                             const std::function<void(size_t, const float*)>& visit);

// The floats that the head takes for `sequences` of one row each.
int64_t HeadFloats(const ModelConfig& config, int64_t sequences);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_HEADS_H_
