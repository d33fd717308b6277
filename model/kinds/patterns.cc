#include "model/kinds/patterns.h"

#include <algorithm>

#include "model/kinds/kind.h"

namespace edgewise {
namespace {

const AttentionKind& KindOf(const AttentionSpec& choice) {
  return choice.attention == nullptr ? kDenseKind : *choice.attention->kind;
}

// The given edges of one sequence; null: the input has no graph.
const std::vector<HeadEdges>* GivenEdges(const AttentionSpec& choice, size_t side) {
  if (choice.given == nullptr) return nullptr;
  return &(*choice.given)[side * choice.config->num_hidden_layers + choice.layer];
}

}  // namespace

int32_t FirstDrawnLayer(const std::vector<AttentionConfig>& attention) {
  const auto draws = [](const AttentionConfig& layer) { return layer.kind->draws; };
  return static_cast<int32_t>(std::find_if(attention.begin(), attention.end(), draws) - attention.begin());
}

int32_t FirstDrawnLayer(const ModelConfig& config, const Draw& draw) {
  return draw.dense ? config.num_hidden_layers : FirstDrawnLayer(AttentionOf(config, draw));
}

uint64_t PairsOf(const ModelConfig& config, const QueryRange& range) {
  const uint64_t keys = range.sequence->valid();
  const uint64_t queries = keys - range.first_query;
  return config.causal ? queries * (keys + range.first_query + 1) / 2 : queries * keys;
}

bool NeedsMemberships(const AttentionSpec& choice) { return choice.given == nullptr && KindOf(choice).memberships; }

bool HostDrops(const AttentionSpec& choice) { return choice.given == nullptr && KindOf(choice).host_drops; }

uint64_t LeastEdges(const AttentionSpec& choice, std::span<const QueryRange> ranges) {
  const uint64_t heads = choice.config->num_attention_heads;
  uint64_t edges = 0;
  for (size_t side = 0; side < ranges.size(); ++side) {
    if (const std::vector<HeadEdges>* given = GivenEdges(choice, side)) {
      for (const HeadEdges& head : *given) edges += head.keys.size();
    } else {
      edges += heads * KindOf(choice).least_edges(choice, ranges[side]);
    }
  }
  return edges;
}

GroupedKeys NoGroups(const AttentionSpec& choice, const QueryRange& range) {
  std::pmr::memory_resource* const memory = choice.memory;
  return {.group_begin = std::pmr::vector<int32_t>(1, range.first_query, memory),
          .key_offsets = std::pmr::vector<int64_t>(1, 0, memory),
          .keys = std::pmr::vector<int32_t>(memory),
          .causal = choice.config->causal};
}

MemberPatterns MakePatterns(const AttentionSpec& choice, std::span<const QueryRange> ranges, uint64_t allowance) {
  const AttentionKind& kind = KindOf(choice);
  if (choice.given == nullptr) return kind.patterns(choice, ranges, allowance);
  MemberPatterns made{std::pmr::vector<AttentionPattern>(choice.memory)};
  for (size_t side = 0; side < ranges.size(); ++side) {
    made.patterns.push_back(ExplicitEdges{GivenEdges(choice, side), !kind.memberships});
  }
  return made;
}

}  // namespace edgewise
