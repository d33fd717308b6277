#include "model/checkpoint/parse_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json_object.h"
#include "base/json_text.h"
#include "model/checkpoint/parse_profiles.h"
#include "model/kinds/kind.h"
#include "model/tokenizers/tokenizer.h"

namespace edgewise {
namespace {

using nlohmann::json;

// The first `count` names of an enumeration.
template <typename Enum>
std::vector<std::string> Names(int count, const char* (*name)(Enum)) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.emplace_back(name(static_cast<Enum>(i)));
  return names;
}

const std::vector<std::string> kTasks = Names(5, ModelTaskName);  // the later ones: Hugging Face folders only
const std::vector<std::string> kTokenizers = Names(4, TokenizerName);
const std::vector<std::string> kPositions = {"learned", "sinusoidal", "none", "alibi", "relative"};

// The number of code points of valid UTF-8.
size_t Characters(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

TokenizerConfig ParseTokenizer(const json& value, int32_t vocab_size, JsonObject& parent) {
  TokenizerConfig tokenizer;
  JsonObject object(value, "tokenizer");
  tokenizer.kind = static_cast<TokenizerKind>(object.Choice("kind", kTokenizers));
  if (tokenizer.kind == TokenizerKind::kByte) {
    tokenizer.offset = object.Integer("offset", 0, kMaxIds, 1);
    if (tokenizer.offset + 256 > vocab_size) {
      object.Fail(absl::StrCat("tokenizer.offset is ", tokenizer.offset, ": byte 255 would be token ",
                               tokenizer.offset + 255, "; vocab_size is ", vocab_size));
    }
  }
  if (tokenizer.kind == TokenizerKind::kChar || tokenizer.kind == TokenizerKind::kWord) {
    const json& vocabulary = object.Value("vocabulary", true);
    if (!vocabulary.is_array()) object.Fail("tokenizer.vocabulary: a list of strings is expected");
    std::set<std::string> seen;
    for (size_t i = 0; vocabulary.is_array() && i < vocabulary.size(); ++i) {
      const json& entry = vocabulary[i];
      const bool character = tokenizer.kind == TokenizerKind::kChar;
      if (!entry.is_string()) {
        object.FailAt(absl::StrCat("vocabulary[", i, "]"), entry, "a string is expected");
        break;
      }
      tokenizer.vocabulary.push_back(entry.get<std::string>());
      const std::string& text = tokenizer.vocabulary.back();
      if (character && !HoldsAPlace(text) && Characters(text) != 1) {
        object.FailAt(absl::StrCat("vocabulary[", i, "]"), entry, "one character is expected");
      }
      if (!seen.insert(tokenizer.vocabulary.back()).second) {
        object.Fail(absl::StrCat("tokenizer.vocabulary[", i, "] repeats ", ShowJson(entry)));
      }
    }
    if (vocabulary.is_array() && std::all_of(seen.begin(), seen.end(), HoldsAPlace)) {
      object.FailAt("vocabulary", vocabulary,
                    "no text has a token by it; at least one entry that is not in angle brackets is expected");
    }
    const int64_t size = static_cast<int64_t>(tokenizer.vocabulary.size());
    if (size > vocab_size) {
      object.Fail(absl::StrCat("tokenizer.vocabulary has ", size, " entries; vocab_size is ", vocab_size));
    }
    tokenizer.unknown_token_id = object.Integer("unknown_token_id", 0, std::max(vocab_size - 1, 0), -1);
  }
  if (tokenizer.kind == TokenizerKind::kWord) {
    tokenizer.lowercase = object.Boolean("lowercase", false);
    const json& substitutions = object.Value("substitutions", false);
    if (!substitutions.is_null() && !substitutions.is_object()) {
      object.Fail("tokenizer.substitutions: an object is expected");
    }
    for (const auto& [word, becomes] : substitutions.items()) {
      if (!becomes.is_string()) {
        object.Fail(absl::StrCat("tokenizer.substitutions: ", ShowJson(json(word)), " becomes ", ShowJson(becomes),
                                 "; a string is expected"));
        break;
      }
      tokenizer.substitutions[word] = becomes.get<std::string>();
    }
  }
  object.FinishInto(parent);
  return tokenizer;
}

// Reads whether the input is tokens of a vocabulary or rows of features.
void ParseInputKind(JsonObject& object, ModelConfig& config) {
  if (!object.Has("feature_size")) {
    config.vocab_size = object.Integer("vocab_size", 1, kMaxIds);
    config.pad_token_id = object.Integer("pad_token_id", -1, config.vocab_size - 1, 0);
    config.cls_token_id = object.Integer("cls_token_id", 0, config.vocab_size - 1, -1);
    if (config.cls_token_id >= 0 && config.cls_token_id == config.pad_token_id) {
      object.Fail(absl::StrCat("cls_token_id is ", config.cls_token_id, ", the pad token"));
    }
    const json& tokenizer = object.Value("tokenizer", false);
    if (!tokenizer.is_null()) config.tokenizer = ParseTokenizer(tokenizer, config.vocab_size, object);
    return;
  }
  config.feature_size = object.Integer("feature_size", 1, kMaxWidth);
  if (config.task == ModelTask::kCausalLm) object.Fail("feature_size is given; task causal-lm takes tokens");
  if (object.Has("vocab_size")) object.Fail("vocab_size is given beside feature_size; a model has one of them");
  config.pad_token_id = -1;
  const json& pad = object.Value("pad_token_id", false);
  if (!pad.is_null() && pad != -1) {
    object.FailAt("pad_token_id", pad, "allowed beside feature_size: -1 (none)");
  }
  if (object.Has("cls_token_id")) object.Fail("cls_token_id is given; rows of features (feature_size) have no tokens");
  const json& tokenizer = object.Value("tokenizer", false);
  if (tokenizer.is_null()) return;
  JsonObject none(tokenizer, "tokenizer");
  none.Choice("kind", {"none"});
  const absl::Status status = none.Finish();
  if (!status.ok()) object.Fail(absl::StrCat(std::string(status.message()), ", as there is a feature_size"));
}

void ParseCausal(JsonObject& object, ModelConfig& config) {
  const bool language = config.task == ModelTask::kCausalLm;
  config.causal = language;
  if (object.Boolean("causal", language) != language) {
    object.Fail(absl::StrCat("causal is ", language ? "false" : "true", "; task ", ModelTaskName(config.task), " is ",
                             language ? "causal" : "not causal"));
  }
  if (!language && object.Has("tie_word_embeddings")) {
    object.Fail(
        absl::StrCat("tie_word_embeddings is given; task ", ModelTaskName(config.task), " has no output layer to tie"));
  }
  config.tie_word_embeddings = object.Boolean("tie_word_embeddings", true);
}

// Reads the number of outputs: labels, values, or the tokens of the vocabulary.
void ParseOutputs(JsonObject& object, ModelConfig& config) {
  if (config.task != ModelTask::kCausalLm) {
    config.num_labels = object.Integer("num_labels", 1, 1 << 20);
    config.classifier_hidden_size = object.Integer("classifier_hidden_size", 0, kMaxWidth, 0);
    if (config.task == ModelTask::kSequenceClassification || config.task == ModelTask::kPairClassification) {
      config.multi_label =
          object.Choice("problem_type", {"single_label_classification", "multi_label_classification"}, 0) == 1;
    } else if (object.Has("problem_type")) {
      object.Fail(absl::StrCat("problem_type is given; task ", ModelTaskName(config.task), " is of one kind"));
    }
    return;
  }
  config.num_labels = config.vocab_size;
  for (const char* field : {"num_labels", "id2label", "classifier_hidden_size", "problem_type"}) {
    if (object.Has(field)) object.Fail(absl::StrCat(field, " is given; task causal-lm has no classifier"));
  }
}

void ParsePairwiseBias(JsonObject& object, ModelConfig& config) {
  const json& value = object.Value("pairwise_bias", false);
  if (value.is_null()) return;
  JsonObject bias(value, "pairwise_bias");
  config.pairwise_bias =
      bias.Choice("kind", {"values", "buckets"}) == 0 ? PairwiseBiasKind::kValues : PairwiseBiasKind::kBuckets;
  if (config.pairwise_bias == PairwiseBiasKind::kBuckets) {
    config.num_buckets = bias.Integer("num_buckets", 1, 256);  // a bucket is one byte
  }
  bias.FinishInto(object);
}

void ParsePooling(JsonObject& object, ModelConfig& config) {
  const bool none = config.task == ModelTask::kTokenClassification || config.task == ModelTask::kCausalLm;
  const json& value = object.Value("pooling", !none);
  if (none) {
    if (!value.is_null()) object.Fail(absl::StrCat("pooling: task ", ModelTaskName(config.task), " has none"));
    return;
  }
  if (value.is_null()) return;
  JsonObject pooling(value, "pooling");
  if (pooling.Choice("kind", {"mean", "cls"}) == 1) {
    config.pooling = Pooling::kCls;
    if (config.feature_size > 0) {
      object.Fail("pooling.kind is \"cls\"; allowed beside feature_size: mean");
    } else if (config.cls_token_id < 0) {
      object.Fail("cls_token_id is missing; pooling.kind \"cls\" needs it");
    }
  } else {
    config.pooling =
        pooling.Choice("divisor", {"valid", "max_length"}) == 0 ? Pooling::kMeanValid : Pooling::kMeanMaxLength;
  }
  pooling.FinishInto(object);
}

void ParseLabels(JsonObject& object, ModelConfig& config) {
  const json& value = object.Value("id2label", false);
  if (value.is_null()) return;
  config.labels.assign(config.num_labels, "");
  if (!value.is_object() || value.size() != config.labels.size()) {
    object.Fail(absl::StrCat("id2label: an object with the keys \"0\" to \"", config.num_labels - 1, "\" is expected"));
    return;
  }
  for (int32_t id = 0; id < config.num_labels; ++id) {
    const auto found = value.find(std::to_string(id));
    if (found == value.end() || !found->is_string()) {
      object.Fail(absl::StrCat("id2label: the label of \"", id, "\" is missing or no string"));
      return;
    }
    config.labels[id] = found->get<std::string>();
  }
}

void ParseBudgetShares(JsonObject& object, ModelConfig& config) {
  config.budget_shares.assign(config.num_hidden_layers, 1.0);
  const json& value = object.Value("budget_shares", false);
  if (value.is_null()) return;
  if (!value.is_array() || value.size() != config.budget_shares.size()) {
    object.Fail(absl::StrCat("budget_shares: a list of ", config.num_hidden_layers, " numbers is expected"));
    return;
  }
  for (size_t l = 0; l < config.budget_shares.size(); ++l) {
    if (!value[l].is_number() || !(value[l].get<double>() > 0.0) || !(value[l].get<double>() <= 1e9)) {
      return object.FailAt(absl::StrCat("budget_shares[", l, "]"), value[l], "allowed: above 0, to 1e9");
    }
    config.budget_shares[l] = value[l].get<double>();
  }
}

// Reads one object of `attention` into the layers that it describes.
void ParseEntry(const json& value, const std::string& path, bool listed, const ModelConfig& config,
                AttentionKinds kinds, std::span<AttentionConfig> layers, JsonObject& parent) {
  JsonObject object(value, path);
  std::vector<std::string> names, causal;
  for (const AttentionKind* kind : kinds) {
    names.push_back(kind->name);
    if (kind->causal) causal.push_back(kind->name);
  }
  const AttentionKind& kind = *kinds[object.Choice("kind", names)];
  if (config.causal && !kind.causal) {
    object.FailAt("kind", json(kind.name), absl::StrCat("allowed on a causal model: ", absl::StrJoin(causal, ", ")));
  }
  for (AttentionConfig& layer : layers) layer.kind = &kind;
  if (kind.parse != nullptr) kind.parse(object, config, listed, layers);
  object.FinishInto(parent);
}

// Fills config.attention. All fields of the model but those of budgets have been read.
void ParseAttention(JsonObject& object, AttentionKinds kinds, ModelConfig& config) {
  const json& value = object.Value("attention", true);
  const size_t layers = config.num_hidden_layers;
  config.attention.resize(layers);
  const std::span<AttentionConfig> all(config.attention);
  if (value.is_object()) return ParseEntry(value, "attention", false, config, kinds, all, object);
  if (!value.is_array() || value.size() != layers) {
    return object.Fail(
        absl::StrCat("attention: an object, or a list of ", layers, " objects (one per layer) is expected"));
  }
  for (size_t l = 0; l < layers; ++l) {
    ParseEntry(value[l], absl::StrCat("attention[", l, "]"), true, config, kinds, all.subspan(l, 1), object);
    if (config.tied_layers && value[l] != value[0]) {
      object.Fail(absl::StrCat("attention[", l, "] differs from attention[0]; tied layers share theirs"));
    }
  }
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& text, AttentionKinds kinds) {
  absl::StatusOr<json> parsed = ParseStrictJson(text);
  if (!parsed.ok()) return parsed.status();
  JsonObject object(*parsed, "");
  ModelConfig config;
  config.task = static_cast<ModelTask>(object.Choice("task", kTasks));
  config.description = object.String("description", "");
  config.hidden_size = object.Integer("hidden_size", 1, kMaxWidth);
  config.num_hidden_layers = object.Integer("num_hidden_layers", 1, 4096);
  config.tied_layers = object.Boolean("tied_layers", false);
  config.num_attention_heads = object.Integer("num_attention_heads", 1, 4096);
  config.head_dim = object.Integer("head_dim", 1, 4096, 0);
  if (config.head_dim == 0) {
    if (config.hidden_size % config.num_attention_heads != 0) {
      object.Fail(absl::StrCat("num_attention_heads is ", config.num_attention_heads, ", hidden_size is ",
                               config.hidden_size, ": it does not divide; give head_dim"));
    }
    config.head_dim = std::max(1, config.hidden_size / config.num_attention_heads);
  }
  config.score_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  config.intermediate_size = object.Integer("intermediate_size", 1, kMaxWidth);
  config.max_position_embeddings = object.Integer("max_position_embeddings", 1, kMaxPositions);
  config.layer_norm_eps = static_cast<float>(object.Number("layer_norm_eps", 1e-12, 1.0, 1e-5));
  config.hidden_act = object.Choice("hidden_act", {"gelu", "relu"}, 0) == 0 ? Activation::kGelu : Activation::kRelu;
  config.norm_position = static_cast<NormPosition>(object.Choice("norm_position", {"pre", "post"}, 0));
  config.position_embedding = static_cast<PositionEmbedding>(object.Choice("position_embedding", kPositions, 0));
  ParseInputKind(object, config);
  ParseCausal(object, config);
  ParseOutputs(object, config);
  ParsePairwiseBias(object, config);
  ParsePooling(object, config);
  ParseLabels(object, config);
  ParseAttention(object, kinds, config);
  ParseBudgetShares(object, config);
  config.budget_keep = ParseKeep(object, "budget_keep", config).value_or(CapRule::kRandom);
  config.profiles = ParseProfiles(object, config);
  const absl::Status status = object.Finish();
  if (!status.ok()) return status;
  for (const char* field : {"profiles", "limits", "shadow"}) parsed->erase(field);
  config.others = parsed->dump();
  return config;
}

}  // namespace edgewise
