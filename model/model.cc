#include "model/model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "model/checkpoint/weights.h"
#include "text/field_error.h"

namespace edgewise {

Model::Model(ModelConfig config, std::unique_ptr<const ModelWeights> weights, std::string sha256, uint64_t parameters,
             Backend& backend)
    : config_(std::move(config)),
      backend_(backend),
      tokenizer_(std::make_unique<Tokenizer>(config_.tokenizer)),
      weights_(std::move(weights)),
      parameters_(parameters),
      sha256_(std::move(sha256)) {}

Model::~Model() = default;

absl::StatusOr<std::vector<int32_t>> Model::Tokenize(const std::string& text) const { return tokenizer_->Encode(text); }

std::string Model::Decode(int32_t token_id, bool first) const { return tokenizer_->Decode(token_id, first); }

absl::Status Model::CheckGraph(const ModelInput& input) const {
  if (!input.graph.has_value()) return absl::OkStatus();
  const Graph& graph = *input.graph;
  const size_t layers = config_.num_hidden_layers;
  const size_t heads = config_.num_attention_heads;
  if (graph.layers.size() != layers * input.sequences.size()) {
    return FieldError("graph.layers", absl::StrCat("has ", graph.layers.size(), " entries; ",
                                                   layers * input.sequences.size(), " are expected"));
  }
  for (size_t l = 0; l < graph.layers.size(); ++l) {
    const ModelSequence& sequence = input.sequences[l / layers];
    if (graph.layers[l].size() != heads) {
      return FieldError(absl::StrCat("graph.layers[", l, "].heads"),
                        absl::StrCat("has ", graph.layers[l].size(), " entries; ", heads, " are expected"));
    }
    const AttentionConfig& attention = config_.attention[l % layers];
    const bool multi = attention.law == Law::kPoissonMulti;
    for (size_t h = 0; h < heads; ++h) {
      const absl::Status status = CheckHeadEdges(graph.layers[l][h], sequence, multi, config_.causal);
      if (!status.ok()) return Within(absl::StrCat("graph.layers[", l, "].heads[", h, "]"), status);
    }
  }
  return absl::OkStatus();
}

std::vector<QueryRange> Model::RangesOf(const ModelInput& input) {
  std::vector<QueryRange> ranges;
  for (const ModelSequence& sequence : input.sequences) ranges.push_back({&sequence});
  return ranges;
}

uint64_t Model::Pairs(std::span<const QueryRange> ranges) const {
  uint64_t pairs = 0;
  for (const QueryRange& range : ranges) pairs += PairsOf(config_, range);
  return pairs * config_.num_attention_heads * config_.num_hidden_layers;
}

uint64_t Model::LeastEdges(const Draw& draw, const std::vector<std::vector<HeadEdges>>* given,
                           std::span<const QueryRange> ranges) const {
  uint64_t edges = 0;
  for (int32_t l = 0; l < config_.num_hidden_layers; ++l) edges += edgewise::LeastEdges(Choose(draw, given, l), ranges);
  return edges;
}

AttentionSpec Model::Choose(const Draw& draw, const std::vector<std::vector<HeadEdges>>* given, int32_t layer) const {
  AttentionSpec choice;
  choice.config = &config_;
  choice.attention = draw.dense ? nullptr : &AttentionOf(config_, draw)[static_cast<size_t>(layer)];
  choice.given = draw.dense ? nullptr : given;
  choice.layer = layer;
  choice.block_scores = weights_->layer(static_cast<size_t>(layer)).block_scores;
  choice.seed = draw.seed;
  return choice;
}

bool Model::Samples(const ModelInput& input) const {
  return !input.graph.has_value() && FirstDrawnLayer(config_, input) < config_.num_hidden_layers;
}

}  // namespace edgewise
