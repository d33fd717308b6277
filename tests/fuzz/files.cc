// Fuzz targets of the files of a model.
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

#include "base/json_text.h"
#include "model/checkpoint/hugging_face/tensors.h"
#include "model/checkpoint/parse_config.h"
#include "model/checkpoint/safetensors.h"
#include "model/checkpoint/tensor_checks.h"
#include "model/config/config.h"
#include "model/forward/generated_text.h"
#include "model/kinds/kind.h"
#include "model/tokenizers/tokenizer.h"
#include "tests/fuzz/targets.h"

namespace edgewise::fuzz {
namespace {

// A path of this process, in memory where the system has such a folder.
const std::string& FilePath() {
  static const std::string& path = *[] {
    const std::string folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    auto* made = new std::string(folder + "/edgewise-fuzz-" + std::to_string(getpid()));
    std::atexit([] { unlink(FilePath().c_str()); });
    return made;
  }();
  return path;
}

TokenizerConfig Words(bool lowercase, int32_t unknown) {
  TokenizerConfig config;
  config.kind = TokenizerKind::kWord;
  config.vocabulary = {"<pad>", "<unk>", "a", "bc", "[MAX", "é", "1"};
  config.substitutions = {{"]", "bc"}, {"(", ""}};
  config.unknown_token_id = unknown;
  config.lowercase = lowercase;
  return config;
}

TokenizerConfig Characters(int32_t unknown) {
  TokenizerConfig config;
  config.kind = TokenizerKind::kChar;
  config.vocabulary = {"<pad>", "a", "b", " ", "\n", "é", "\U0001F600"};
  config.unknown_token_id = unknown;
  return config;
}

TokenizerConfig Bytes() {
  TokenizerConfig config;
  config.kind = TokenizerKind::kByte;
  return config;
}

// Our reader of JSON against that of nlohmann, which ends a text at a NUL.
absl::StatusOr<nlohmann::json> ParseJson(const std::string& bytes) {
  const absl::StatusOr<nlohmann::json> strict = ParseStrictJson(bytes);
  absl::StatusOr<nlohmann::json> python = ParsePythonJson(bytes);
  if (!python.ok()) RequireReadable(std::string(python.status().message()));
  const nlohmann::json theirs = nlohmann::json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  if (strict.ok()) {
    Require(python.ok(), "Python reads standard JSON");
    Require(*strict == theirs && strict->dump() == theirs.dump(), "nlohmann reads the same values");
  } else {
    const std::string message(strict.status().message());
    RequireReadable(message);
    const bool invalid = message.starts_with("not valid JSON") && bytes.find('\0') == std::string::npos;
    Require(!invalid || theirs.is_discarded(), "what is refused as no JSON is none");
  }
  return python;
}

// A Hugging Face config.json without other files.
void FuzzFolder(const nlohmann::json& json) {
  ModelFolder none("/nonexistent");
  const absl::StatusOr<hugging_face::Folder> folder = hugging_face::ReadFolder(none, json);
  if (!folder.ok()) return RequireReadable(std::string(folder.status().message()));
  const ModelConfig& config = folder->config;
  Require(static_cast<size_t>(config.num_hidden_layers) == config.attention.size(), "every layer has an attention");
  Require(config.hidden_size == config.num_attention_heads * config.head_dim, "heads fill the width");
  if (config.num_hidden_layers > 64) return;
  for (const TensorShape& tensor : ExpectedTensors(config)) {
    Require(!hugging_face::SourcesOf(tensor.name, *folder).empty(), "tensor " + tensor.name + " has a name there");
    for (const int64_t extent : tensor.shape) Require(extent > 0, "tensor " + tensor.name + " has elements");
  }
}

}  // namespace

void FuzzSafetensors(const std::string& bytes) {
  std::ofstream(FilePath(), std::ios::binary) << bytes;
  const absl::StatusOr<std::unique_ptr<SafetensorsFile>> file = SafetensorsFile::Open(FilePath());
  if (!file.ok()) return RequireReadable(std::string(file.status().message()));
  uint64_t end = 0;
  for (const auto& [name, tensor] : (*file)->tensors()) {
    Require(tensor.begin <= tensor.end && tensor.end <= (*file)->data_bytes(), "a tensor lies in the data");
    end = std::max(end, tensor.end);
  }
  Require(end == (*file)->data_bytes(), "the tensors end with the data");
  Require((*file)->data_bytes() + 8 <= bytes.size(), "the data lies in the file");
  Require((*file)->ReadData().ok(), "a file that was opened can be read");
  for (const auto& [name, tensor] : (*file)->tensors()) {
    if (tensor.dtype != "F32") continue;
    const float* values = (*file)->Values(name);
    float sum = 0.0f;
    for (uint64_t i = 0; i < (tensor.end - tensor.begin) / sizeof(float); ++i) sum += values[i];
    static_cast<void>(sum);
  }
  const absl::Status finite = CheckFinite(TensorsOf(**file));
  if (!finite.ok()) RequireReadable(std::string(finite.message()));
}

void FuzzConfig(const std::string& bytes) {
  const absl::StatusOr<nlohmann::json> json = ParseJson(bytes);
  if (json.ok() && hugging_face::IsHuggingFace(*json)) return FuzzFolder(*json);
  const absl::StatusOr<ModelConfig> config = ParseModelConfig(bytes);
  if (!config.ok()) return RequireReadable(std::string(config.status().message()));
  Require(static_cast<size_t>(config->num_hidden_layers) == config->attention.size(), "every layer has an attention");
  Require(config->labels.empty() || config->labels.size() == static_cast<size_t>(config->num_labels),
          "every label has a name, or none has one");
  Require(!AttentionName(*config).empty(), "attention has a name");
  if (config->num_hidden_layers <= 64) {
    for (const TensorShape& tensor : ExpectedTensors(*config)) {
      for (const int64_t extent : tensor.shape) Require(extent > 0, "tensor " + tensor.name + " has elements");
    }
  }
  if (config->tokenizer.kind != TokenizerKind::kNone) Tokenizer(config->tokenizer).Encode(bytes).IgnoreError();
}

void FuzzTokenizer(const std::string& bytes) {
  static const std::vector<TokenizerConfig>& configs =
      *new std::vector<TokenizerConfig>{Bytes(), Characters(-1), Characters(0), Words(false, -1), Words(true, 1)};
  if (bytes.empty()) return;
  const TokenizerConfig& config = configs[static_cast<uint8_t>(bytes[0]) % configs.size()];
  const Tokenizer tokenizer(config);
  const std::string text = bytes.substr(1);
  const absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(text);
  if (!ids.ok()) return RequireReadable(std::string(ids.status().message()));
  std::string all;
  GeneratedText generated({"bc", "\n"});
  std::string certain;
  for (const int32_t id : *ids) {
    const std::string piece = tokenizer.Decode(id, all.empty());
    all += piece;
    certain += generated.Add(piece);
  }
  certain += generated.Finish();
  if (config.kind == TokenizerKind::kByte || (config.kind == TokenizerKind::kChar && config.unknown_token_id < 0)) {
    Require(all == text, "a text that is encoded and decoded is the same");
  }
  Require(certain.find("bc") == std::string::npos && certain.find('\n') == std::string::npos,
          "a generated text ends before its stop strings");
  RequireUtf8(certain);
}

}  // namespace edgewise::fuzz
