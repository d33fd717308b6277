// From attention kinds to attention patterns: which pairs of one sequence attend in one layer.
#ifndef EDGEWISE_MODEL_PATTERNS_H_
#define EDGEWISE_MODEL_PATTERNS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/attention.h"
#include "model/config.h"
#include "model/input.h"

namespace edgewise {

// Whether the model's kinds decide the edges: neither DENSE nor a given graph does.
bool Draws(const ModelInput& input);

// The first layer whose edges are drawn; num_hidden_layers where none is.
int32_t FirstDrawnLayer(const ModelConfig& config);

// Edges of `layer` that no cap drops, over heads and both sequences of a pair.
uint64_t ForcedEdges(const ModelConfig& config, const ModelInput& input, int32_t layer);

// The pattern of sequence `side` in `layer` for one sample. `given`: the input's graph over valid tokens, as
// ToValidTokens makes it, [layers, a pair's second sequence after the first][heads]; empty: none. It must outlive the
// pattern.
AttentionPattern MakePattern(const ModelConfig& config, const ModelInput& input,
                             const std::vector<std::vector<HeadEdges>>& given, int32_t layer, uint32_t side,
                             uint32_t sample);

// One head of a given graph, by position: offsets, bounds, strictly ascending keys, no pads, no
// multiplicity unless `multi`.
// INVALID_ARGUMENT; messages begin with the field's name.
absl::Status CheckHeadEdges(const HeadEdges& edges, const ModelSequence& sequence, bool multi);

// Between positions as sent and valid tokens 0..n-1. `edges` has been checked, or came from a backend.
HeadEdges ToValidTokens(const HeadEdges& edges, const ModelSequence& sequence);
HeadEdges ToPositions(const HeadEdges& edges, const ModelSequence& sequence);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_PATTERNS_H_
