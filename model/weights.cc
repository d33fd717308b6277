#include "model/weights.h"

#include <cmath>
#include <map>
#include <set>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/json_object.h"

namespace edgewise {
namespace {

constexpr double kBlockSumTolerance = 1e-4;

bool UsesMemberships(const ModelConfig& config, size_t layer) {
  if (!config.tied_layers) return config.attention[layer].kind == AttentionKind::kSbm;
  return config.attention[0].kind == AttentionKind::kSbm;
}

std::string LayerPrefix(size_t layer) { return absl::StrCat("layers.", layer, "."); }

// Reads tensors by name; every shape has been checked.
class Loader {
 public:
  Loader(const ModelConfig& config, const SafetensorsFile& file, Backend& backend)
      : config_(config), file_(file), backend_(backend) {}

  std::span<const float> Values(const std::string& name) const {
    const TensorEntry& entry = file_.tensors().at(name);
    return {file_.Values(name), (entry.end - entry.begin) / sizeof(float)};
  }

  absl::Status LoadBuffer(std::span<const float> values, Buffer& out) {
    absl::StatusOr<Buffer> buffer = backend_.Allocate(static_cast<int64_t>(values.size()));
    if (!buffer.ok()) return buffer.status();
    out = *std::move(buffer);
    return backend_.Upload(values, out.data());
  }

  absl::Status LoadNorm(const std::string& name, Norm& out) {
    const absl::Status status = LoadBuffer(Values(name + ".weight"), out.weight);
    return status.ok() ? LoadBuffer(Values(name + ".bias"), out.bias) : status;
  }

  // The layers `names` stacked into one product.
  absl::Status LoadLinear(const std::vector<std::string>& names, Activation activation,
                          std::unique_ptr<LinearWeights>& out) {
    std::vector<float> weight, bias;
    for (const std::string& name : names) {
      const auto w = Values(name + ".weight");
      const auto b = Values(name + ".bias");
      weight.insert(weight.end(), w.begin(), w.end());
      bias.insert(bias.end(), b.begin(), b.end());
    }
    const int64_t rows = static_cast<int64_t>(bias.size());
    auto linear = backend_.PrepareLinear(weight, bias, rows, static_cast<int64_t>(weight.size()) / rows, activation);
    if (!linear.ok()) return linear.status();
    out = *std::move(linear);
    return absl::OkStatus();
  }

  absl::Status LoadMemberships(size_t layer, std::unique_ptr<MembershipWeights>& out) {
    const std::string prefix = LayerPrefix(layer) + "attention.";
    MembershipParameters parameters;
    parameters.num_heads = config_.num_attention_heads;
    parameters.head_dim = config_.head_dim;
    parameters.num_clusters = config_.attention[layer].num_clusters;
    parameters.weight0 = Values(prefix + "membership.0.weight");
    parameters.bias0 = Values(prefix + "membership.0.bias");
    parameters.weight1 = Values(prefix + "membership.1.weight");
    parameters.bias1 = Values(prefix + "membership.1.bias");
    parameters.clusters = Values(prefix + "clusters");
    if (file_.tensors().count(prefix + "block_matrix") != 0) {
      parameters.block_matrix = Values(prefix + "block_matrix");
      const absl::Status status = CheckBlockMatrix(prefix + "block_matrix", parameters);
      if (!status.ok()) return status;
    }
    auto memberships = backend_.PrepareMemberships(parameters);
    if (!memberships.ok()) return memberships.status();
    out = *std::move(memberships);
    return absl::OkStatus();
  }

 private:
  static absl::Status CheckBlockMatrix(const std::string& name, const MembershipParameters& parameters) {
    const size_t square = static_cast<size_t>(parameters.num_clusters) * parameters.num_clusters;
    for (size_t head = 0; head * square < parameters.block_matrix.size(); ++head) {
      double sum = 0.0;
      for (size_t i = 0; i < square; ++i) {
        const float value = parameters.block_matrix[head * square + i];
        if (value < 0.0f) {
          return absl::InvalidArgumentError(absl::StrCat("tensor ", name, ": entry ", i, " of head ", head, " is ",
                                                         value, "; at least 0 is expected"));
        }
        sum += value;
      }
      if (sum > 1.0 + kBlockSumTolerance) {
        return absl::InvalidArgumentError(
            absl::StrCat("tensor ", name, ": head ", head, " sums to ", sum, "; at most 1 is expected"));
      }
    }
    return absl::OkStatus();
  }

