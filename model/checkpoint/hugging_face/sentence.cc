#include "model/checkpoint/hugging_face/sentence.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json_object.h"
#include "base/json_text.h"
#include "base/status_macros.h"

namespace edgewise::hugging_face {
namespace {

using nlohmann::json;

constexpr char kModules[] = "modules.json";
constexpr size_t kMostModules = 100;

// The last part of a module's type: "sentence_transformers.models.Pooling" is Pooling. Empty: of another package.
std::string KindOf(const std::string& type) {
  if (!absl::StartsWith(type, "sentence_transformers.")) return "";
  return type.substr(type.rfind('.') + 1);
}

bool IsFolderName(const std::string& path) {
  return !path.empty() && path.size() <= 255 && std::all_of(path.begin(), path.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

absl::Status Finish(const std::string& file, JsonObject& fields) {
  const absl::Status status = fields.Finish();
  return status.ok() ? status : InvalidIn(file, std::string(status.message()));
}

// A file that is not there is an error as others.
absl::StatusOr<json> ReadModule(ModelFolder& files, const std::string& file) {
  absl::StatusOr<json> config = ReadJson(files, file);
  if (config.ok()) return config;
  return absl::InvalidArgumentError(config.status().message());
}

// The ways of pooling that a Pooling module names, by pooling_mode or as older releases do by switches.
std::vector<std::string> PoolingModes(const json& config, JsonObject& fields) {
  std::vector<std::string> modes;
  const json& named = fields.Value("pooling_mode", false);
  for (const json& name : named.is_array() ? named : json::array({named})) {
    if (name.is_string()) modes.push_back(name.get<std::string>());
    if (!name.is_string() && !name.is_null()) fields.FailAt("pooling_mode", named, "allowed: mean, cls, lasttoken");
  }
  constexpr std::string_view kPrefix = "pooling_mode_";
  std::vector<std::string> switched;
  for (const auto& [field, value] : config.items()) {
    if (absl::StartsWith(field, std::string(kPrefix)) && fields.Boolean(field, false)) {
      switched.push_back(field.substr(kPrefix.size()));
    }
  }
  if (modes.empty()) modes = switched;
  return modes.empty() ? std::vector<std::string>{"mean"} : modes;
}

absl::Status ReadPooling(ModelFolder& files, const std::string& path, SentenceModules& read) {
  const std::string file = path + "/config.json";
  ASSIGN_OR_RETURN(const json config, ReadModule(files, file));
  JsonObject fields(config, "");
  const std::vector<std::string> modes = PoolingModes(config, fields);
  read.pools_prompts = fields.Boolean("include_prompt", true);
  for (const char* field : {"embedding_dimension", "word_embedding_dimension"})
    fields.Value(field, false);  // the model's
  const std::string mode = modes.size() == 1 ? modes[0] : "";
  if (mode == "mean" || mode == "mean_tokens") {
    read.pooling = Pooling::kMeanValid;
  } else if (mode == "cls" || mode == "cls_token") {
    read.pooling = Pooling::kFirst;
  } else if (mode == "lasttoken") {
    read.pooling = Pooling::kLast;
  } else {
    fields.Fail(absl::StrCat("pooling by ", absl::StrJoin(modes, " and "),
                             " is not served; served: mean, cls or lasttoken, one of them"));
  }
  return Finish(file, fields);
}

// Modules work on the vector of the text, whatever a release calls it.
void ReadNames(JsonObject& fields) {
  for (const char* field : {"module_input_name", "module_output_name"}) {
    if (!fields.Value(field, false).is_null()) fields.Choice(field, {"sentence_embedding"});
  }
}

absl::Status ReadDense(ModelFolder& files, const std::string& path, SentenceModules& read) {
  constexpr std::pair<const char*, Activation> kServed[] = {{"Tanh", Activation::kTanh},
                                                            {"Identity", Activation::kNone},
                                                            {"ReLU", Activation::kRelu},
                                                            {"GELU", Activation::kGelu}};
  const std::string file = path + "/config.json";
  ASSIGN_OR_RETURN(const json config, ReadModule(files, file));
  JsonObject fields(config, "");
  DenseLayer layer;
  layer.in_features = fields.Integer("in_features", 1, kMaxWidth);
  layer.out_features = fields.Integer("out_features", 1, kMaxWidth);
  layer.bias = fields.Boolean("bias", true);
  const std::string name = fields.String("activation_function", "torch.nn.Tanh");
  const auto* act = std::find_if(std::begin(kServed), std::end(kServed),
                                 [&](const auto& one) { return one.first == TorchClass(name); });
  if (act == std::end(kServed)) {
    fields.FailAt("activation_function", json(name), "served: Tanh, Identity, ReLU and GELU of torch.nn");
  } else {
    layer.activation = act->second;
  }
  ReadNames(fields);
  if (fields.Boolean("use_residual", false)) fields.FailAt("use_residual", true, "served is false");
  read.dense.push_back(layer);
  read.dense_folders.push_back(path);
  return Finish(file, fields);
}

// Releases before 5.4 write no file for it.
absl::Status ReadNormalize(ModelFolder& files, const std::string& path, SentenceModules& read) {
  read.normalize = true;
  const std::string file = path + "/config.json";
  const absl::StatusOr<json> config = ReadJson(files, file);
  if (absl::IsNotFound(config.status())) return absl::OkStatus();
  RETURN_IF_ERROR(config.status());
  JsonObject fields(*config, "");
  ReadNames(fields);
  return Finish(file, fields);
}

struct Module {
  std::string kind, path;
};

absl::StatusOr<std::vector<Module>> ReadModuleList(const json& modules, std::vector<std::string>& skipped) {
  if (!modules.is_array()) return InvalidIn(kModules, "a list of modules is expected");
  if (modules.size() > kMostModules) {
    return InvalidIn(kModules, absl::StrCat("has ", modules.size(), " modules; at most ", kMostModules, " are read"));
  }
  std::vector<Module> list;
  for (const json& one : modules) {
    const std::string who = absl::StrCat("module ", list.size());
    JsonObject fields(one, who);
    const std::string type = fields.String("type", "");
    Module& module = list.emplace_back(Module{KindOf(type), fields.String("path", "")});
    // Arguments that a caller may hand to the module: they make no difference where nobody does.
    SkipFields({"kwargs"}, kModules, fields, skipped);
    if (!fields.status().ok()) return InvalidIn(kModules, std::string(fields.status().message()));
    const std::vector<std::string> served = {"Transformer", "Pooling", "Dense", "Normalize", "Dropout"};
    const bool first = list.size() == 1;
    if (std::find(served.begin(), served.end(), module.kind) == served.end() ||
        first != (module.kind == "Transformer")) {
      return InvalidIn(kModules, absl::StrCat(who, " has the type ", ShowJson(json(type)),
                                              "; served: a Transformer, then Pooling, then Dense, then Normalize, of "
                                              "sentence_transformers"));
    }
    if (first && !module.path.empty()) {
      return InvalidIn(kModules, absl::StrCat("the Transformer is in ", ShowJson(json(module.path)),
                                              "; move its files beside modules.json, and make the path empty"));
    }
    if (!first && !IsFolderName(module.path)) {
      return InvalidIn(kModules, absl::StrCat("the path of ", module.kind, " is ", ShowJson(json(module.path)),
                                              "; the name of a folder beside modules.json is expected"));
    }
  }
  return list;
}

// Reads the modules after the Transformer of an encoder.
absl::Status ReadEncoder(ModelFolder& files, const std::vector<Module>& modules, SentenceModules& read) {
  for (size_t i = 1; i < modules.size(); ++i) {
    const auto& [kind, path] = modules[i];
    const bool pooling = kind == "Pooling";
    if (pooling != (i == 1) || read.normalize) {
      return InvalidIn(kModules, absl::StrCat("module ", i, " is ", kind, " behind ", modules[i - 1].kind,
                                              "; served: a Transformer, then one Pooling, then Dense, as many as there "
                                              "are, then Normalize"));
    }
    if (pooling) {
      RETURN_IF_ERROR(ReadPooling(files, path, read));
    } else if (kind == "Dense") {
      RETURN_IF_ERROR(ReadDense(files, path, read));
    } else if (kind == "Normalize") {
      RETURN_IF_ERROR(ReadNormalize(files, path, read));
    } else {  // Dropout, of training alone
      read.skipped.push_back(path);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::optional<SentenceModules>> ReadSentenceModules(ModelFolder& files) {
  const absl::StatusOr<json> modules = ReadJson(files, kModules);
  if (absl::IsNotFound(modules.status())) return std::nullopt;
  RETURN_IF_ERROR(modules.status());
  SentenceModules read;
  ASSIGN_OR_RETURN(const std::vector<Module> list, ReadModuleList(*modules, read.skipped));
  RETURN_IF_ERROR(ReadModelSettings(files, read.settings, read.skipped));
  const bool alone = list.size() == 1;
  if (list.empty() || alone != read.settings.cross_encoder) {
    return InvalidIn(
        kModules, list.size() < 2
                      ? "has no Pooling; served: a Transformer, then Pooling; or the Transformer alone where "
                        "model_type of config_sentence_transformers.json is \"CrossEncoder\""
                      : absl::StrCat("has ", list.size(), " modules; served of a CrossEncoder: the Transformer alone"));
  }
  RETURN_IF_ERROR(ReadTransformerSettings(files, read.settings, read.skipped));
  if (!alone) RETURN_IF_ERROR(ReadEncoder(files, list, read));
  return read;
}

}  // namespace edgewise::hugging_face
