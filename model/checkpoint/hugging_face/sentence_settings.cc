#include "model/checkpoint/hugging_face/sentence_settings.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json_text.h"
#include "base/status_macros.h"
#include "model/config/config.h"

namespace edgewise::hugging_face {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxBytes = 1 << 20;

// Arguments for loaders that make no difference to an answer: where files come from, and how numbers are computed.
constexpr const char* kLoaderArguments[] = {"trust_remote_code",
                                            "revision",
                                            "subfolder",
                                            "token",
                                            "cache_dir",
                                            "local_files_only",
                                            "dtype",
                                            "torch_dtype",
                                            "attn_implementation",
                                            "device_map",
                                            "low_cpu_mem_usage",
                                            "use_cache",
                                            "use_fast",
                                            "use_safetensors",
                                            "padding_side",
                                            "truncation_side",
                                            "add_pooling_layer"};

// A number of tokens; 0: none, or more than any model takes, which is how transformers writes none (1e30).
int32_t ReadLimit(const char* field, JsonObject& fields) {
  const json& limit = fields.Value(field, false);
  if (limit.is_null() || (limit.is_number() && limit.get<double>() > kMaxPositions)) return 0;
  return fields.Integer(field, 1, kMaxPositions);
}

// The arguments for one loader, under its old or its new name. `limit`: where model_max_length is read to; null: it is
// an argument as others.
void ReadArguments(const char* name, const std::string& file, int32_t* limit, JsonObject& fields,
                   std::vector<std::string>& skipped) {
  const json& arguments = fields.Value(name, false);
  if (arguments.is_null()) return;
  JsonObject read(arguments, name);
  if (limit != nullptr && read.Has("model_max_length")) *limit = ReadLimit("model_max_length", read);
  for (const auto& [argument, value] : arguments.items()) {
    if (limit != nullptr && argument == "model_max_length") continue;
    const bool known =
        std::find(std::begin(kLoaderArguments), std::end(kLoaderArguments), argument) != std::end(kLoaderArguments);
    if (known) {
      skipped.push_back(absl::StrCat(file, ": ", name, ".", argument));
    } else {
      read.FailAt(argument, value, "it may change the answer, and is not served; save the model with it, without this");
    }
  }
  if (!read.status().ok()) fields.Fail(std::string(read.status().message()));
}

// Refuses a field that is anything but null, false or empty.
void RefuseSet(const char* name, const char* why, JsonObject& fields) {
  const json& value = fields.Value(name, false);
  if (value.is_null() || value == false || ((value.is_object() || value.is_array()) && value.empty())) return;
  fields.FailAt(name, value, why);
}

// How texts reach the model: modality_config, by the name of a modality. Others than texts are left out.
void ReadModalities(const std::string& file, const char* output, JsonObject& fields,
                    std::vector<std::string>& skipped) {
  const json& modalities = fields.Value("modality_config", false);
  if (modalities.is_null()) return;
  JsonObject read(modalities, "modality_config");
  if (read.Has("message")) {
    read.Fail(
        "modality_config.message is given: texts would be put into the tokenizer's chat template, which is not served "
        "for this model; save it with a modality_config of \"text\" alone");
  }
  JsonObject text(read.Value("text", true), "modality_config.text");
  text.Choice("method", {"forward"});
  const json& name = text.Value("method_output_name", true);
  if (name != output && name != json::array({output})) {
    text.FailAt("method_output_name", name, absl::StrCat("served: \"", output, "\""));
  }
  text.FinishInto(read);
  for (const auto& [modality, value] : modalities.items()) {
    if (modality != "text") skipped.push_back(absl::StrCat(file, ": modality_config.", modality));
  }
  if (!read.status().ok()) fields.Fail(std::string(read.status().message()));
}

void ReadPrompts(JsonObject& fields, SentenceSettings& settings) {
  const json& prompts = fields.Value("prompts", false);
  if (!prompts.is_null() && !prompts.is_object()) fields.FailAt("prompts", prompts, "an object of texts is expected");
  std::vector<std::string> names;
  for (const auto& [name, text] : prompts.items()) {
    if (!text.is_string() && !text.is_null()) fields.FailAt("prompts." + name, text, "a text is expected");
    settings.prompts[name] = text.is_string() ? text.get<std::string>() : "";
    names.push_back(name);
  }
  const json& name = fields.Value("default_prompt_name", false);
  if (name.is_null()) return;
  settings.default_prompt = fields.String("default_prompt_name", "");
  if (settings.prompts.contains(settings.default_prompt)) return;
  fields.FailAt("default_prompt_name", name,
                names.empty() ? "there are no prompts"
                              : absl::StrCat("a name of prompts is expected: ", absl::StrJoin(names, ", ")));
}

}  // namespace

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

