#include "model/checkpoint/hugging_face/folder.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/json_object.h"
#include "base/status_macros.h"
#include "model/checkpoint/hugging_face/end_tokens.h"
#include "model/checkpoint/hugging_face/image_files.h"
#include "model/checkpoint/hugging_face/sentence.h"
#include "model/checkpoint/hugging_face/sentence_head.h"
#include "model/checkpoint/hugging_face/tensors.h"
#include "model/checkpoint/hugging_face/tokenizer_files.h"
#include "model/checkpoint/parse_profiles.h"

namespace edgewise::hugging_face {
namespace {

using nlohmann::json;

absl::Status Invalid(const std::string& message) {
  return absl::InvalidArgumentError(absl::StrCat("config.json: ", message));
}

// Settings that change what the model computes, in a way that is not served.
absl::Status RefuseSettings(const json& config, const Family& family) {
  for (const char* field : {"is_encoder_decoder", "add_cross_attention", "is_decoder"}) {
    const auto found = config.find(field);
    if (found == config.end() || *found == false) continue;
    if (family.causal && field == std::string("is_decoder")) continue;
    return Invalid(
        absl::StrCat(field, " is ", ShowJson(*found), "; served is false", family.causal ? "" : ": encoders"));
  }
  for (const auto& [field, served] : {std::pair("is_causal", true), std::pair("use_bidirectional_attention", false)}) {
    const auto found = config.find(field);
    if (!family.causal || found == config.end() || *found == served) continue;
    return Invalid(absl::StrCat(field, " is ", ShowJson(*found), "; served is ", served ? "true" : "false",
                                ": a token attends to those before it"));
  }
  for (const char* field : {"auto_map", "quantization_config", "compression_config"}) {
    if (!config.contains(field)) continue;
    return Invalid(absl::StrCat(
        field, " is given, ",
        field == std::string("auto_map") ? "so code of its own defines the model" : "so its weights are quantized",
        ", which is not served"));
  }
  const auto pruned = config.find("pruned_heads");
  if (pruned != config.end() && !pruned->empty()) {
    return Invalid(absl::StrCat("pruned_heads is ", ShowJson(*pruned), "; models with pruned heads are not served"));
  }
  const auto kind = config.find("position_embedding_type");
  if (kind != config.end() && *kind != "absolute") {
    return Invalid(absl::StrCat("position_embedding_type is ", ShowJson(*kind), "; served: \"absolute\""));
  }
  return absl::OkStatus();
}

// The names are those of ACT2FN of transformers.
Activation ReadActivation(JsonObject& object, const Family& family, const char* field) {
  constexpr std::pair<const char*, Activation> kServed[] = {
      {"gelu", Activation::kGelu},
      {"gelu_python", Activation::kGelu},
      {"gelu_new", Activation::kGeluTanh},
      {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"gelu_python_tanh", Activation::kGeluTanh},
      {"gelu_fast", Activation::kGeluTanh},
      {"gelu_accurate", Activation::kGeluTanh},
      {"relu", Activation::kRelu},
      {"silu", Activation::kSilu},
      {"swish", Activation::kSilu},
      {"quick_gelu", Activation::kQuickGelu},
      {"mish", Activation::kMish},
      {"tanh", Activation::kTanh},
  };
  std::vector<std::string> names;
  int fallback = 0;
  for (const auto& [name, act] : kServed) {
    if (family.default_act == name) fallback = static_cast<int>(names.size());
    names.emplace_back(name);
  }
  return kServed[object.Choice(field, names, fallback)].second;
}

void ReadSizes(JsonObject& object, const Family& family, ModelConfig& config) {
  if (!family.images) config.vocab_size = object.Integer("vocab_size", 1, kMaxIds);
  config.hidden_size = object.Integer(family.hidden_size, 1, kMaxWidth);
  config.num_hidden_layers = object.Integer(family.num_hidden_layers, 1, 4096);
  config.num_attention_heads = object.Integer(family.num_attention_heads, 1, 4096);
  config.intermediate_size = family.four_times ? object.Integer(family.intermediate_size, 1, kMaxWidth,
                                                                std::min(4 * config.hidden_size, kMaxWidth))
                                               : object.Integer(family.intermediate_size, 1, kMaxWidth);
  config.head_dim = family.head_dim == nullptr ? 0 : object.Integer(family.head_dim, 1, 4096, family.default_head_dim);
  if (config.head_dim == 0 && config.hidden_size % config.num_attention_heads != 0) {
    object.Fail(absl::StrCat(family.num_attention_heads, " is ", config.num_attention_heads, ", ", family.hidden_size,
                             " is ", config.hidden_size, ": it does not divide"));
  }
  if (config.head_dim == 0) config.head_dim = std::max(1, config.hidden_size / config.num_attention_heads);
  config.score_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  config.hidden_act = ReadActivation(object, family, family.hidden_act);
  const double eps = family.default_layer_norm_eps;
  config.layer_norm_eps = static_cast<float>(
      family.layer_norm_eps == nullptr ? eps : object.Number(family.layer_norm_eps, 1e-12, 1.0, eps));
  config.attention.resize(config.num_hidden_layers);
  config.budget_shares.assign(config.num_hidden_layers, 1.0);
}

// How rows begin.
void ReadEncoder(JsonObject& object, const Family& family, ModelConfig& config) {
  config.norm_position = NormPosition::kPost;
  config.embedding_norm = true;
  config.position_offset = family.position_rows == PositionRows::kPlace      ? 0
                           : family.position_rows == PositionRows::kAfterTwo ? 2
                                                                             : config.pad_token_id + 1;
  if (family.position_rows == PositionRows::kAfterPad && config.pad_token_id < 0) {
    object.Fail("pad_token_id is null; positions begin after it");
  }
  if (family.position_rows == PositionRows::kAfterTwo && config.pad_token_id != 1) {
    object.Fail(absl::StrCat("pad_token_id is ", config.pad_token_id, "; the positions of ",
                             std::string(family.model_type), " leave out tokens of id 1, so 1 is served"));
  }
  const int32_t rows = object.Integer("max_position_embeddings", 1, kMaxPositions, 512);
  config.max_position_embeddings = std::max(1, rows - config.position_offset);
  if (rows <= config.position_offset) {
    object.Fail(absl::StrCat("max_position_embeddings is ", rows, "; the first ", config.position_offset,
                             " are for pads, so more are expected"));
  }
  if (family.token_types) {
    config.token_types = object.Integer("type_vocab_size", 1, kMaxPositions / config.max_position_embeddings, 2);
  }
  if (family.relative_buckets) {
    config.relative_buckets = object.Integer("relative_attention_num_buckets", 32, 32, 32);
  }
}

// As transformers reads them: there are as many labels as entries, whatever their keys, and a label is a string or a
// number. A num_labels that says otherwise leaves them without names, as no id2label does. A label without a name has
// the one that transformers gives by default.
void ReadLabels(JsonObject& object, ModelConfig& config) {
  const json& labels = object.Value("id2label", false);
  std::map<int32_t, std::string> names;
  if (!labels.is_null() && (!labels.is_object() || labels.empty())) {
    return object.Fail("id2label: an object of labels is expected");
  }
  for (const auto& [key, label] : labels.items()) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(key, &id)) {
      return object.Fail(absl::StrCat("id2label has the key ", ShowJson(json(key)), "; keys are ids, from \"0\""));
    }
    if (!label.is_string() && !label.is_number()) {
      return object.Fail(absl::StrCat("id2label: the label of \"", key, "\" is ", ShowJson(label),
                                      "; a string or a number is expected"));
    }
    names[id] = label.is_string() ? label.get<std::string>() : label.dump();
  }
  const int32_t entries = names.empty() ? 2 : static_cast<int32_t>(names.size());
  config.num_labels = object.Integer("num_labels", 1, 1 << 20, entries);
  if (config.num_labels != entries) names.clear();
  for (int32_t id = 0; id < config.num_labels; ++id) {
    const auto name = names.find(id);
    config.labels.push_back(name == names.end() ? absl::StrCat("LABEL_", id) : name->second);
  }
}

