#include "model/checkpoint/hugging_face/sentence.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/checkpoint/json_object.h"
#include "model/checkpoint/json_text.h"
#include "text/status_macros.h"

namespace edgewise::hugging_face {
namespace {

using nlohmann::json;

constexpr char kModules[] = "modules.json";
constexpr uint64_t kMaxBytes = 1 << 20;

absl::Status Invalid(const std::string& file, const std::string& message) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", message));
}

absl::StatusOr<json> ReadJson(ModelFolder& files, const std::string& file) {
  const absl::StatusOr<std::string> text = files.Read(file, kMaxBytes);
  const auto in_file = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(file, ": ", std::string(status.message())));
  };
  if (!text.ok()) return in_file(text.status());
  absl::StatusOr<json> value = ParsePythonJson(*text);
  if (!value.ok()) return in_file(value.status());
  return value;
}

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

absl::StatusOr<Pooling> ReadPooling(ModelFolder& files, const std::string& path) {
  const std::string file = absl::StrCat(path, "/config.json");
  ASSIGN_OR_RETURN(const json config, ReadJson(files, file));
  if (!config.is_object()) return Invalid(file, "an object is expected");
  std::vector<std::string> modes;
  const auto named = config.find("pooling_mode");
  if (named != config.end()) {
    if (!named->is_string())
      return Invalid(file, absl::StrCat("pooling_mode is ", ShowJson(*named), "; allowed: mean, cls"));
    modes.push_back(named->get<std::string>());
  }
  constexpr std::string_view kPrefix = "pooling_mode_";
  for (const auto& [field, value] : config.items()) {
    if (!absl::StartsWith(field, std::string(kPrefix))) continue;
    if (!value.is_boolean())
      return Invalid(file, absl::StrCat(field, " is ", ShowJson(value), "; allowed: true, false"));
    if (value.get<bool>()) modes.push_back(field.substr(kPrefix.size()));
  }
  if (modes == std::vector<std::string>{"mean"} || modes == std::vector<std::string>{"mean_tokens"}) {
    return Pooling::kMeanValid;
  }
  if (modes == std::vector<std::string>{"cls"} || modes == std::vector<std::string>{"cls_token"})
    return Pooling::kFirst;
  return Invalid(file, absl::StrCat("pooling by ", modes.empty() ? "nothing" : absl::StrJoin(modes, " and "),
                                    " is not served; served: mean_tokens or cls_token, one of them"));
}

// What the Transformer says of texts, under the first of its names that is there, as sentence-transformers looks for
// it.
absl::StatusOr<int32_t> ReadTextLimit(ModelFolder& files) {
  for (const char* kind : {"bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"}) {
    const std::string file = absl::StrCat("sentence_", kind, "_config.json");
    const absl::StatusOr<json> config = ReadJson(files, file);
    if (absl::IsNotFound(config.status())) continue;
    RETURN_IF_ERROR(config.status());
    JsonObject fields(*config, "");
    const json& most = fields.Value("max_seq_length", false);
    if (!most.is_null() && !IsInteger(most, 1, kMaxPositions)) {
      fields.FailAt("max_seq_length", most, absl::StrCat("allowed: an integer from 1 to ", kMaxPositions));
    }
    const json& lower = fields.Value("do_lower_case", false);
    if (!lower.is_null() && lower != false) {
      fields.FailAt("do_lower_case", lower, "served is false: a tokenizer that lowers case says so in its own files");
    }
    const absl::Status status = fields.Finish();
    if (!status.ok()) return Invalid(file, std::string(status.message()));
    return most.is_null() ? 0 : most.get<int32_t>();
  }
  return 0;
}

// A prompt before every text would change it.
absl::Status RefusePrompts(ModelFolder& files) {
  constexpr char kFile[] = "config_sentence_transformers.json";
  const absl::StatusOr<json> config = ReadJson(files, kFile);
  if (absl::IsNotFound(config.status())) return absl::OkStatus();
  RETURN_IF_ERROR(config.status());
  if (!config->is_object()) return Invalid(kFile, "an object is expected");
  const auto prompt = config->find("default_prompt_name");
  if (prompt == config->end() || prompt->is_null()) return absl::OkStatus();
  return Invalid(kFile, absl::StrCat("default_prompt_name is ", ShowJson(*prompt),
                                     "; served is null: put the prompt before the texts of requests"));
}

}  // namespace

absl::StatusOr<SentenceModules> ReadSentenceModules(ModelFolder& files) {
  ASSIGN_OR_RETURN(const json modules, ReadJson(files, kModules));
  if (!modules.is_array()) return Invalid(kModules, "a list of modules is expected");
  SentenceModules read;
  const std::vector<std::string> served = {"Transformer", "Pooling", "Normalize"};
  for (size_t i = 0; i < modules.size(); ++i) {
    const json& module = modules[i];
    const std::string who = absl::StrCat("module ", i);
    const auto text = [&](const char* field) {
      const bool there = module.is_object() && module.contains(field) && module[field].is_string();
      return there ? module[field].get<std::string>() : std::string();
    };
    const std::string kind = KindOf(text("type")), path = text("path");
    if (i >= served.size() || kind != served[i]) {
      return Invalid(kModules, absl::StrCat(who, " has the type ", ShowJson(json(text("type"))),
                                            "; served: a Transformer, then Pooling, then Normalize or nothing, of "
                                            "sentence_transformers"));
    }
    if (i == 0 && !path.empty()) {
      return Invalid(kModules, absl::StrCat("the Transformer is in ", ShowJson(json(path)),
                                            "; move its files beside modules.json, and make the path empty"));
    }
    if (i == 1) {
      if (!IsFolderName(path)) {
        return Invalid(kModules, absl::StrCat("the path of Pooling is ", ShowJson(json(path)),
                                              "; the name of a folder beside modules.json is expected"));
      }
      ASSIGN_OR_RETURN(read.pooling, ReadPooling(files, path));
    }
    read.normalize = i == 2;
  }
  if (modules.size() < 2) return Invalid(kModules, "has no Pooling; served: a Transformer, then Pooling");
  ASSIGN_OR_RETURN(read.max_seq_length, ReadTextLimit(files));
  RETURN_IF_ERROR(RefusePrompts(files));
  return read;
}

}  // namespace edgewise::hugging_face