  const ModelConfig& config_;
  const SafetensorsFile& file_;
  Backend& backend_;
};

// Names, shapes and dtypes, before any data is read.
absl::Status CheckTensors(const ModelConfig& config, const SafetensorsFile& file) {
  std::map<std::string, std::vector<int64_t>> expected;
  std::set<std::string> names;
  for (auto& [name, shape] : ExpectedTensors(config)) expected[name] = shape;
  for (const auto& [name, shape] : expected) {
    if (!absl::EndsWith(name, ".clusters")) continue;
    const std::string block = name.substr(0, name.size() - std::string("clusters").size()) + "block_matrix";
    if (file.tensors().count(block) != 0) expected[block] = {shape[0], shape[1], shape[1]};
  }
  for (const auto& [name, shape] : expected) {
    names.insert(name);
    const auto found = file.tensors().find(name);
    if (found == file.tensors().end()) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", name, " ", ShowShape(shape), " is missing"));
    }
    if (found->second.shape != shape) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", name, " has shape ", ShowShape(found->second.shape),
                                                     "; config.json expects ", ShowShape(shape)));
    }
    if (found->second.dtype != "F32") {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", name, " has dtype ", found->second.dtype, "; F32 is expected"));
    }
  }
  for (const auto& [name, entry] : file.tensors()) {
    if (expected.count(name) != 0) continue;
    const std::string nearest = NearestName(name, names);
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", name, " is not part of this model",
                     nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")));
  }
  return absl::OkStatus();
}

absl::Status CheckFinite(const SafetensorsFile& file) {
  for (const auto& [name, entry] : file.tensors()) {
    const float* values = file.Values(name);
    const size_t count = (entry.end - entry.begin) / sizeof(float);
    for (size_t i = 0; i < count; ++i) {
      if (!std::isfinite(values[i])) {
        return absl::InvalidArgumentError(
            absl::StrCat("tensor ", name, ": element ", i, " is ", values[i], "; weights must be finite"));
      }
    }
  }
  return absl::OkStatus();
}

// sin and cos of position / 10000^(2i / hidden), interleaved; [positions, hidden].
std::vector<float> SinusoidalPositions(int64_t positions, int64_t hidden) {
  std::vector<float> table(positions * hidden);
  for (int64_t p = 0; p < positions; ++p) {
    for (int64_t c = 0; c < hidden; ++c) {
      const double exponent = static_cast<double>(c / 2 * 2) / static_cast<double>(hidden);
      const double angle = static_cast<double>(p) / std::pow(10000.0, exponent);
      table[p * hidden + c] = static_cast<float>(c % 2 == 0 ? std::sin(angle) : std::cos(angle));
    }
  }
  return table;
}

}  // namespace

