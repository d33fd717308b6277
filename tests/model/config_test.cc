// Configuration files: an error names the field, the value found and the values allowed.
#include "model/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/checkpoint/parse_config.h"
#include "model/kinds/kind.h"
#include "tests/model/model_builder.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

struct BadConfig {
  const char* name;
  const char* patch;    // merged into SmallConfig; null removes a field
  const char* message;  // part of the error
};

void PrintTo(const BadConfig& c, std::ostream* out) { *out << c.name; }

class BadConfigTest : public ::testing::TestWithParam<BadConfig> {};

TEST_P(BadConfigTest, IsRefusedWithTheFieldTheValueAndTheLimit) {
  json config = SmallConfig();
  config.merge_patch(json::parse(GetParam().patch));
  const auto parsed = ParseModelConfig(config.dump());
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, BadConfigTest,
    ::testing::Values(
        BadConfig{"typo", R"({"hidden_sise": 3})", "unknown field \"hidden_sise\"; did you mean hidden_size?"},
        BadConfig{"ours_with_a_field_of_theirs", R"({"model_type": "bert"})", "unknown field \"model_type\""},
        BadConfig{"missing", R"({"vocab_size": null})", "vocab_size is missing"},
        BadConfig{"string_for_int", R"({"vocab_size": "50"})", "vocab_size is \"50\"; allowed: an integer"},
        BadConfig{"float_for_int", R"({"vocab_size": 50.0})", "vocab_size is 50.0"},
        BadConfig{"zero_heads", R"({"num_attention_heads": 0})",
                  "num_attention_heads is 0; allowed: an integer from 1"},
        BadConfig{"billion_layers", R"({"num_hidden_layers": 1000000000})", "num_hidden_layers is 1000000000"},
        BadConfig{"huge_vocabulary", R"({"vocab_size": 2147483648})", "vocab_size is 2147483648"},
        BadConfig{"beyond_64_bits", R"({"vocab_size": 18446744073709551615})", "vocab_size is 18446744073709551615"},
        BadConfig{"negative", R"({"intermediate_size": -1})", "intermediate_size is -1"},
        BadConfig{"not_divisible", R"({"num_attention_heads": 5})", "it does not divide; give head_dim"},
        BadConfig{"unknown_task", R"({"task": "classify"})", "task is \"classify\"; allowed: sequence-classification"},
        BadConfig{"zero_clusters", R"({"attention": {"num_clusters": 0}})", "attention.num_clusters is 0"},
        BadConfig{"unknown_law", R"({"attention": {"law": "poisson"}})",
                  "attention.law is \"poisson\"; allowed: bernoulli"},
        BadConfig{"law_missing", R"({"attention": {"law": null}})", "attention.law is missing"},
        BadConfig{"exploration", R"({"attention": {"exploration": 1.5}})", "attention.exploration is 1.5"},
        BadConfig{"attention_typo", R"({"attention": {"self_loop": true}})",
                  "attention.\"self_loop\"; did you mean self_loops?"},
        BadConfig{"attention_layers", R"({"attention": [{"kind": "dense"}]})", "a list of 2 objects"},
        BadConfig{"causal", R"({"causal": true})", "causal is true"},
        BadConfig{"not_causal", R"({"task": "causal-lm", "causal": false})",
                  "causal is false; task causal-lm is causal"},
        BadConfig{"labels_of_a_language_model", R"({"task": "causal-lm", "pooling": null})",
                  "num_labels is given; task causal-lm has no classifier"},
        BadConfig{"pooling_of_a_language_model",
                  R"({"task": "causal-lm", "num_labels": null, "classifier_hidden_size": null})",
                  "pooling: task causal-lm has none"},
        BadConfig{"tie_elsewhere", R"({"tie_word_embeddings": false})",
                  "tie_word_embeddings is given; task sequence-classification has no output layer"},
        BadConfig{"position", R"({"position_embedding": "rotary"})",
                  "position_embedding is \"rotary\"; allowed: learned, sinusoidal, none, alibi, relative"},
        BadConfig{"features_and_tokens", R"({"feature_size": 4})", "vocab_size is given beside feature_size"},
        BadConfig{"no_features", R"({"feature_size": 0})", "feature_size is 0; allowed: an integer from 1"},
        BadConfig{"language_of_features", R"({"feature_size": 4, "task": "causal-lm"})",
                  "feature_size is given; task causal-lm"},
        BadConfig{"pads_of_features", R"({"feature_size": 4, "vocab_size": null})",
                  "pad_token_id is 0; allowed beside feature_size: -1"},
        BadConfig{
            "cls_of_features",
            R"({"feature_size": 4, "vocab_size": null, "pad_token_id": null, "pooling": {"kind": "cls", "divisor": null}})",
            "pooling.kind is \"cls\"; allowed beside feature_size: mean"},
        BadConfig{"tokenizer_of_features",
                  R"({"feature_size": 4, "vocab_size": null, "pad_token_id": null, "tokenizer": {"kind": "byte"}})",
                  "tokenizer.kind is \"byte\"; allowed: none, as there is a feature_size"},
        BadConfig{"bias_kind", R"({"pairwise_bias": {"kind": "table"}})",
                  "pairwise_bias.kind is \"table\"; allowed: values, buckets"},
        BadConfig{"buckets", R"({"pairwise_bias": {"kind": "buckets", "num_buckets": 257}})",
                  "pairwise_bias.num_buckets is 257; allowed: an integer from 1 to 256"},
        BadConfig{"buckets_of_values", R"({"pairwise_bias": {"kind": "values", "num_buckets": 5}})",
                  "unknown field pairwise_bias.\"num_buckets\""},
        BadConfig{"cls_without_token", R"({"pooling": {"kind": "cls", "divisor": null}})", "cls_token_id is missing"},
        BadConfig{"pad_outside", R"({"pad_token_id": 50})", "pad_token_id is 50; allowed: an integer from -1 to 49"},
        BadConfig{"cls_is_pad", R"({"cls_token_id": 0})", "cls_token_id is 0, the pad token"},
        BadConfig{"pooling_divisor", R"({"pooling": {"divisor": "all"}})",
                  "pooling.divisor is \"all\"; allowed: valid, max_length"},
        BadConfig{"labels", R"({"id2label": {"0": "a", "2": "b", "1": 3}})", "id2label: the label of \"1\""},
        BadConfig{"labels_count", R"({"id2label": {"0": "a"}})", "\"0\" to \"2\""},
        BadConfig{"problem", R"({"problem_type": "regression"})",
                  "problem_type is \"regression\"; allowed: single_label_classification, multi_label_classification"},
        BadConfig{"problem_of_values", R"({"task": "regression", "problem_type": "multi_label_classification"})",
                  "problem_type is given; task regression is of one kind"},
        BadConfig{"shares", R"({"budget_shares": [1, 0]})", "budget_shares[1] is 0; allowed: above 0"},
        BadConfig{"budget_keep", R"({"budget_keep": "oldest"})",
                  "budget_keep is \"oldest\"; allowed: random, probable"},
        BadConfig{
            "budget_keep_of_ssa",
            R"({"budget_keep": "random", "attention": [{"kind": "dense"}, {"kind": "block", "block_size": 4, "pattern": "local"}]})",
            "budget_keep is given; it is for models with sbm layers"},
        BadConfig{"profile_keep", R"({"profiles": {"a": {"keep": 3}}})",
                  "profiles.a.keep is 3; allowed: random, probable"},
        BadConfig{"profiles_no_object", R"({"profiles": 3})",
                  "profiles: an object with at most 64 profiles is expected"},
        BadConfig{"profile_none", R"({"profiles": {"none": {}}})",
                  "profiles has the name \"none\"; allowed: 1 to 64 of"},
        BadConfig{"profile_field", R"({"profiles": {"a": {"sample": 3}}})",
                  "unknown field profiles.a.\"sample\"; did you mean samples?"},
        BadConfig{"profile_two_caps", R"({"profiles": {"a": {"max_edges": 3, "max_density": 0.5}}})",
                  "profiles.a.max_density is given beside max_edges"},
        BadConfig{"profile_density", R"({"profiles": {"a": {"max_density": 0}}})",
                  "profiles.a.max_density is 0; allowed"},
        BadConfig{"profile_two_defaults", R"({"profiles": {"a": {"default": true}, "b": {"default": true}}})",
                  "profiles.b.default is true; so is profiles.a.default"},
        BadConfig{"profile_above_limits", R"({"profiles": {"a": {"samples": 9}}, "limits": {"samples": 8}})",
                  "profiles.a.samples is 9; limits.samples is 8"},
        BadConfig{"profile_override", R"({"profiles": {"a": {"override": {"kind": "ssa", "keep": 4}}}})",
                  "profiles.a.override.kind is \"ssa\"; this model's attention is"},
        BadConfig{"shadow_profile", R"({"profiles": {"a": {}}, "shadow": {"profile": "b", "share": 0.5}})",
                  "shadow.profile is \"b\"; allowed: none, a"},
        BadConfig{"shadow_without_profile", R"({"shadow": {"share": 0.5}})", "shadow.profile is missing"},
        BadConfig{"shadow_without_share", R"({"shadow": {"profile": "none"}})", "shadow.share is missing"},
        BadConfig{"shadow_share", R"({"shadow": {"profile": "none", "share": 1.5}})", "shadow.share is 1.5; allowed"},
        BadConfig{"shadow_field", R"({"shadow": {"profile": "none", "share": 1, "part": 1}})",
                  "unknown field shadow.\"part\""},
        BadConfig{"shadow_regression", R"({"task": "regression", "shadow": {"profile": "none", "share": 1}})",
                  "shadow: a regression model has no distribution to compare"},
        BadConfig{"shadow_no_object", R"({"shadow": [1]})", "shadow"},
        BadConfig{"limits_samples", R"({"limits": {"samples": 0}})", "limits.samples is 0; allowed"},
        BadConfig{"shares_count", R"({"budget_shares": [1]})", "a list of 2 numbers"},
        BadConfig{"byte_offset", R"({"tokenizer": {"kind": "byte"}})", "byte 255 would be token 256; vocab_size is 50"},
        BadConfig{"word_vocabulary", R"({"tokenizer": {"kind": "word"}})", "tokenizer.vocabulary is missing"},
        BadConfig{
            "word_without_words", R"({"tokenizer": {"kind": "word", "vocabulary": []}})",
            "tokenizer.vocabulary is []; no text has a token by it; at least one entry that is not in angle brackets"},
        BadConfig{"word_of_places", R"({"tokenizer": {"kind": "word", "vocabulary": ["<pad>", "<unk>"]}})",
                  "no text has a token by it"},
        BadConfig{"char_without_characters", R"({"tokenizer": {"kind": "char", "vocabulary": ["<pad>"]}})",
                  "tokenizer.vocabulary is [\"<pad>\"]; no text has a token by it"},
        BadConfig{"word_repeats", R"({"tokenizer": {"kind": "word", "vocabulary": ["a", "a"]}})",
                  "vocabulary[1] repeats \"a\""},
        BadConfig{"char_long", R"({"tokenizer": {"kind": "char", "vocabulary": ["a", "bc"]}})",
                  "one character is expected"},
        BadConfig{"epsilon", R"({"layer_norm_eps": 0})", "layer_norm_eps is 0"}),
    [](const auto& info) { return info.param.name; });

