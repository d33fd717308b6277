// From attention kinds to attention patterns: which pairs attend in one layer, and what a budget leaves of them.
#ifndef EDGEWISE_MODEL_KINDS_PATTERNS_H_
#define EDGEWISE_MODEL_KINDS_PATTERNS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "model/checkpoint/config.h"
#include "model/input/given_graph.h"
#include "model/input/input.h"

namespace edgewise {

class SourceCache;  // model/kinds/ssa_sources.h

// Whether the model's kinds decide the edges: neither DENSE nor a given graph does.
bool Draws(const ModelInput& input);

// The first layer whose edges are random (sbm, ssa); attention.size() where none is.
int32_t FirstDrawnLayer(const std::vector<AttentionConfig>& attention);

// The queries of one sequence that attend: all, or the last ones where earlier rows are cached.
struct QueryRange {
  const ModelSequence* sequence = nullptr;
  int32_t first_query = 0;  // packed
};

// Pairs of one head in one layer: queries x valid keys, of causal models those that do not come after the query.
uint64_t PairsOf(const ModelConfig& config, const QueryRange& range);

// Everything that decides a layer's edges but the budget.
struct AttentionSpec {
  const ModelConfig* config = nullptr;
  const AttentionConfig* attention = nullptr;  // null: dense
  // The input's graph over valid tokens, as ToValidTokens makes it, [layers, a pair's second sequence after the
  // first][heads]; null: none.
  const std::vector<std::vector<HeadEdges>>* given = nullptr;
  int32_t layer = 0;
  uint64_t seed = 0;
  uint32_t sample = 0;
  std::span<const float> block_scores;  // pattern learned: [blocks, blocks], host
  SourceCache* sources = nullptr;       // causal ssa: what a growing text asks for again and again; null: drawn anew
};

// Whether the edges are drawn from the memberships of queries and keys.
bool NeedsMemberships(const AttentionSpec& choice);

// Whether MakePatterns drops the edges that a budget does not allow, and so must know how many are left. Edges of other
// kinds are dropped by the backend, or never.
bool HostDrops(const AttentionSpec& choice);

// Edges of the layer that no cap drops, over heads and sequences: forced edges of sbm, one source per window of ssa,
// the blocks on the diagonal, all of a dense layer or a given graph. Does not depend on what is drawn.
uint64_t LeastEdges(const AttentionSpec& choice, std::span<const QueryRange> ranges);

struct MemberPatterns {
  std::vector<AttentionPattern> patterns;  // one per sequence
  bool capped = false;                     // sources or blocks were dropped; what sbm drops is in EdgeCap::capped
};

// The patterns of all sequences of one input, within `allowance` edges (kNoCap: no budget; else >= LeastEdges) except
// where a pattern is DrawnRows, which the backend caps. `choice.given` must outlive the patterns.
MemberPatterns MakePatterns(const AttentionSpec& choice, std::span<const QueryRange> ranges, uint64_t allowance);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_KINDS_PATTERNS_H_