void ReadProblem(JsonObject& object, ModelConfig& config) {
  const std::string problem =
      object.String("problem_type", config.num_labels == 1 ? "regression" : "single_label_classification");
  if (problem == "regression") {
    config.task = ModelTask::kRegression;
    config.labels.clear();
  } else if (problem == "multi_label_classification") {
    config.multi_label = true;
  } else if (problem != "single_label_classification") {
    object.FailAt("problem_type", json(problem),
                  "allowed: single_label_classification, multi_label_classification, regression");
  } else if (config.num_labels == 1) {
    object.Fail("problem_type is \"single_label_classification\" with one label; its probability would always be 1");
  }
}

// The embedding of a model of images: the pooler's output for the CLS row.
void ReadImagePooler(JsonObject& object, ModelConfig& config) {
  object.Choice("pooler_act", {"tanh"}, 0);
  config.classifier_hidden_size = object.Integer("pooler_output_size", 1, kMaxWidth, config.hidden_size);
  config.num_labels = config.embedding_size = config.classifier_hidden_size;
  config.pooling = Pooling::kFirst;
}

bool ReadsMean(JsonObject& object, const Family& family) {
  return family.classifier_pooling != nullptr && object.Choice(family.classifier_pooling, {"cls", "mean"}, 0) == 1;
}

