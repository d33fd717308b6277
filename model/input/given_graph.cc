#include "model/input/given_graph.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"

namespace edgewise {

absl::Status CheckHeadEdges(const HeadEdges& edges, const ModelSequence& sequence, bool multi, bool causal) {
  const int64_t length = sequence.length();
  if (static_cast<int64_t>(edges.row_offsets.size()) != length + 1) {
    return FieldError("row_offsets", absl::StrCat("has ", edges.row_offsets.size(), " entries; ", length + 1,
                                                  " (positions + 1) are expected"));
  }
  if (!edges.multiplicity.empty() && edges.multiplicity.size() != edges.keys.size()) {
    return FieldError("multiplicities",
                      absl::StrCat("has ", edges.multiplicity.size(), " entries; its keys have ", edges.keys.size()));
  }
  if (std::any_of(edges.multiplicity.begin(), edges.multiplicity.end(), [](int32_t m) { return m < 1; })) {
    return FieldError("multiplicities", "has an entry below 1");
  }
  if (edges.row_offsets[0] != 0) {
    return FieldError("row_offsets[0]", absl::StrCat("is ", edges.row_offsets[0], "; 0 is expected"));
  }
  const int64_t count = static_cast<int64_t>(edges.keys.size());
  if (!multi && std::any_of(edges.multiplicity.begin(), edges.multiplicity.end(), [](int32_t m) { return m != 1; })) {
    return FieldError("keys", "repeats an edge; only law poisson_multi has parallel edges");
  }
  if (edges.row_offsets.back() != count) {
    return FieldError("row_offsets",
                      absl::StrCat("ends with ", edges.row_offsets.back(), "; keys has ", count, " entries"));
  }
  for (int64_t i = 0; i < length; ++i) {
    if (edges.row_offsets[i + 1] < edges.row_offsets[i] || edges.row_offsets[i + 1] > count) {
      return FieldError(absl::StrCat("row_offsets[", i + 1, "]"),
                        absl::StrCat("is ", edges.row_offsets[i + 1], "; offsets ascend from 0 to ", count));
    }
  }
  std::vector<bool> valid(length, false);
  for (int32_t position : sequence.positions) valid[position] = true;
  for (int64_t i = 0; i < length; ++i) {
    for (int64_t e = edges.row_offsets[i]; e < edges.row_offsets[i + 1]; ++e) {
      const int64_t key = edges.keys[e];
      if (key < 0 || key >= length) {
        return FieldError(absl::StrCat("keys[", e, "]"),
                          absl::StrCat("is ", key, "; positions go from 0 to ", length - 1));
      }
      if (!valid[i] || !valid[key]) {
        return FieldError(absl::StrCat("keys[", e, "]"),
                          absl::StrCat("is ", key, " of query ", i, ": position ", valid[i] ? key : i, " is a pad"));
      }
      if (causal && key > i) {
        return FieldError(absl::StrCat("keys[", e, "]"),
                          absl::StrCat("is ", key, " of query ", i, "; on a causal model keys do not come after"));
      }
      if (e > edges.row_offsets[i] && key <= edges.keys[e - 1]) {
        return FieldError(absl::StrCat("keys[", e, "]"),
                          absl::StrCat("is ", key, " after ", edges.keys[e - 1], "; keys ascend within a row"));
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

std::vector<std::vector<HeadEdges>> ToValidTokens(const Graph& graph, std::span<const ModelSequence> sequences) {
  std::vector<std::vector<HeadEdges>> layers;
  for (size_t l = 0; l < graph.layers.size(); ++l) {
    const ModelSequence& sequence = sequences[l * sequences.size() / graph.layers.size()];
    auto& heads = layers.emplace_back();
    for (const HeadEdges& head : graph.layers[l]) heads.push_back(ToValidTokens(head, sequence));
  }
  return layers;
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
