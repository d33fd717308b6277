// Attention kind dense: every pair, or every pair of a window.
#include "kernels/host/pattern_count.h"
#include "model/kinds/kind.h"

namespace edgewise {
namespace {

AllPairs DensePairs(const AttentionSpec& choice) {
  AllPairs pairs{choice.config->causal};
  if (choice.attention != nullptr) pairs.reach = choice.attention->reach;
  return pairs;
}

uint64_t LeastEdges(const AttentionSpec& choice, const QueryRange& range) {
  const AllPairs pairs = DensePairs(choice);
  if (pairs.reach == AllPairs::kFar) return PairsOf(*choice.config, range);
  const ModelSequence& sequence = *range.sequence;
  const int32_t* positions = sequence.valid() < sequence.length() ? sequence.positions.data() : nullptr;
  uint64_t edges = 0;
  for (int32_t query = range.first_query; query < sequence.valid(); ++query) {
    edges += static_cast<uint64_t>(KeysOf(pairs, positions, sequence.valid(), query).size());
  }
  return edges;
}

MemberPatterns Patterns(const AttentionSpec& choice, std::span<const QueryRange> ranges, uint64_t) {
  return {std::pmr::vector<AttentionPattern>(ranges.size(), DensePairs(choice), choice.memory)};
}

}  // namespace

const AttentionKind kDenseKind = {.name = "dense", .least_edges = LeastEdges, .patterns = Patterns};

}  // namespace edgewise