std::vector<std::pair<std::string, std::vector<int64_t>>> ExpectedTensors(const ModelConfig& config) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> tensors;
  const int64_t hidden = config.hidden_size;
  const int64_t width = static_cast<int64_t>(config.num_attention_heads) * config.head_dim;
  auto add = [&](const std::string& name, std::vector<int64_t> shape) { tensors.emplace_back(name, std::move(shape)); };
  auto add_affine = [&](const std::string& name, std::vector<int64_t> shape) {
    add(name + ".bias", {shape[0]});
    add(name + ".weight", std::move(shape));
  };
  add("embeddings.word.weight", {config.vocab_size, hidden});
  if (config.position_embedding == PositionEmbedding::kLearned) {
    add("embeddings.position.weight", {config.max_position_embeddings, hidden});
  }
  const size_t layers = config.tied_layers ? 1 : config.num_hidden_layers;
  for (size_t l = 0; l < layers; ++l) {
    const std::string prefix = LayerPrefix(l);
    add_affine(prefix + "attention_norm", {hidden});
    for (const char* name : {"query", "key", "value"}) add_affine(prefix + "attention." + name, {width, hidden});
    add_affine(prefix + "attention.output", {hidden, width});
    if (UsesMemberships(config, l)) {
      const int64_t d = config.head_dim;
      add(prefix + "attention.clusters", {config.num_attention_heads, config.attention[l].num_clusters, d});
      add_affine(prefix + "attention.membership.0", {d, d});
      add_affine(prefix + "attention.membership.1", {d, d});
    }
    add_affine(prefix + "mlp_norm", {hidden});
    add_affine(prefix + "mlp.up", {config.intermediate_size, hidden});
    add_affine(prefix + "mlp.down", {hidden, config.intermediate_size});
  }
  if (config.norm_position == NormPosition::kPre) add_affine("final_norm", {hidden});
  int64_t features = config.task == Task::kPairClassification ? 4 * hidden : hidden;
  if (config.classifier_hidden_size > 0) {
    add_affine("classifier.hidden", {config.classifier_hidden_size, features});
    features = config.classifier_hidden_size;
  }
  add_affine("classifier.output", {config.num_labels, features});
  return tensors;
}

absl::StatusOr<std::unique_ptr<ModelWeights>> LoadWeights(const ModelConfig& config, SafetensorsFile& file,
                                                          Backend& backend) {
  absl::Status status = CheckTensors(config, file);
  if (status.ok()) status = file.ReadData();
  if (status.ok()) status = CheckFinite(file);
  if (!status.ok()) return status;

  auto weights = std::make_unique<ModelWeights>();
  Loader loader(config, file, backend);
  // Runs a step unless one before it failed.
  auto load = [&](const auto& step) {
    if (status.ok()) status = step();
  };
  load([&] { return loader.LoadBuffer(loader.Values("embeddings.word.weight"), weights->word); });
  if (config.position_embedding == PositionEmbedding::kLearned) {
    load([&] { return loader.LoadBuffer(loader.Values("embeddings.position.weight"), weights->position); });
  } else if (config.position_embedding == PositionEmbedding::kSinusoidal) {
    load([&] {
      return loader.LoadBuffer(SinusoidalPositions(config.max_position_embeddings, config.hidden_size),
                               weights->position);
    });
  }
  const Activation hidden_act = config.hidden_act == HiddenAct::kRelu ? Activation::kRelu : Activation::kGelu;
  const size_t layers = config.tied_layers ? 1 : config.num_hidden_layers;
  weights->layers.resize(layers);
  for (size_t l = 0; l < layers; ++l) {
    LayerWeights& layer = weights->layers[l];
    const std::string prefix = LayerPrefix(l);
    load([&] { return loader.LoadNorm(prefix + "attention_norm", layer.attention_norm); });
    load([&] {
      return loader.LoadLinear({prefix + "attention.query", prefix + "attention.key", prefix + "attention.value"},
                               Activation::kNone, layer.query_key_value);
    });
    load([&] { return loader.LoadLinear({prefix + "attention.output"}, Activation::kNone, layer.output); });
    if (UsesMemberships(config, l)) load([&] { return loader.LoadMemberships(l, layer.memberships); });
    load([&] { return loader.LoadNorm(prefix + "mlp_norm", layer.mlp_norm); });
    load([&] { return loader.LoadLinear({prefix + "mlp.up"}, hidden_act, layer.up); });
    load([&] { return loader.LoadLinear({prefix + "mlp.down"}, Activation::kNone, layer.down); });
  }
  if (config.norm_position == NormPosition::kPre)
    load([&] { return loader.LoadNorm("final_norm", weights->final_norm); });
  if (config.classifier_hidden_size > 0) {
    load([&] { return loader.LoadLinear({"classifier.hidden"}, Activation::kRelu, weights->classifier_hidden); });
  }
  load([&] { return loader.LoadLinear({"classifier.output"}, Activation::kNone, weights->classifier_output); });
  if (!status.ok()) return status;
  return weights;
}

}  // namespace edgewise