// The class of the model, and its head. `embeds`: modules of sentence-transformers follow the layers instead; `scores`:
// the model is a cross-encoder.
absl::Status ReadArchitecture(ModelFolder& files, const json& config, bool embeds, bool scores, Folder& folder) {
  const Family& family = *folder.family;
  const auto architectures = config.find("architectures");
  folder.head = &family.heads[0];
  folder.architecture = ClassName(family, *folder.head);
  if (embeds) {  // sentence-transformers takes the base model of whatever there is
    if (!family.images) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("modules.json: sentence encoders of model_type ",
                                                   std::string(family.model_type), " are not served"));
  }
  if (architectures == config.end() || *architectures == json::array()) {
    const auto classifies = std::find_if(family.heads.begin(), family.heads.end(), [](const TaskHead& head) {
      return head.task == ModelTask::kSequenceClassification;
    });
    if (scores && classifies != family.heads.end()) {
      folder.head = &*classifies;
    } else {
      ASSIGN_OR_RETURN(folder.head, HeadOfWeights(files, family, folder.weights));
    }
    folder.architecture = ClassName(family, *folder.head);
    return absl::OkStatus();
  }
  std::string served;
  for (const TaskHead& head : family.heads) {
    const std::string name = ClassName(family, head);
    if (*architectures == json::array({name})) {
      folder.head = &head;
      folder.architecture = name;
      return absl::OkStatus();
    }
    absl::StrAppend(&served, served.empty() ? "" : ", ", name);
  }
  return Invalid(absl::StrCat("architectures is ", ShowJson(*architectures), "; served: one of ", served));
}

absl::Status ReadHead(const SentenceModules* modules, JsonObject& object, Folder& folder) {
  ModelConfig& config = folder.config;
  config.task = folder.head->task;
  switch (folder.head->act) {
    case TaskHead::Act::kNone:
      break;
    case TaskHead::Act::kRelu:
      config.classifier_act = Activation::kRelu;
      break;
    case TaskHead::Act::kTanh:
      config.classifier_act = Activation::kTanh;
      break;
    case TaskHead::Act::kGelu:
      config.classifier_act = Activation::kGelu;
      break;
    case TaskHead::Act::kHidden:
      config.classifier_act = folder.family->classifier_act == nullptr
                                  ? config.hidden_act
                                  : ReadActivation(object, *folder.family, folder.family->classifier_act);
      break;
  }
  if (folder.head->act != TaskHead::Act::kNone) config.classifier_hidden_size = config.hidden_size;
  for (const TensorName& tensor : folder.head->tensors) config.classifier_norm |= tensor.ours == "classifier.norm";
  switch (config.task) {
    case ModelTask::kEmbedding:
      if (folder.family->images) {
        ReadImagePooler(object, config);
        return absl::OkStatus();
      }
      config.causal = folder.family->causal;
      return ReadEmbedding(modules, config);
    case ModelTask::kFillMask: {
      config.num_labels = config.vocab_size;
      folder.tied = object.Boolean("tie_word_embeddings", true);
      RETURN_IF_ERROR(object.status().ok() ? absl::OkStatus() : Invalid(std::string(object.status().message())));
      ASSIGN_OR_RETURN(config.mask_token_id,
                       MaskTokenOf(folder.tokenizer.get(), *folder.family, config.tokenizer.unread));
      if (config.mask_token_id >= config.vocab_size) {  // which a tokenizer may be
        return Invalid(absl::StrCat("vocab_size is ", config.vocab_size, "; the id of the mask token is ",
                                    config.mask_token_id, ", beyond it"));
      }
      if (config.mask_token_id == config.pad_token_id) {
        return Invalid(absl::StrCat("pad_token_id is ", config.pad_token_id, ", the id of the mask token"));
      }
      return absl::OkStatus();
    }
    case ModelTask::kCausalLm:
      config.causal = true;
      config.num_labels = config.vocab_size;
      config.tie_word_embeddings = folder.tied = object.Boolean("tie_word_embeddings", folder.family->tied);
      return absl::OkStatus();
    case ModelTask::kSequenceClassification:
      config.pooling = ReadsMean(object, *folder.family) ? Pooling::kMeanValid : Pooling::kFirst;
      ReadLabels(object, config);
      ReadProblem(object, config);
      return ReadScores(modules, object, config);
    default:
      ReadLabels(object, config);
      return absl::OkStatus();
  }
}

// Without the fields that are null, which transformers reads as if they were absent.
json WithoutNulls(const json& config) {
  json without = json::object();
  for (const auto& [field, value] : config.items()) {
    if (!value.is_null()) without[field] = value;
    // Absent, it is the window that the family has by default; null, there is none.
    if (value.is_null() && field == "sliding_window") without[field] = false;
    // Versions of transformers differ in what it is, so a family that reads it refuses it.
    if (value.is_null() && field == "local_rope_theta") without[field] = false;
  }
  return without;
}

}  // namespace

