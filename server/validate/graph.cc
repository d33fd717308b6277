#include "server/validate/graph.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/status_macros.h"

namespace edgewise::server {
namespace {

constexpr uint32_t kMaxIndex = std::numeric_limits<int32_t>::max();
constexpr uint32_t kMaxMultiplicity = 1 << 20;

Law LayerLaw(const ModelConfig& config, int layer) {
  return config.attention[static_cast<size_t>(layer % config.num_hidden_layers)].law;
}

absl::StatusOr<HeadEdges> ParseHead(const v1::Graph::Head& head, Law law, const std::string& field) {
  HeadEdges edges;
  edges.row_offsets.assign(head.row_offsets().begin(), head.row_offsets().end());
  edges.keys.reserve(static_cast<size_t>(head.keys_size()));
  for (int i = 0; i < head.keys_size(); ++i) {
    if (head.keys(i) > kMaxIndex) {
      return FieldError(absl::StrCat(field, ".keys[", i, "]"),
                        absl::StrCat("is ", head.keys(i), "; no position is so large"));
    }
    edges.keys.push_back(static_cast<int32_t>(head.keys(i)));
  }
  if (head.multiplicities_size() == 0) return edges;
  if (law != Law::kPoissonMulti) {
    return FieldError(absl::StrCat(field, ".multiplicities"), "is set; only law poisson_multi has parallel edges");
  }
  if (head.multiplicities_size() != head.keys_size()) {
    return FieldError(absl::StrCat(field, ".multiplicities"),
                      absl::StrCat("has ", head.multiplicities_size(), " entries; its keys have ", head.keys_size()));
  }
  for (int i = 0; i < head.multiplicities_size(); ++i) {
    const uint32_t multiplicity = head.multiplicities(i);
    if (multiplicity < 1 || multiplicity > kMaxMultiplicity) {
      return FieldError(absl::StrCat(field, ".multiplicities[", i, "]"),
                        absl::StrCat("is ", multiplicity, "; allowed: 1 to ", kMaxMultiplicity));
    }
    edges.multiplicity.push_back(static_cast<int32_t>(multiplicity));
  }
  return edges;
}

}  // namespace

absl::StatusOr<Graph> ParseGraph(const v1::Graph& graph, const Model& model, const RequestLimits& limits,
                                 const std::string& field) {
  uint64_t edges = 0, heads = 0;
  for (const v1::Graph::Layer& layer : graph.layers()) {
    heads += static_cast<uint64_t>(layer.heads_size());
    for (const v1::Graph::Head& head : layer.heads()) edges += static_cast<uint64_t>(head.keys_size());
  }
  if (edges > limits.max_graph_edges) {
    return FieldError(field, absl::StrCat("has ", edges, " edges; the server takes at most ", limits.max_graph_edges));
  }
  if (heads == 0) return FieldError(field, "has no heads; give one entry for every layer and head");
  Graph parsed;
  parsed.layers.resize(static_cast<size_t>(graph.layers_size()));
  for (int l = 0; l < graph.layers_size(); ++l) {
    for (int h = 0; h < graph.layers(l).heads_size(); ++h) {
      ASSIGN_OR_RETURN(HeadEdges head, ParseHead(graph.layers(l).heads(h), LayerLaw(model.config(), l),
                                                 absl::StrCat(field, ".layers[", l, "].heads[", h, "]")));
      parsed.layers[static_cast<size_t>(l)].push_back(std::move(head));
    }
  }
  return parsed;
}

uint64_t EdgesOf(const Graph& graph) {
  uint64_t edges = 0;
  for (const std::vector<HeadEdges>& layer : graph.layers) {
    for (const HeadEdges& head : layer) edges += head.keys.size();
  }
  return edges;
}

}  // namespace edgewise::server
