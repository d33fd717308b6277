#include "tests/model/model_builder.h"

#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "model/checkpoint/hugging_face/tensors.h"
#include "model/checkpoint/parse_config.h"
#include "model/checkpoint/weights.h"
#include "model/config/config.h"
#include "tests/model/toy_kind.h"

namespace edgewise::testing {

using nlohmann::json;

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "edgewise-test-XXXXXX").string();
  path_ = mkdtemp(name.data());
}

TemporaryFolder::~TemporaryFolder() { std::filesystem::remove_all(path_); }

json SmallConfig() {
  return json::parse(R"({
    "task": "sequence-classification", "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64, "pad_token_id": 0,
    "pooling": {"kind": "mean", "divisor": "valid"}, "num_labels": 3, "classifier_hidden_size": 24,
    "attention": {"kind": "sbm", "num_clusters": 16, "law": "bernoulli", "exploration": 0.01}
  })");
}

namespace {

std::map<std::string, TestTensor> TensorsOf(const ModelConfig& config, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::map<std::string, TestTensor> tensors;
  for (const auto& [name, shape, optional] : ExpectedTensors(config)) {
    if (optional) continue;
    int64_t size = 1;
    for (int64_t dimension : shape) size *= dimension;
    const bool norm = name.find("norm.weight") != std::string::npos;
    const bool clusters = name.find("clusters") != std::string::npos;
    // The last layer of the membership network is biased towards the clusters' mean: rates near one half that vary.
    const float scale = shape.size() == 1 ? 0.1f : clusters ? 0.3f : 1.0f / std::sqrt(static_cast<float>(shape.back()));
    TestTensor& tensor = tensors[name];
    tensor.shape = shape;
    for (int64_t i = 0; i < size; ++i) {
      tensor.values.push_back((norm ? 1.0f : clusters ? 0.25f : 0.0f) + scale * normal(random));
    }
    if (name.find("membership.1.bias") != std::string::npos) {
      for (float& value : tensor.values) value += 0.25f;
    }
  }
  return tensors;
}

template <typename T>
T OrThrow(absl::StatusOr<T> value) {
  if (!value.ok()) throw std::runtime_error(std::string(value.status().message()));
  return *std::move(value);
}

}  // namespace

std::map<std::string, TestTensor> RandomTensors(const json& config, uint64_t seed) {
  return TensorsOf(OrThrow(ParseModelConfig(config.dump(), KindsWithToy())), seed);
}

std::string WriteHuggingFace(const std::string& folder, json config, uint64_t seed) {
  const json files = config.value("_files", json::object());
  for (const auto& [name, content] : files.items()) {
    WriteFile(folder + "/" + name, content.dump());
  }
  config.erase("_files");
  WriteFile(folder + "/config.json", config.dump(1));
  ModelFolder written(folder);
  const hugging_face::Folder read = OrThrow(hugging_face::ReadFolder(written, config));
  std::map<std::string, TestTensor> tensors;
  for (auto& [name, tensor] : TensorsOf(read.config, seed)) {
    const hugging_face::Source theirs = hugging_face::SourcesOf(name, read).front();
    if (read.tied && theirs.name.find("decoder.weight") != std::string::npos) continue;
    // Any numbers will do, so parts lie one behind the other.
    TestTensor& whole = tensors[theirs.name];
    whole.shape = theirs.FileShape(tensor.shape);
    whole.values.insert(whole.values.end(), tensor.values.begin(), tensor.values.end());
  }
  WriteFile(folder + "/model.safetensors", SafetensorsBytes(tensors));
  return folder;
}

std::string SafetensorsBytes(const std::map<std::string, TestTensor>& tensors) {
  json header = json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size() * sizeof(float));
    header[name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text + data;
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string WriteModel(const std::string& folder, const json& config, uint64_t seed) {
  if (config.contains("model_type")) return WriteHuggingFace(folder, config, seed);
  WriteFile(folder + "/config.json", config.dump(1));
  WriteFile(folder + "/model.safetensors", SafetensorsBytes(RandomTensors(config, seed)));
  return folder;
}

}  // namespace edgewise::testing