bool IsHuggingFace(const json& config) {
  return config.is_object() && !config.contains("task") &&
         (config.contains("model_type") || config.contains("architectures"));
}

absl::StatusOr<Folder> ReadFolder(ModelFolder& files, const json& whole) {
  const json config = WithoutNulls(whole);
  Folder folder;
  const auto type = config.find("model_type");
  if (type == config.end()) {
    return Invalid(absl::StrCat("model_type is missing; served: ", FamilyNames(), " (or, in our own format, a task)"));
  }
  folder.family = type->is_string() ? FindFamily(type->get<std::string>()) : nullptr;
  if (folder.family == nullptr) {
    return Invalid(absl::StrCat("model_type is ", ShowJson(*type), "; served: ", FamilyNames(),
                                "; docs/convert.md#hugging-face says what else can be converted"));
  }
  RETURN_IF_ERROR(RefuseSettings(config, *folder.family));
  if (files.Has("adapter_config.json")) {
    return absl::InvalidArgumentError(
        "adapter_config.json: adapters are not served; merge it into the model (merge_and_unload) and save that");
  }
  ASSIGN_OR_RETURN(std::optional<SentenceModules> sentence, ReadSentenceModules(files));
  const SentenceModules* const modules = sentence.has_value() ? &*sentence : nullptr;
  const bool scores = modules != nullptr && modules->settings.cross_encoder;
  JsonObject object(config, "");
  folder.weights = object.String("transformers_weights", "");
  RETURN_IF_ERROR(ReadArchitecture(files, config, modules != nullptr && !scores, scores, folder));
  if (scores && folder.head->task != ModelTask::kSequenceClassification) {
    return Invalid(absl::StrCat("architectures is [\"", folder.architecture, "\"]; served of a CrossEncoder: ",
                                std::string(folder.family->class_name), "ForSequenceClassification"));
  }

  const auto pad = whole.find("pad_token_id");
  ReadSizes(object, *folder.family, folder.config);
  if (!folder.family->causal && !folder.family->images) {
    const bool none = pad != whole.end() && pad->is_null();
    const int32_t fallback = folder.family->pad_token_id, last = folder.config.vocab_size - 1;
    folder.config.pad_token_id = none ? -1 : object.Integer("pad_token_id", -1, last, fallback);
  }
  if (folder.family->read_more != nullptr) {
    folder.family->read_more(object, folder.config);
  } else {
    ReadEncoder(object, *folder.family, folder.config);
  }
  if (!object.status().ok()) return Invalid(std::string(object.status().message()));
  if (!folder.family->images) {
    ASSIGN_OR_RETURN(folder.tokenizer, ReadTokenizer(files, modules != nullptr && modules->settings.lower_case));
    if (folder.tokenizer == nullptr) folder.config.tokenizer.unread = UnreadTokenizer(files);
  }
  if (folder.tokenizer != nullptr) {
    folder.config.tokenizer.kind = TokenizerKind::kHuggingFace;
    ASSIGN_OR_RETURN(folder.config.text_types, GivesTypes(files));
    RETURN_IF_ERROR(CheckTokenizer(*folder.tokenizer, config, folder.config));
  }
  RETURN_IF_ERROR(ReadHead(modules, object, folder));
  if (!object.status().ok()) return Invalid(std::string(object.status().message()));
  RETURN_IF_ERROR(ReadTexts(files, modules, folder.tokenizer.get(), folder.config));
  if (sentence.has_value()) {
    folder.dense_folders = std::move(sentence->dense_folders);
    folder.skipped_fields = std::move(sentence->skipped);
  }
  if (folder.config.task == ModelTask::kCausalLm) {
    ASSIGN_OR_RETURN(folder.config.end_token_ids, ReadEndTokens(files, config, folder.config.vocab_size));
    if (folder.tokenizer != nullptr) {
      folder.chat = ReadChatTemplate(files, *folder.tokenizer);
    }
  }
  folder.config.profiles = ParseProfiles(object, folder.config);
  if (object.Has("default_profile")) {  // other unknown fields are transformers'; this one could only be meant for us
    object.FailAt("default_profile", object.Value("default_profile", false),
                  "no such field; set \"default\": true in the profile, profiles.NAME.default");
  }
  if (!object.status().ok()) return Invalid(std::string(object.status().message()));
  json others = whole;
  for (const char* field : {"profiles", "limits", "shadow"}) others.erase(field);
  folder.config.others = others.dump();
  if (folder.family->images) RETURN_IF_ERROR(ReadPreprocessor(files, folder.config));
  return folder;
}

}  // namespace edgewise::hugging_face
