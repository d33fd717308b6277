// The attention patterns of one layer: the pairs that its kind, a given graph and a budget leave to attend. Any thread.
#ifndef EDGEWISE_MODEL_KINDS_PATTERNS_H_
#define EDGEWISE_MODEL_KINDS_PATTERNS_H_

#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "model/config/config.h"
#include "model/input/given_graph.h"
#include "model/input/input.h"

namespace edgewise {

class SourceCache;  // model/kinds/ssa.h

// The first layer whose kind draws edges; attention.size() where no layer draws.
int32_t FirstDrawnLayer(const std::vector<AttentionConfig>& attention);
int32_t FirstDrawnLayer(const ModelConfig& config, const Draw& draw);

// The queries of one sequence that attend: all queries, or those from `first_query` on where earlier rows are cached.
struct QueryRange {
  const ModelSequence* sequence = nullptr;
  int32_t first_query = 0;  // an index of valid tokens

  int32_t queries() const { return sequence->valid() - first_query; }
};

// Pairs of one head in one layer. On causal models a query pairs with the valid keys that do not come after it, on
// other models with all valid keys.
uint64_t PairsOf(const ModelConfig& config, const QueryRange& range);

// All that decides the edges of one layer for one sample, but the budget. Points into the model and the input.
struct AttentionSpec {
  const ModelConfig* config = nullptr;
  const AttentionConfig* attention = nullptr;  // null: dense
  // The input's graph between valid tokens (ToValidTokens), [layers][heads]; the layers of a pair's second sequence
  // follow those of the first. Null: the input has none.
  const std::vector<std::vector<HeadEdges>>* given = nullptr;
  int32_t layer = 0;
  uint64_t seed = 0;
  uint32_t sample = 0;
  std::span<const float> block_scores;  // block pattern learned: [blocks, blocks], host
  SourceCache* sources = nullptr;       // causal ssa: sources already drawn for a growing text; null: all are drawn
  std::pmr::memory_resource* memory = std::pmr::get_default_resource();  // of patterns, and while they are made
};

// Whether the backend draws the edges from the memberships of queries and keys.
bool NeedsMemberships(const AttentionSpec& choice);

// Whether MakePatterns drops edges under a budget, and so needs the allowance. Otherwise the backend drops them, or
// nothing does.
bool HostDrops(const AttentionSpec& choice);

// Edges that no cap drops, over all heads and sequences, whatever is drawn: those of a given graph, or those that the
// kind says.
uint64_t LeastEdges(const AttentionSpec& choice, std::span<const QueryRange> ranges);

struct MemberPatterns {
  std::pmr::vector<AttentionPattern> patterns;  // one per sequence
  bool capped = false;                          // the host dropped edges; EdgeCap::capped tells of drops by the backend
};

// Groups without queries or keys yet, for queries from range.first_query on.
GroupedKeys NoGroups(const AttentionSpec& choice, const QueryRange& range);

// The patterns of all sequences of one input. Where HostDrops, they have at most `allowance` edges together (kNoCap: no
// budget; otherwise at least LeastEdges). `choice.given` and `choice.memory` must outlive the patterns.
MemberPatterns MakePatterns(const AttentionSpec& choice, std::span<const QueryRange> ranges, uint64_t allowance);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_KINDS_PATTERNS_H_
