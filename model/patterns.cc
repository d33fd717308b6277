#include "model/patterns.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

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

}  // namespace

bool Draws(const ModelInput& input) { return !input.dense && !input.graph.has_value(); }

int32_t FirstDrawnLayer(const std::vector<AttentionConfig>& attention) {
  const auto draws = [](const AttentionConfig& layer) {
    return layer.kind == AttentionKind::kSbm || layer.kind == AttentionKind::kSsa;
  };
  return static_cast<int32_t>(std::find_if(attention.begin(), attention.end(), draws) - attention.begin());
}

uint64_t PairsOf(const ModelConfig& config, const QueryRange& range) {
  const uint64_t keys = range.sequence->valid();
  const uint64_t queries = keys - range.first_query;
  return config.causal ? queries * (keys + range.first_query + 1) / 2 : queries * keys;
}

uint64_t LeastEdges(const LayerChoice& choice, std::span<const QueryRange> ranges) {
  const uint64_t heads = choice.config->num_attention_heads;
  uint64_t edges = 0;
  for (size_t side = 0; side < ranges.size(); ++side) {
    const ModelSequence& sequence = *ranges[side].sequence;
    if (choice.given != nullptr) {
      for (const HeadEdges& head : (*choice.given)[side * choice.config->num_hidden_layers + choice.layer]) {
        edges += head.keys.size();
      }
    } else if (choice.attention == nullptr || choice.attention->kind == AttentionKind::kDense) {
      edges += heads * PairsOf(*choice.config, ranges[side]);
    } else if (choice.attention->local_window > 0) {
      edges += heads * BandEdges(sequence, choice.attention->local_window / 2);
    } else if (choice.attention->self_loops) {
      edges += heads * sequence.valid();
    }
  }
  return edges;
}

LayerPatterns MakePatterns(const LayerChoice& choice, std::span<const QueryRange> ranges, uint64_t) {
  LayerPatterns made;
  for (size_t side = 0; side < ranges.size(); ++side) {
    made.expected.push_back(0.0);
    if (choice.given != nullptr) {
      const size_t index = side * choice.config->num_hidden_layers + choice.layer;
      made.patterns.push_back(ExplicitEdges{&(*choice.given)[index]});
    } else if (choice.attention == nullptr || choice.attention->kind == AttentionKind::kDense) {
      made.patterns.push_back(AllPairs{choice.config->causal});
    } else {
      DrawnRows drawn;
      drawn.law = choice.attention->law;
      drawn.exploration = choice.attention->exploration;
      drawn.self_loops = choice.attention->self_loops;
      drawn.local_window = choice.attention->local_window;
      drawn.key = {choice.seed, choice.sample, static_cast<uint32_t>(choice.layer), static_cast<uint32_t>(side)};
      made.patterns.push_back(drawn);
    }
  }
  return made;
}

absl::Status CheckHeadEdges(const HeadEdges& edges, const ModelSequence& sequence, bool multi, bool causal) {
  const int64_t length = sequence.length();
  if (static_cast<int64_t>(edges.row_offsets.size()) != length + 1) {
    return absl::InvalidArgumentError(absl::StrCat("row_offsets has ", edges.row_offsets.size(), " entries; ",
                                                   length + 1, " (positions + 1) are expected"));
  }
  if (!edges.multiplicity.empty() && edges.multiplicity.size() != edges.keys.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("multiplicities has ", edges.multiplicity.size(), " entries; its keys have ", edges.keys.size()));
  }
  if (std::any_of(edges.multiplicity.begin(), edges.multiplicity.end(), [](int32_t m) { return m < 1; })) {
    return absl::InvalidArgumentError("multiplicities has an entry below 1");
  }
  if (edges.row_offsets[0] != 0) {
    return absl::InvalidArgumentError(absl::StrCat("row_offsets[0] is ", edges.row_offsets[0], "; 0 is expected"));
  }
  const int64_t count = static_cast<int64_t>(edges.keys.size());
  if (!multi && std::any_of(edges.multiplicity.begin(), edges.multiplicity.end(), [](int32_t m) { return m != 1; })) {
    return absl::InvalidArgumentError("keys repeats an edge; only law poisson_multi has parallel edges");
  }
  if (edges.row_offsets.back() != count) {
    return absl::InvalidArgumentError(
        absl::StrCat("row_offsets ends with ", edges.row_offsets.back(), "; keys has ", count, " entries"));
  }
  for (int64_t i = 0; i < length; ++i) {
    if (edges.row_offsets[i + 1] < edges.row_offsets[i] || edges.row_offsets[i + 1] > count) {
      return absl::InvalidArgumentError(
          absl::StrCat("row_offsets[", i + 1, "] is ", edges.row_offsets[i + 1], "; offsets ascend from 0 to ", count));
    }
  }
  std::vector<bool> valid(length, false);
  for (int32_t position : sequence.positions) valid[position] = true;
  for (int64_t i = 0; i < length; ++i) {
    for (int64_t e = edges.row_offsets[i]; e < edges.row_offsets[i + 1]; ++e) {
      const int64_t key = edges.keys[e];
      if (key < 0 || key >= length) {
        return absl::InvalidArgumentError(
            absl::StrCat("keys[", e, "] is ", key, "; positions go from 0 to ", length - 1));
      }
      if (!valid[i] || !valid[key]) {
        return absl::InvalidArgumentError(
            absl::StrCat("keys[", e, "] is ", key, " of query ", i, ": position ", valid[i] ? key : i, " is a pad"));
      }
      if (causal && key > i) {
        return absl::InvalidArgumentError(
            absl::StrCat("keys[", e, "] is ", key, " of query ", i, "; on a causal model keys do not come after"));
      }
      if (e > edges.row_offsets[i] && key <= edges.keys[e - 1]) {
        return absl::InvalidArgumentError(
            absl::StrCat("keys[", e, "] is ", key, " after ", edges.keys[e - 1], "; keys ascend within a row"));
      }
    }
  }
  return absl::OkStatus();
}

HeadEdges ToValidTokens(const HeadEdges& edges, const ModelSequence& sequence) {
  std::vector<int32_t> token(sequence.length(), -1);
  for (int32_t i = 0; i < sequence.valid(); ++i) token[sequence.positions[i]] = i;
  HeadEdges out = edges;
  out.row_offsets.assign(1, 0);
  for (int32_t position : sequence.positions) out.row_offsets.push_back(edges.row_offsets[position + 1]);
  for (int32_t& key : out.keys) key = token[key];
  return out;
}

HeadEdges ToPositions(const HeadEdges& edges, const ModelSequence& sequence) {
  HeadEdges out = edges;
  out.row_offsets.assign(1, 0);
  int32_t next = 0;  // valid token whose row comes next
  for (int32_t position = 0; position < sequence.length(); ++position) {
    if (next < sequence.valid() && sequence.positions[next] == position) ++next;
    out.row_offsets.push_back(edges.row_offsets[next]);
  }
  for (int32_t& key : out.keys) key = sequence.positions[key];
  return out;
}

}  // namespace edgewise