absl::Status InvalidIn(const std::string& file, const std::string& message) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", message));
}

void SkipFields(const std::vector<const char*>& names, const std::string& file, JsonObject& fields,
                std::vector<std::string>& skipped) {
  for (const char* name : names) {
    if (fields.Has(name)) skipped.push_back(absl::StrCat(file, ": ", name));
  }
}

std::string TorchClass(const std::string& path) {
  return absl::StartsWith(path, "torch.nn.") ? path.substr(path.rfind('.') + 1) : "";
}

absl::Status ReadModelSettings(ModelFolder& files, SentenceSettings& settings, std::vector<std::string>& skipped) {
  constexpr char kFile[] = "config_sentence_transformers.json";
  const absl::StatusOr<json> config = ReadJson(files, kFile);
  if (absl::IsNotFound(config.status())) return absl::OkStatus();
  RETURN_IF_ERROR(config.status());
  JsonObject fields(*config, "");
  settings.cross_encoder = fields.Choice("model_type", {"SentenceTransformer", "CrossEncoder"}, 0) == 1;
  ReadPrompts(fields, settings);
  if (!fields.Value("truncate_dim", false).is_null()) {
    settings.truncate_dim = fields.Integer("truncate_dim", 1, kMaxWidth);
  }
  if (!fields.Value("activation_fn", false).is_null()) settings.activation = fields.String("activation_fn", "");
  if (!fields.status().ok()) return InvalidIn(kFile, std::string(fields.status().message()));
  // sentence-transformers reads nothing else of it.
  for (const auto& [name, value] : config->items()) {
    const bool read = name == "model_type" || name == "prompts" || name == "default_prompt_name" ||
                      name == "truncate_dim" || name == "activation_fn";
    if (!read) skipped.push_back(absl::StrCat(kFile, ": ", name));
  }
  return absl::OkStatus();
}

absl::Status ReadTransformerSettings(ModelFolder& files, SentenceSettings& settings,
                                     std::vector<std::string>& skipped) {
  const bool scores = settings.cross_encoder;
  // The first of its names that is there counts, as sentence-transformers looks for it.
  for (const char* kind : {"bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"}) {
    const std::string file = absl::StrCat("sentence_", kind, "_config.json");
    const absl::StatusOr<json> config = ReadJson(files, file);
    if (absl::IsNotFound(config.status())) continue;
    RETURN_IF_ERROR(config.status());
    JsonObject fields(*config, "");
    fields.Choice("transformer_task", {scores ? "sequence-classification" : "feature-extraction"}, 0);
    fields.Choice("module_output_name", {scores ? "scores" : "token_embeddings"}, 0);
    ReadModalities(file, scores ? "logits" : "last_hidden_state", fields, skipped);
    settings.max_text_tokens = ReadLimit("max_seq_length", fields);
    settings.lower_case =
        fields.Value("do_lower_case", false).is_null() ? false : fields.Boolean("do_lower_case", false);
    for (const char* name : {"model_args", "model_kwargs", "config_args", "config_kwargs"}) {
      ReadArguments(name, file, nullptr, fields, skipped);
    }
    // As there, this limit comes before max_seq_length.
    for (const char* name : {"tokenizer_args", "processor_kwargs"}) {
      ReadArguments(name, file, &settings.max_text_tokens, fields, skipped);
    }
    RefuseSet("processing_kwargs", "it may change the tokens of a text, and is not served; served is none", fields);
    for (const char* name : {"query_length", "document_length", "query_expansion"}) {
      RefuseSet(name, "texts are cut and filled alike, whatever they are; served is null", fields);
    }
    RefuseSet("tokenizer_name_or_path", "the tokenizer beside the model is read; served is null", fields);
    SkipFields({"unpad_inputs"}, file, fields, skipped);
    const absl::Status status = fields.Finish();
    return status.ok() ? status : InvalidIn(file, std::string(status.message()));
  }
  return absl::OkStatus();
}

}  // namespace edgewise::hugging_face