TEST(ConfigTest, TextThatIsNoJsonIsRefused) {
  for (const char* text : {"", "[]", "null", "{", "{\"task\": }", "{} trailing", "\xff\xfe", "{\"a\": 1e400}"}) {
    EXPECT_EQ(ParseModelConfig(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(ConfigTest, DuplicateKeysAreRefused) {
  std::string text = SmallConfig().dump();
  text.insert(1, "\"vocab_size\": 50,");
  EXPECT_THAT(std::string(ParseModelConfig(text).status().message()), HasSubstr("\"vocab_size\" stands twice"));
}

TEST(ConfigTest, DeepNestingIsRefused) {
  std::string text = "{\"task\": ";
  for (int i = 0; i < 10000; ++i) text += "[";
  EXPECT_FALSE(ParseModelConfig(text).ok());
  EXPECT_THAT(
      std::string(ParseModelConfig("{\"a\":" + std::string(20, '[') + std::string(20, ']') + "}").status().message()),
      HasSubstr("nested deeper than 16"));
}

TEST(ConfigTest, FieldsArriveAsWritten) {
  json config = SmallConfig();
  config["attention"] = {{{"kind", "dense"}},
                         {{"kind", "sbm"},
                          {"num_clusters", 8},
                          {"law", "poisson_multi"},
                          {"exploration", 0.5},
                          {"self_loops", true},
                          {"local_window", 4}}};
  config["id2label"] = {{"0", "a"}, {"1", "b"}, {"2", "c"}};
  const auto parsed = ParseModelConfig(config.dump());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->head_dim, 16);
  EXPECT_EQ(parsed->attention[0].kind, &kDenseKind);
  EXPECT_EQ(parsed->attention[1].law, Law::kPoissonMulti);
  EXPECT_EQ(parsed->attention[1].exploration, 0.5f);
  EXPECT_EQ(parsed->attention[1].local_window, 4);
  EXPECT_EQ(parsed->labels[2], "c");
  EXPECT_FALSE(parsed->multi_label);
  config["problem_type"] = "multi_label_classification";
  EXPECT_TRUE(ParseModelConfig(config.dump())->multi_label);
  EXPECT_EQ(AttentionName(*parsed), "dense,sbm/poisson_multi");
}

TEST(ConfigTest, ALanguageModelPredictsItsVocabulary) {
  const auto parsed = ParseModelConfig(R"({
    "task": "causal-lm", "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 64, "position_embedding": "alibi",
    "tie_word_embeddings": false, "attention": {"kind": "dense"}})");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->task, ModelTask::kCausalLm);
  EXPECT_STREQ(ModelTaskName(parsed->task), "causal-lm");
  EXPECT_TRUE(parsed->causal);
  EXPECT_FALSE(parsed->tie_word_embeddings);
  EXPECT_EQ(parsed->num_labels, 60);
  EXPECT_EQ(parsed->position_embedding, PositionEmbedding::kAlibi);
}

TEST(ConfigTest, RowsOfFeaturesHaveNoTokens) {
  json config = SmallConfig();
  config.merge_patch(json::parse(R"({"task": "regression", "feature_size": 7, "vocab_size": null, "pad_token_id": null,
    "position_embedding": "relative", "pairwise_bias": {"kind": "buckets", "num_buckets": 12},
    "tokenizer": {"kind": "none"}})"));
  const auto parsed = ParseModelConfig(config.dump());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->task, ModelTask::kRegression);
  EXPECT_FALSE(parsed->causal);
  EXPECT_EQ(parsed->feature_size, 7);
  EXPECT_EQ(parsed->vocab_size, 0);
  EXPECT_EQ(parsed->pad_token_id, -1);
  EXPECT_EQ(parsed->position_embedding, PositionEmbedding::kRelative);
  EXPECT_EQ(parsed->pairwise_bias, PairwiseBiasKind::kBuckets);
  EXPECT_EQ(parsed->num_buckets, 12);
}

}  // namespace
}  // namespace edgewise::testing
