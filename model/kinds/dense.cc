// Attention kind dense: every pair.
#include "model/kinds/kind.h"

namespace edgewise {
namespace {

uint64_t LeastEdges(const AttentionSpec& choice, const QueryRange& range) { return PairsOf(*choice.config, range); }

MemberPatterns Patterns(const AttentionSpec& choice, std::span<const QueryRange> ranges, uint64_t) {
  return {std::pmr::vector<AttentionPattern>(ranges.size(), AllPairs{choice.config->causal}, choice.memory)};
}

}  // namespace

const AttentionKind kDenseKind = {.name = "dense", .least_edges = LeastEdges, .patterns = Patterns};

}  // namespace edgewise
