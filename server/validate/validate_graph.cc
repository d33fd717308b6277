#include "server/validate/validate_graph.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "server/status_details.h"

namespace edgewise::server {
namespace {

constexpr uint32_t kMaxIndex = std::numeric_limits<int32_t>::max();
constexpr uint32_t kMaxMultiplicity = 1 << 20;

// a * b and a + b that stay at the top instead of wrapping.
uint64_t Times(uint64_t a, uint64_t b) {
  uint64_t product;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<uint64_t>::max() : product;
}
uint64_t Plus(uint64_t a, uint64_t b) {
  uint64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<uint64_t>::max() : sum;
}

Law LayerLaw(const ModelConfig& config, int layer) {
  return config.attention[static_cast<size_t>(layer % config.num_hidden_layers)].law;
}

absl::StatusOr<HeadEdges> ParseHead(const v1::Graph::Head& head, Law law, const std::string& field) {
  HeadEdges edges;
  edges.row_offsets.assign(head.row_offsets().begin(), head.row_offsets().end());
  edges.keys.reserve(static_cast<size_t>(head.keys_size()));
  for (int i = 0; i < head.keys_size(); ++i) {
    if (head.keys(i) > kMaxIndex) {
      return InvalidField(absl::StrCat(field, ".keys[", i, "]"),
                          absl::StrCat("is ", head.keys(i), "; no position is so large"));
    }
    edges.keys.push_back(static_cast<int32_t>(head.keys(i)));
  }
  if (head.multiplicities_size() == 0) return edges;
  if (law != Law::kPoissonMulti) {
    return InvalidField(absl::StrCat(field, ".multiplicities"), "is set; only law poisson_multi has parallel edges");
  }
  if (head.multiplicities_size() != head.keys_size()) {
    return InvalidField(absl::StrCat(field, ".multiplicities"),
                        absl::StrCat("has ", head.multiplicities_size(), " entries; its keys have ", head.keys_size()));
  }
  for (int i = 0; i < head.multiplicities_size(); ++i) {
    const uint32_t multiplicity = head.multiplicities(i);
    if (multiplicity < 1 || multiplicity > kMaxMultiplicity) {
      return InvalidField(absl::StrCat(field, ".multiplicities[", i, "]"),
                          absl::StrCat("is ", multiplicity, "; allowed: 1 to ", kMaxMultiplicity));
    }
    edges.multiplicity.push_back(static_cast<int32_t>(multiplicity));
  }
  return edges;
}

// The longest name that an answer can give a label.
uint64_t LabelBytes(const ModelConfig& config) {
  uint64_t bytes = 16;
  for (const std::string& label : config.labels) bytes = std::max<uint64_t>(bytes, label.size());
  if (config.task == ModelTask::kCausalLm) {
    for (const std::string& token : config.tokenizer.vocabulary) bytes = std::max<uint64_t>(bytes, token.size());
  }
  return bytes;
}

// Tokens whose probability a language model gives.
uint64_t ScoredTokens(const ModelConfig& config, const ModelInput& input) {
  uint64_t scored = 0;
  if (config.task != ModelTask::kCausalLm) return scored;
  for (const ModelSequence& sequence : input.sequences) {
    scored += static_cast<uint64_t>(std::max(0, sequence.valid() - sequence.first_scored));
  }
  return scored;
}

// Upper bound of the bytes that the answer to one input takes on the wire.
uint64_t ResponseBytes(const ModelInput& input, const OutputSelection& outputs, const Model& model, uint64_t rows,
                       uint64_t positions, uint64_t label_bytes) {
  const ModelConfig& config = model.config();
  const uint64_t labels = static_cast<uint64_t>(config.num_labels);
  const uint64_t heads = Times(Times(static_cast<uint64_t>(config.num_hidden_layers), input.sequences.size()),
                               static_cast<uint64_t>(config.num_attention_heads));
  const uint64_t per_row = Plus(Times(labels, outputs.logits ? 12 : 8), label_bytes + 64);
  uint64_t bytes = Plus(256, Times(rows, per_row));
  bytes = Plus(bytes, Times(outputs.top_k, label_bytes + 24));
  if (outputs.each_sample) {
    const uint64_t per_sample =
        Plus(Times(Times(rows, labels), outputs.logits ? 8 : 4), Times(ScoredTokens(config, input), sizeof(double)));
    bytes = Plus(bytes, Times(input.samples, Plus(64, per_sample)));
  }
  if (outputs.layer_stats || outputs.key_degrees) bytes = Plus(bytes, Times(heads, 40));
  if (outputs.key_degrees) bytes = Plus(bytes, Times(Times(heads, positions), 5));
  if (outputs.graph) {
    bytes = Plus(bytes, Times(heads, Plus(32, Times(positions + 1, 5))));
    bytes = Plus(bytes, Times(std::min(input.max_edges, model.Pairs(input)), 10));
  }
  return bytes;
}

// What the samples of one input hold until they are combined.
uint64_t ResultBytes(const ModelInput& input, const OutputSelection& outputs, const Model& model, uint64_t rows,
                     uint64_t positions) {
  const ModelConfig& config = model.config();
  const uint64_t heads = Times(Times(static_cast<uint64_t>(config.num_hidden_layers), input.sequences.size()),
                               static_cast<uint64_t>(config.num_attention_heads));
  uint64_t per_head = sizeof(HeadCounts);
  if (outputs.key_degrees) per_head = Plus(per_head, Times(positions, sizeof(uint32_t)));
  const uint64_t numbers = Plus(Times(Times(rows, static_cast<uint64_t>(config.num_labels)), 2 * sizeof(float)),
                                Times(ScoredTokens(config, input), sizeof(double)));
  return Times(input.samples, Plus(numbers, Times(heads, per_head)));
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
    return InvalidField(field,
                        absl::StrCat("has ", edges, " edges; the server takes at most ", limits.max_graph_edges));
  }
  if (heads == 0) return InvalidField(field, "has no heads; give one entry for every layer and head");
  Graph parsed;
  parsed.layers.resize(static_cast<size_t>(graph.layers_size()));
  for (int l = 0; l < graph.layers_size(); ++l) {
    for (int h = 0; h < graph.layers(l).heads_size(); ++h) {
      absl::StatusOr<HeadEdges> head = ParseHead(graph.layers(l).heads(h), LayerLaw(model.config(), l),
                                                 absl::StrCat(field, ".layers[", l, "].heads[", h, "]"));
      if (!head.ok()) return head.status();
      parsed.layers[static_cast<size_t>(l)].push_back(*std::move(head));
    }
  }
  return parsed;
}

absl::Status CheckResultSize(const ParsedRequest& request, const Model& model, const RequestLimits& limits) {
  uint64_t response = 1024, result = 0;
  const uint64_t label_bytes = LabelBytes(model.config());
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    const ModelInput& input = request.inputs[i];
    uint64_t positions = 0;
    for (const ModelSequence& sequence : input.sequences) positions += static_cast<uint64_t>(sequence.length());
    const uint64_t rows = model.config().task == ModelTask::kTokenClassification ? positions : 1;
    if (request.outputs.graph) {
      const uint64_t edges = std::min(input.max_edges, model.Pairs(input));
      if (edges > limits.max_graph_edges) {
        return InvalidField("outputs.graph",
                            absl::StrCat("of inputs[", i, "] may have ", edges, " edges; the server returns at most ",
                                         limits.max_graph_edges, " (lower the budget)"));
      }
    }
    response = Plus(response, ResponseBytes(input, request.outputs, model, rows, positions, label_bytes));
    result = Plus(result, ResultBytes(input, request.outputs, model, rows, positions));
  }
  if (response > limits.max_response_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("outputs would take up to ", response,
                                                     " bytes; the server sends at most ", limits.max_response_bytes,
                                                     " in one answer"));
  }
  if (result > limits.max_result_bytes) {
    return InvalidField("ensemble.samples",
                        absl::StrCat("times inputs would hold ", result, " bytes of results; the server holds at most ",
                                     limits.max_result_bytes, " for one request"));
  }
  return absl::OkStatus();
}

}  // namespace edgewise::server
