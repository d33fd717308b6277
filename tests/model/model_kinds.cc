#include "tests/model/model_kinds.h"

#include <algorithm>
#include <ostream>
#include <stdexcept>

#include "base/json_object.h"
#include "model/checkpoint/parse_config.h"
#include "model/kinds/override.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;

json Sbm(const char* law, bool self_loops, int window) {
  return {{"kind", "sbm"},       {"num_clusters", 16},       {"law", law},
          {"exploration", 0.01}, {"self_loops", self_loops}, {"local_window", window}};
}

json Local(int windows, json sigma) {
  return {{"kind", "ssa"}, {"bias", "local"}, {"windows", windows}, {"sigma", std::move(sigma)}};
}

json Keep(int keep) { return {{"kind", "ssa"}, {"bias", "none"}, {"keep", keep}}; }

json Grid(int windows) {
  return {{"kind", "ssa"}, {"bias", "local"}, {"windows", windows}, {"sigma", 0.3}, {"grid", {8, 8}}};
}

json Blocks(json size, const char* pattern, const json& more = json::object()) {
  json attention = {{"kind", "block"}, {"block_size", std::move(size)}, {"pattern", pattern}};
  attention.update(more);
  return attention;
}

json WindowTokens(int tokens, json sigma) {
  return {{"kind", "ssa"}, {"bias", "local"}, {"window_tokens", tokens}, {"sigma", std::move(sigma)}};
}

// The same as fields of an override.
json OverrideBy(json attention) {
  attention.erase("bias");
  return attention;
}

json Toy(int stride) { return {{"kind", "every_nth"}, {"stride", stride}}; }

const json kDense = {{"kind", "dense"}};

// A merge patch: the attention of SmallConfig goes as a whole, because a list replaces and an object would be merged.
json Attention(const json& attention, json changes = json::object()) {
  if (!attention.is_object()) {
    changes["attention"] = attention;
    return changes;
  }
  const size_t layers = changes.value("num_hidden_layers", 2);
  const bool spread =
      attention.contains("last_layers") || (attention.contains("sigma") && attention["sigma"].is_array());
  if (!spread) {
    changes["attention"] = std::vector<json>(layers, attention);
    return changes;
  }
  changes["attention"] = attention;  // of one object for all layers: take away what SmallConfig has
  for (const char* field : {"num_clusters", "law", "exploration"}) changes["attention"][field] = nullptr;
  return changes;
}

json Language(const json& attention, json changes = json::object()) {
  changes.update(
      {{"task", "causal-lm"}, {"pooling", nullptr}, {"num_labels", nullptr}, {"classifier_hidden_size", nullptr}});
  if (!changes.contains("pad_token_id")) changes["pad_token_id"] = -1;
  return Attention(attention, std::move(changes));
}

json Features(const json& attention, json changes = json::object()) {
  changes.update({{"vocab_size", nullptr}, {"feature_size", 5}, {"pad_token_id", nullptr}});
  return Attention(attention, std::move(changes));
}

