#include "model/kinds/patterns.h"

#include <algorithm>

#include "model/kinds/blocks.h"
#include "model/kinds/ssa.h"

namespace edgewise {
namespace {

// Pairs of valid tokens with |i - j| <= reach, by position.
uint64_t BandEdges(const ModelSequence& sequence, int32_t reach) {
  const std::vector<int32_t>& positions = sequence.positions;
  uint64_t pairs = 0;
  size_t low = 0, high = 0;
  for (int32_t position : positions) {
    while (positions[low] < position - reach) ++low;
    while (high < positions.size() && positions[high] <= position + reach) ++high;
    pairs += high - low;
  }
  return pairs;
}

AttentionKind KindOf(const AttentionSpec& choice) {
  return choice.attention == nullptr ? AttentionKind::kDense : choice.attention->kind;
}

// The given edges of one sequence; null: none are given.
const std::vector<HeadEdges>* GivenEdges(const AttentionSpec& choice, size_t side) {
  if (choice.given == nullptr) return nullptr;
  return &(*choice.given)[side * choice.config->num_hidden_layers + choice.layer];
}

DrawnRows MakeDrawnRows(const AttentionSpec& choice, size_t side) {
  DrawnRows drawn;
  drawn.law = choice.attention->law;
  drawn.exploration = choice.attention->exploration;
  drawn.self_loops = choice.attention->self_loops;
  drawn.local_window = choice.attention->local_window;
  drawn.key = {choice.seed, choice.sample, static_cast<uint32_t>(choice.layer), static_cast<uint32_t>(side)};
  return drawn;
}

MemberPatterns MakeSsaPatterns(const AttentionSpec& choice, std::span<const QueryRange> ranges, uint64_t allowance) {
  MemberPatterns made;
  std::vector<GroupedKeys> sequences;
  for (size_t side = 0; side < ranges.size(); ++side) {
    sequences.push_back(SsaGroups(choice, static_cast<uint32_t>(side), ranges[side]));
  }
  if (allowance != kNoCap) made.capped = DropSources(sequences, choice.config->num_attention_heads, allowance);
  for (GroupedKeys& groups : sequences) made.patterns.push_back(std::move(groups));
  return made;
}

MemberPatterns MakeBlockPatterns(const AttentionSpec& choice, std::span<const QueryRange> ranges, uint64_t allowance) {
  MemberPatterns made;
  std::vector<BlockLayout> layouts;
  std::vector<std::vector<Block>> sequences;
  for (const QueryRange& range : ranges) {
    layouts.emplace_back(choice, range);
    sequences.push_back(layouts.back().Blocks());
  }
  if (allowance != kNoCap) made.capped = DropBlocks(sequences, choice.config->num_attention_heads, allowance);
  for (size_t s = 0; s < ranges.size(); ++s) made.patterns.push_back(layouts[s].Groups(sequences[s]));
  return made;
}

}  // namespace

int32_t FirstDrawnLayer(const std::vector<AttentionConfig>& attention) {
  const auto draws = [](const AttentionConfig& layer) {
    return layer.kind == AttentionKind::kSbm || layer.kind == AttentionKind::kSsa;
  };
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

uint64_t LeastEdges(const AttentionSpec& choice, std::span<const QueryRange> ranges) {
  const uint64_t heads = choice.config->num_attention_heads;
  uint64_t edges = 0;
  for (size_t side = 0; side < ranges.size(); ++side) {
    const QueryRange& range = ranges[side];
    const uint64_t queries = range.sequence->valid() - range.first_query;
    if (const std::vector<HeadEdges>* given = GivenEdges(choice, side)) {
      for (const HeadEdges& head : *given) edges += head.keys.size();
      continue;
    }
    switch (KindOf(choice)) {
      case AttentionKind::kDense:
        edges += heads * PairsOf(*choice.config, range);
        break;
      case AttentionKind::kSbm:
        if (choice.attention->local_window > 0) {
          edges += heads * BandEdges(*range.sequence, choice.attention->local_window / 2);
        } else if (choice.attention->self_loops) {
          edges += heads * queries;
        }
        break;
      case AttentionKind::kSsa:  // one source per window
        edges += heads * queries;
        break;
      case AttentionKind::kBlock:
        edges += heads * BlockLayout(choice, range).DiagonalEdges();
        break;
    }
  }
  return edges;
}

MemberPatterns MakePatterns(const AttentionSpec& choice, std::span<const QueryRange> ranges, uint64_t allowance) {
  const AttentionKind kind = KindOf(choice);
  if (choice.given == nullptr && kind == AttentionKind::kSsa) return MakeSsaPatterns(choice, ranges, allowance);
  if (choice.given == nullptr && kind == AttentionKind::kBlock) return MakeBlockPatterns(choice, ranges, allowance);
  MemberPatterns made;
  for (size_t side = 0; side < ranges.size(); ++side) {
    if (const std::vector<HeadEdges>* given = GivenEdges(choice, side)) {
      made.patterns.push_back(ExplicitEdges{given, kind != AttentionKind::kSbm});
    } else if (kind == AttentionKind::kDense) {
      made.patterns.push_back(AllPairs{choice.config->causal});
    } else {
      made.patterns.push_back(MakeDrawnRows(choice, side));
    }
  }
  return made;
}

}  // namespace edgewise
