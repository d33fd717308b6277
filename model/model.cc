#include "model/model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/checkpoint/safetensors.h"
#include "model/checkpoint/weights.h"
#include "model/forward/pass.h"
#include "model/kinds/patterns.h"
#include "model/reserve.h"

namespace edgewise {
namespace {

constexpr uint64_t kMaxConfigBytes = 64 << 20;

// Puts the file's name before a message.
absl::Status In(const std::string& file, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(file, ": ", std::string(status.message())));
}

absl::StatusOr<ModelSequence> ShortSequence(const Model& model) {
  const ModelConfig& config = model.config();
  if (config.feature_size > 0) {
    const uint32_t columns = static_cast<uint32_t>(config.feature_size);
    return model.PrepareFeatures(4, columns, std::vector<float>(4 * columns, 0.5f), TruncateMode::kTail);
  }
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < config.vocab_size && ids.size() < 4; ++id) {
    if (id != config.pad_token_id && id != config.cls_token_id) ids.push_back(id);
  }
  if (ids.empty()) return absl::InvalidArgumentError("the vocabulary has no token that is neither pad nor CLS");
  return model.Prepare(ids, TruncateMode::kTail);
}

// One forward pass of a short input: finite weights can still give numbers that are not.
absl::Status SelfTest(const Model& model) {
  const ModelConfig& config = model.config();
  absl::StatusOr<ModelSequence> sequence = ShortSequence(model);
  if (!sequence.ok()) return sequence.status();
  std::vector<ModelInput> inputs(1);
  inputs[0].sequences.assign(config.task == ModelTask::kPairClassification ? 2 : 1, *sequence);
  Pass pass(model, inputs, {});
  while (!pass.done()) {
    const absl::Status status = pass.Step();
    if (!status.ok()) return status;
  }
  return pass.TakeResult(0).status;
}

}  // namespace

Model::Model(ModelConfig config, Backend& backend)
    : config_(std::move(config)), backend_(backend), tokenizer_(std::make_unique<Tokenizer>(config_.tokenizer)) {}

Model::~Model() = default;

absl::StatusOr<std::unique_ptr<Model>> Model::Load(const std::string& directory, Backend& backend,
                                                   AttentionKinds kinds) {
  const absl::StatusOr<std::string> text = ReadSmallFile(directory + "/config.json", kMaxConfigBytes);
  if (!text.ok()) return In("config.json", text.status());
  absl::StatusOr<ModelConfig> config = ParseModelConfig(*text, kinds);
  if (!config.ok()) return In("config.json", config.status());

  auto file = SafetensorsFile::Open(directory + "/model.safetensors");
  if (!file.ok()) return In("model.safetensors", file.status());
  std::unique_ptr<Model> model(new Model(*std::move(config), backend));
  auto weights = LoadWeights(model->config_, **file, backend);
  if (!weights.ok()) return In("model.safetensors", weights.status());
  model->weights_ = *std::move(weights);
  model->sha256_ = (*file)->sha256();
  model->parameters_ = (*file)->data_bytes() / sizeof(float);

  absl::Status status = SelfTest(*model);
  if (status.ok()) status = ReserveForPasses(model->config_, *model->weights_, backend);
  if (status.ok()) return model;
  // Numbers that are not finite are the file's fault; running out of memory is not.
  const absl::StatusCode code =
      status.code() == absl::StatusCode::kInternal ? absl::StatusCode::kInvalidArgument : status.code();
  return In("model.safetensors", absl::Status(code, absl::StrCat("self-test: ", std::string(status.message()))));
}

absl::StatusOr<std::vector<int32_t>> Model::Tokenize(const std::string& text) const { return tokenizer_->Encode(text); }

std::string Model::Decode(int32_t token_id, bool first) const { return tokenizer_->Decode(token_id, first); }

absl::Status Model::CheckGraph(const ModelInput& input) const {
  if (!input.graph.has_value()) return absl::OkStatus();
  const Graph& graph = *input.graph;
  const size_t layers = config_.num_hidden_layers;
  const size_t heads = config_.num_attention_heads;
  if (graph.layers.size() != layers * input.sequences.size()) {
    return absl::InvalidArgumentError(absl::StrCat("graph.layers has ", graph.layers.size(), " entries; ",
                                                   layers * input.sequences.size(), " are expected"));
  }
  for (size_t l = 0; l < graph.layers.size(); ++l) {
    const ModelSequence& sequence = input.sequences[l / layers];
    if (graph.layers[l].size() != heads) {
      return absl::InvalidArgumentError(absl::StrCat("graph.layers[", l, "].heads has ", graph.layers[l].size(),
                                                     " entries; ", heads, " are expected"));
    }
    const AttentionConfig& attention = config_.attention[l % layers];
    const bool multi = attention.law == Law::kPoissonMulti;
    for (size_t h = 0; h < heads; ++h) {
      const absl::Status status = CheckHeadEdges(graph.layers[l][h], sequence, multi, config_.causal);
      if (!status.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("graph.layers[", l, "].heads[", h, "].", std::string(status.message())));
      }
    }
  }
  return absl::OkStatus();
}

uint64_t Model::Pairs(const ModelInput& input) const {
  uint64_t pairs = 0;
  for (const ModelSequence& sequence : input.sequences) pairs += PairsOf(config_, {&sequence});
  return pairs * config_.num_attention_heads * config_.num_hidden_layers;
}

uint64_t Model::LeastEdges(const ModelInput& input) const {
  std::vector<QueryRange> ranges;
  for (const ModelSequence& sequence : input.sequences) ranges.push_back({&sequence});
  uint64_t edges = 0;
  for (int32_t l = 0; l < config_.num_hidden_layers; ++l) edges += edgewise::LeastEdges(Choose(input, l), ranges);
  return edges;
}

AttentionSpec Model::Choose(const ModelInput& input, int32_t layer) const {
  AttentionSpec choice;
  choice.config = &config_;
  choice.attention = input.dense ? nullptr : &AttentionOf(config_, input)[static_cast<size_t>(layer)];
  choice.given = input.graph.has_value() && !input.dense ? &input.graph->layers : nullptr;
  choice.layer = layer;
  choice.block_scores = weights_->layer(static_cast<size_t>(layer)).block_scores;
  choice.seed = input.seed;
  return choice;
}

bool Model::Samples(const ModelInput& input) const {
  return Draws(input) && FirstDrawnLayer(AttentionOf(config_, input)) < config_.num_hidden_layers;
}

}  // namespace edgewise