// A Hugging Face folder: `changes` of its config.json, as a merge patch.
ModelKind HuggingFace(const char* name, const char* type, const char* architecture,
                      const json& changes = json::object(), json override_with = {}) {
  const bool distilled = std::string(type) == "distilbert", counted = std::string(type) == "roberta";
  const bool mpnet = std::string(type) == "mpnet";  // its pads have id 1
  const bool gpt2 = std::string(type) == "gpt2";
  json config = {{"model_type", type},       {"architectures", {architecture}},
                 {"vocab_size", 50},         {"pad_token_id", mpnet ? 1 : 0},
                 {"type_vocab_size", 2},     {"id2label", {{"0", "a"}, {"1", "b"}}},
                 {"hidden_act", "gelu_new"}, {"max_position_embeddings", counted ? 65 : mpnet ? 66 : 64}};
  const char* const ours[] = {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"};
  const char* const theirs[] = {"dim", "n_layers", "n_heads", "hidden_dim"};
  const int sizes[] = {32, 2, 2, 48};
  const char* const gpt2_names[] = {"n_embd", "n_layer", "n_head", "n_inner"};
  for (int i = 0; i < 4; ++i) config[distilled ? theirs[i] : gpt2 ? gpt2_names[i] : ours[i]] = sizes[i];
  if (gpt2) config["n_positions"] = 64;
  config.merge_patch(changes);
  return {.name = name, .changes = config, .override_with = std::move(override_with), .hugging_face = true};
}

// The "_files" of a sentence encoder, and of a model with a mask token.
json Sentence(const char* pooling, bool normalize) {
  json modules = {{{"type", "sentence_transformers.models.Transformer"}, {"path", ""}},
                  {{"type", "sentence_transformers.models.Pooling"}, {"path", "1_Pooling"}}};
  if (normalize) modules.push_back({{"type", "sentence_transformers.models.Normalize"}, {"path", "2_Normalize"}});
  return {{"_files", {{"modules.json", modules}, {"1_Pooling/config.json", {{pooling, true}}}}}};
}

json With(json changes, const json& more) {
  changes.update(more);
  return changes;
}

json Mask(const char* token) {
  const json model = {{"type", "WordPiece"},
                      {"unk_token", "[UNK]"},
                      {"continuing_subword_prefix", "##"},
                      {"max_input_chars_per_word", 100},
                      {"vocab", {{"[UNK]", 1}, {token, 49}}}};
  return {{"_files", {{"tokenizer.json", {{"model", model}}}}}};
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const ModelKind& kind) { return out << kind.name; }

std::vector<ModelKind> LanguageModelKinds() {
  const json adaptive = {{"min", 3}, {"max", 16}, {"alpha", 0.1}};
  const json blocks = {{0, 0}, {1, 0}, {1, 1}, {2, 1}, {3, 0}, {3, 3}};
  return {
      {"lm_dense", Language(kDense)},
      {"lm_dense_pads_alibi", Language(kDense, {{"pad_token_id", 0}, {"position_embedding", "alibi"}})},
      {"lm_untied_post_relative",
       Language(kDense,
                {{"tie_word_embeddings", false}, {"norm_position", "post"}, {"position_embedding", "relative"}})},
      {"lm_ssa_local", Language(Local(6, 0.2))},
      {"lm_ssa_pads", Language(Local(5, 0.3), {{"pad_token_id", 0}})},
      {"lm_ssa_none", Language(Keep(9))},
      {"lm_ssa_grid", Language(Grid(4))},
      {"lm_ssa_schedule_dense_below",
       Language({{"kind", "ssa"}, {"bias", "local"}, {"windows", 4}, {"sigma", {0.1, 0.4}}, {"last_layers", 2}},
                {{"num_hidden_layers", 4}})},
      {"lm_block_local", Language(Blocks(6, "local"), {{"pad_token_id", 0}})},
      {"lm_block_adaptive", Language(Blocks(adaptive, "first_and_diagonal"))},
      {"lm_block_list", Language(Blocks(16, "list", {{"blocks", blocks}}))},
      {"lm_block_learned", Language(Blocks(8, "learned", {{"threshold", 0.5}}))},
      {"lm_mixed", Language({kDense, Local(4, 0.2), Blocks(8, "local")}, {{"num_hidden_layers", 3}})},
      {"lm_toy", Language(Toy(2), {{"pad_token_id", 0}})},
      {"lm_ssa_window_tokens", Language(WindowTokens(7, 5.0), {{"pad_token_id", 0}})},
      {"lm_override", Language(kDense, {{"num_hidden_layers", 3}}), OverrideBy(Local(4, 0.2))},
      {"lm_override_window_tokens", Language(kDense, {{"num_hidden_layers", 3}, {"pad_token_id", 0}}),
       OverrideBy(WindowTokens(9, {3.0, 12.0}))},
      {"lm_override_block", Language(kDense, {{"num_hidden_layers", 3}, {"pad_token_id", 0}}),
       Blocks(6, "local", {{"last_layers", 2}})},
      {"lm_override_block_strided", Language(kDense), Blocks(4, "strided", {{"stride", 3}})},
      {"lm_override_threshold",
       Language(Blocks(8, "learned", {{"threshold", 0.9}})),
       {{"kind", "block"}, {"pattern", "learned"}, {"threshold", 0.4}}},
      HuggingFace("lm_hf_llama", "llama", "LlamaForCausalLM", {{"num_key_value_heads", 1}}),
      HuggingFace("lm_hf_llama_ssa", "llama", "LlamaForCausalLM", {{"num_key_value_heads", 1}},
                  OverrideBy(Local(4, 0.2))),
      HuggingFace("lm_hf_mistral", "mistral", "MistralForCausalLM",
                  {{"num_key_value_heads", 2}, {"sliding_window", 9}}),
      HuggingFace("lm_hf_mistral_ssa", "mistral", "MistralForCausalLM",
                  {{"num_key_value_heads", 1}, {"sliding_window", 5}}, OverrideBy(Keep(6))),
      HuggingFace(
          "lm_hf_qwen2_block", "qwen2", "Qwen2ForCausalLM",
          {{"num_key_value_heads", 2}, {"use_sliding_window", true}, {"sliding_window", 12}, {"max_window_layers", 1}},
          Blocks(6, "local")),
      HuggingFace("lm_hf_qwen3", "qwen3", "Qwen3ForCausalLM",
                  {{"num_key_value_heads", 1},
                   {"head_dim", 20},
                   {"attention_bias", true},
                   {"layer_types", {"sliding_attention", "full_attention"}},
                   {"use_sliding_window", true},
                   {"sliding_window", 7}}),
      HuggingFace("lm_hf_gpt2", "gpt2", "GPT2LMHeadModel"),
      HuggingFace("lm_hf_gpt2_ssa", "gpt2", "GPT2LMHeadModel", {{"tie_word_embeddings", false}},
                  OverrideBy(Local(4, 0.2))),
  };
}

std::vector<ModelKind> ModelKinds() {
  std::vector<ModelKind> kinds = {
      {"bernoulli", json::object()},
      {"poisson_set", Attention(Sbm("poisson_set", false, 0))},
      {"poisson_multi", Attention(Sbm("poisson_multi", true, 0))},
      {"self_loops_three_heads", Attention(Sbm("bernoulli", true, 0), {{"num_attention_heads", 3}, {"head_dim", 16}})},
      {"window_four_layers", Attention(Sbm("bernoulli", true, 6), {{"num_hidden_layers", 4}})},
      {"pair", {{"task", "pair-classification"}}},
      {"tied_pair", {{"task", "pair-classification"}, {"tied_layers", true}, {"num_hidden_layers", 3}}},
      {"dense_below",
       Attention({kDense, Sbm("bernoulli", false, 0), Sbm("poisson_set", true, 0)}, {{"num_hidden_layers", 3}})},
      {"shares", {{"num_hidden_layers", 3}, {"budget_shares", {1.0, 4.0, 0.5}}}},
      {"cls", {{"pooling", {{"kind", "cls"}, {"divisor", nullptr}}}, {"cls_token_id", 49}}},
      {"tokens", {{"task", "token-classification"}, {"pooling", nullptr}}},
      {"dense", Attention(kDense)},
      {"ssa_local", Attention(Local(4, 0.2))},
      {"ssa_schedule",
       Attention({{"kind", "ssa"}, {"bias", "local"}, {"windows", 3}, {"sigma", {0.1, 0.5}}, {"last_layers", 2}},
                 {{"num_hidden_layers", 3}})},
      {"ssa_none_keep", Attention(Keep(7))},
      {"ssa_none_windows", Attention({{"kind", "ssa"}, {"bias", "none"}, {"windows", 4}})},
      {"ssa_grid", Attention(Grid(4))},
      {"ssa_pair", Attention(Local(3, 0.2), {{"task", "pair-classification"}})},
      {"ssa_tokens", Attention(Local(3, 0.2), {{"task", "token-classification"}, {"pooling", nullptr}})},
      {"ssa_and_sbm", Attention({Local(3, 0.2), Sbm("bernoulli", false, 0)})},
      {"ssa_window_tokens", Attention(WindowTokens(6, 4.0))},
      {"ssa_over_dense", Attention(kDense), OverrideBy(Local(4, 0.2))},
      {"ssa_over_sbm", json::object(), OverrideBy(Keep(6))},
      {"ssa_tokens_over_dense_pair", Attention(kDense, {{"task", "pair-classification"}}),
       OverrideBy(WindowTokens(5, 3.0))},
      {"block_over_dense", Attention(kDense, {{"num_hidden_layers", 3}}),
       Blocks(5, "local", {{"width", 2}, {"last_layers", 2}})},
      {"block_over_ssa_tokens", Attention(Local(3, 0.2), {{"task", "token-classification"}, {"pooling", nullptr}}),
       Blocks(4, "first_and_diagonal")},
      {"threshold_over_learned",
       Attention(Blocks(6, "learned", {{"threshold", 0.9}})),
       {{"kind", "block"}, {"pattern", "learned"}, {"threshold", 0.5}}},
      {"block_diagonal", Attention(Blocks(7, "diagonal"))},
      {"block_local", Attention(Blocks(4, "local", {{"width", 2}}))},
      {"block_strided", Attention(Blocks(4, "strided", {{"stride", 3}}))},
      {"block_adaptive", Attention(Blocks({{"min", 2}, {"max", 16}, {"alpha", 0.29}}, "first_and_diagonal"))},
      {"block_list", Attention(Blocks(10, "list", {{"blocks", {{0, 0}, {0, 1}, {1, 1}, {2, 0}, {2, 2}}}}))},
      {"block_learned", Attention(Blocks(6, "learned", {{"threshold", 0.5}}))},
      {"block_cls",
       Attention(Blocks(6, "local"), {{"pooling", {{"kind", "cls"}, {"divisor", nullptr}}}, {"cls_token_id", 49}})},
      {"toy", Attention(Toy(2))},
      {"toy_pair_and_sbm", Attention({Toy(3), Sbm("bernoulli", false, 0)}, {{"task", "pair-classification"}})},
      {"alibi", {{"position_embedding", "alibi"}}},
      {"relative_dense", Attention(kDense, {{"position_embedding", "relative"}})},
      {"relative_ssa", Attention(Local(4, 0.2), {{"position_embedding", "relative"}})},
      {"bias_values_sbm", {{"pairwise_bias", {{"kind", "values"}}}}},
      {"bias_buckets_ssa", Attention(Local(3, 0.2), {{"pairwise_bias", {{"kind", "buckets"}, {"num_buckets", 12}}}})},
      {"bias_values_block", Attention(Blocks(5, "local"), {{"pairwise_bias", {{"kind", "values"}}}})},
      {"features_sbm", Features(Sbm("bernoulli", false, 0))},
      {"features_dense", Features(kDense)},
      {"features_grid", Features(Grid(4))},
      {"multi_label", {{"problem_type", "multi_label_classification"}}},
      {"multi_label_pair_ssa",
       Attention(Local(4, 0.2), {{"task", "pair-classification"}, {"problem_type", "multi_label_classification"}})},
      {"regression_sbm", {{"task", "regression"}}},
      {"regression_features", Features(Local(4, 0.2), {{"task", "regression"}})},
  };
  kinds.push_back({.name = "probable", .changes = json::object(), .keep = CapRule::kProbable});
  kinds.push_back({.name = "probable_multi_pair",
                   .changes = Attention(Sbm("poisson_multi", true, 0), {{"task", "pair-classification"}}),
                   .keep = CapRule::kProbable});
  kinds.push_back({.name = "probable_and_ssa",
                   .changes = Attention({Local(3, 0.2), Sbm("poisson_set", false, 2)}),
                   .keep = CapRule::kProbable});
  kinds.insert(
      kinds.end(),
      {
          HuggingFace("hf_bert_sequence", "bert", "BertForSequenceClassification"),
          HuggingFace("hf_bert_tokens_ssa", "bert", "BertForTokenClassification", json::object(),
                      OverrideBy(Local(4, 0.2))),
          HuggingFace("hf_bert_masked_ssa", "bert", "BertForMaskedLM", Mask("[MASK]"), OverrideBy(Keep(6))),
          HuggingFace("hf_roberta_masked", "roberta", "RobertaForMaskedLM", Mask("<mask>")),
          HuggingFace("hf_roberta_regression_ssa", "roberta", "RobertaForSequenceClassification",
                      {{"problem_type", "regression"}}, OverrideBy(Local(3, 0.2))),
          HuggingFace("hf_roberta_multi_label_ssa", "roberta", "RobertaForSequenceClassification",
                      {{"problem_type", "multi_label_classification"}, {"hidden_act", "mish"}},
                      OverrideBy(Local(4, 0.2))),
          HuggingFace("hf_distilbert", "distilbert", "DistilBertForSequenceClassification"),
          HuggingFace("hf_distilbert_block", "distilbert", "DistilBertForSequenceClassification", json::object(),
                      Blocks(6, "first_and_diagonal")),
          HuggingFace("hf_mpnet_mean_ssa", "mpnet", "MPNetModel", Sentence("pooling_mode_mean_tokens", true),
                      OverrideBy(Local(4, 0.2))),
          HuggingFace("hf_bert_cls_ssa", "bert", "BertModel", Sentence("pooling_mode_cls_token", false),
                      OverrideBy(Keep(7))),
          HuggingFace("hf_bert_cls_block", "bert", "BertModel", Sentence("pooling_mode_cls_token", false),
                      Blocks(5, "strided", {{"stride", 2}})),
          HuggingFace("hf_modernbert_sequence", "modernbert", "ModernBertForSequenceClassification",
                      {{"num_hidden_layers", 3}, {"local_attention", 9}}),
          HuggingFace("hf_modernbert_mean_ssa", "modernbert", "ModernBertForSequenceClassification",
                      {{"classifier_pooling", "mean"}, {"local_attention", 12}}, OverrideBy(Local(4, 0.2))),
          HuggingFace("hf_modernbert_tokens", "modernbert", "ModernBertForTokenClassification",
                      {{"num_hidden_layers", 4}, {"global_attn_every_n_layers", 2}, {"local_attention", 2}}),
          HuggingFace("hf_modernbert_masked_block", "modernbert", "ModernBertForMaskedLM",
                      With(Mask("[MASK]"), {{"local_attention", 7}}), Blocks(6, "local")),
          HuggingFace("hf_modernbert_cls", "modernbert", "ModernBertModel",
                      With(Sentence("pooling_mode_cls_token", true),
                           {{"layer_types", {"full_attention", "sliding_attention"}}, {"local_attention", 16}})),
      });
  for (const ModelKind& kind : LanguageModelKinds()) kinds.push_back(kind);
  kinds.push_back({"lm_windows_dense", Language(kDense, {{"max_position_embeddings", 16}}), {}, true});
  kinds.push_back(
      {"lm_windows_ssa", Language(Local(4, 0.2), {{"max_position_embeddings", 16}, {"pad_token_id", 0}}), {}, true});
  kinds.push_back({"lm_windows_block", Language(Blocks(4, "local"), {{"max_position_embeddings", 16}}), {}, true});
  return kinds;
}

json ConfigOf(const ModelKind& kind) {
  if (kind.hugging_face) return kind.changes;
  json config = SmallConfig();
  config.merge_patch(kind.changes);
  return config;
}

std::shared_ptr<const std::vector<AttentionConfig>> Override(const json& config, const json& fields) {
  json changed = config.contains("model_type") ? SmallConfig() : config;  // both have 2 layers
  if (!fields.contains("threshold")) changed["attention"] = kDense;       // sbm too, which no request can override
  const auto parsed = ParseModelConfig(changed.dump());
  if (!parsed.ok()) throw std::runtime_error(std::string(parsed.status().message()));
  JsonObject object(fields, "");
  const auto layers = OverrideAttention(*parsed, ReadOverride(object));
  if (!layers.ok()) throw std::runtime_error(std::string(layers.status().message()));
  return std::make_shared<const std::vector<AttentionConfig>>(*layers);
}

ModelInput RandomInput(const ModelKind& kind, const Model& model, std::mt19937_64& random, int32_t most) {
  const ModelConfig& config = model.config();
  ModelInput input;
  const auto tokens = [&](int32_t longest) {
    std::vector<int32_t> ids = RandomTokens(static_cast<int32_t>(1 + random() % longest), 49, random());
    if (config.pad_token_id == 0 && random() % 2 == 0) ids.insert(ids.begin() + random() % ids.size(), 3, 0);
    if (config.pad_token_id == 1 && ids[0] == 1) ids[0] = 2;  // not all of them are pads
    return ids;
  };
  if (config.feature_size > 0) {
    const auto rows = static_cast<uint32_t>(1 + random() % most);
    std::vector<float> values;
    for (uint32_t i = 0; i < rows * 5; ++i) values.push_back(static_cast<float>(random() % 2001) / 1000.0f - 1.0f);
    input.sequences.push_back(*model.PrepareFeatures(rows, 5, values, TruncateMode::kRefuse));
  } else if (kind.windows) {
    input.sequences = *model.PrepareWindows(tokens(2 * most), TruncateMode::kRefuse, 1 + random() % 15);
  } else {
    std::vector<int32_t> first = tokens(most);
    if (config.task == ModelTask::kFillMask) {
      for (int i = 0; i < 2; ++i) first[random() % first.size()] = config.mask_token_id;
    }
    const bool pair = config.task == ModelTask::kPairClassification;
    input = MakeInput(model, first, pair ? RandomTokens(1 + random() % 20, 49, random()) : std::vector<int32_t>());
  }
  ModelSequence& sequence = input.sequences[0];
  const size_t square = static_cast<size_t>(sequence.length()) * sequence.length();
  for (size_t i = 0; i < square && config.pairwise_bias != PairwiseBiasKind::kNone; ++i) {
    if (config.pairwise_bias == PairwiseBiasKind::kValues) {
      sequence.bias_values.push_back(static_cast<float>(random() % 2001) / 500.0f - 2.0f);
    } else {
      sequence.bias_buckets.push_back(static_cast<uint8_t>(random() % config.num_buckets));
    }
  }
  if (!kind.override_with.is_null()) input.attention = Override(ConfigOf(kind), kind.override_with);
  for (int32_t i = 0; i < sequence.length() && config.token_types > 1; ++i) {
    sequence.token_types.push_back(static_cast<int32_t>(random() % config.token_types));
  }
  input.seed = random();
  input.keep = kind.keep;
  return input;
}

}  // namespace edgewise::testing
