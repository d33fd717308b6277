// Graphs as requests give them and as answers return them.
#ifndef EDGEWISE_MODEL_INPUT_GIVEN_GRAPH_H_
#define EDGEWISE_MODEL_INPUT_GIVEN_GRAPH_H_

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/attention.h"
#include "model/input/input.h"

namespace edgewise {

// One head of a given graph, by position: offsets, bounds, strictly ascending keys, no pads, no multiplicity unless
// `multi`, no key after its query if `causal`. INVALID_ARGUMENT with the field.
absl::Status CheckHeadEdges(const HeadEdges& edges, const ModelSequence& sequence, bool multi, bool causal);

// Between positions as sent and valid tokens 0..n-1. `edges` has been checked, or came from a backend.
HeadEdges ToValidTokens(const HeadEdges& edges, const ModelSequence& sequence);
std::vector<std::vector<HeadEdges>> ToValidTokens(const Graph& graph, std::span<const ModelSequence> sequences);
HeadEdges ToPositions(const HeadEdges& edges, const ModelSequence& sequence);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_INPUT_GIVEN_GRAPH_H_
