// Errors of Generate requests: code, field, value and limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <ostream>

#include "base/field_error.h"
#include "model/load/load.h"
#include "tests/model/model_builder.h"
#include "tests/server/validated.h"

namespace edgewise::server {
namespace {

using ::testing::HasSubstr;

v1::GenerateRequest GoodRequest() {
  v1::GenerateRequest request;
  request.set_model("m");
  for (int id : {1, 2, 3}) request.mutable_prompt()->mutable_token_ids()->add_values(id);
  request.set_max_new_tokens(5);
  return request;
}

struct GenerateCase {
  const char* name;
  std::function<void(v1::GenerateRequest&)> change;
  const char* message;  // part of it
  const char* model = "lm-dense";
};

void PrintTo(const GenerateCase& c, std::ostream* out) { *out << c.name; }

const GenerateCase kRefusedGenerations[] = {
    {"not_a_language_model", [](auto&) {},
     "model is \"m\", which does sequence-classification; Generate needs one that does causal-lm", "sbm"},
    {"no_prompt", [](auto& r) { r.clear_prompt(); }, "prompt is missing, and so are messages"},
    {"messages_and_a_prompt", [](auto& r) { r.add_messages(); }, "messages cannot go with a prompt"},
    {"arguments_without_messages", [](auto& r) { r.set_template_arguments("{}"); },
     "template_arguments is set; it goes with messages"},
    {"messages_without_a_template",
     [](auto& r) {
       r.clear_prompt();
       r.add_messages()->set_role("user");
     },
     "messages is set; the model's folder has no chat template, so give a prompt"},
    {"message_without_a_role",
     [](auto& r) {
       r.clear_prompt();
       r.add_messages()->set_role("system");
       r.add_messages()->set_content("hello");
     },
     "messages[1].role is \"\"; allowed are system, user, assistant and tool"},
    {"message_of_an_unknown_role",
     [](auto& r) {
       r.clear_prompt();
       r.add_messages()->set_role("User\n");
     },
     "messages[0].role is \"User\\n\"; allowed are system, user, assistant and tool"},
    {"too_many_messages",
     [](auto& r) {
       r.clear_prompt();
       for (int i = 0; i < 1025; ++i) r.add_messages();
     },
     "messages has 1025 entries; allowed are at most 1024"},
    {"R29_no_content", [](auto& r) { r.mutable_prompt()->clear_content(); }, "prompt has no content"},
    {"R7_empty", [](auto& r) { r.mutable_prompt()->mutable_token_ids()->clear_values(); },
     "prompt.token_ids is empty; at least one token is needed"},
    {"R10_id", [](auto& r) { r.mutable_prompt()->mutable_token_ids()->set_values(1, 24); },
     "prompt.token_ids[1] is 24; the vocabulary has 24 entries"},
    {"R9_too_long",
     [](auto& r) {
       for (int i = 0; i < 46; ++i) r.mutable_prompt()->mutable_token_ids()->add_values(1);
     },
     "prompt.token_ids has 49 tokens; the model takes 48"},
    {"text_without_tokenizer", [](auto& r) { r.mutable_prompt()->set_text("hello"); },
     "prompt.text: this model has no tokenizer"},
    {"image", [](auto& r) { r.mutable_prompt()->set_image("x"); }, "prompt.image is set"},
    {"prompt_of_a_name", [](auto& r) { r.mutable_prompt()->set_prompt_name("query"); },
     "prompt.prompt_name is \"query\"; the model has no prompts"},
    {"features", [](auto& r) { r.mutable_prompt()->mutable_features()->set_rows(1); }, "prompt.features is set"},
    {"bias", [](auto& r) { r.mutable_prompt()->mutable_bias()->add_values(1); }, "prompt.bias is set"},
    {"truncate", [](auto& r) { r.mutable_prompt()->set_truncate(static_cast<v1::Truncate>(9)); },
     "prompt.truncate is 9; allowed are REFUSE, HEAD and TAIL"},
    {"max_new_tokens_0", [](auto& r) { r.set_max_new_tokens(0); }, "max_new_tokens is 0; allowed are 1 to 4096"},
    {"max_new_tokens_beyond", [](auto& r) { r.set_max_new_tokens(4097); },
     "max_new_tokens is 4097; allowed are 1 to 4096"},
    {"temperature_negative", [](auto& r) { r.set_temperature(-0.1); }, "temperature is -0.1; allowed are finite"},
    {"temperature_nan", [](auto& r) { r.set_temperature(kNan); }, "temperature is nan"},
    {"temperature_inf", [](auto& r) { r.set_temperature(kInf); }, "temperature is inf"},
    {"top_p_negative", [](auto& r) { r.set_top_p(-0.01); }, "top_p is -0.01; allowed are 0 (off) to 1"},
    {"top_p_above_1", [](auto& r) { r.set_top_p(1.5); }, "top_p is 1.5"},
    {"top_p_nan", [](auto& r) { r.set_top_p(kNan); }, "top_p is nan"},
    {"min_p_above_1", [](auto& r) { r.set_min_p(1.5); }, "min_p is 1.5; allowed are 0 (off) to 1"},
    {"min_p_nan", [](auto& r) { r.set_min_p(kNan); }, "min_p is nan"},
    {"presence_penalty_above_2", [](auto& r) { r.set_presence_penalty(2.5); },
     "presence_penalty is 2.5; allowed are -2 to 2"},
    {"frequency_penalty_below_minus_2", [](auto& r) { r.set_frequency_penalty(-3); },
     "frequency_penalty is -3; allowed are -2 to 2"},
    {"frequency_penalty_nan", [](auto& r) { r.set_frequency_penalty(kNan); }, "frequency_penalty is nan"},
    {"repetition_penalty_0", [](auto& r) { r.set_repetition_penalty(0); },
     "repetition_penalty is 0; allowed are numbers above 0 up to 100"},
    {"repetition_penalty_inf", [](auto& r) { r.set_repetition_penalty(kInf); }, "repetition_penalty is inf"},
    {"alternatives_above_20", [](auto& r) { r.set_alternatives(21); }, "alternatives is 21; allowed are 0 to 20"},
    {"stop_without_tokenizer", [](auto& r) { r.add_stop("x"); }, "stop is set; this model has no tokenizer"},
    {"tolerance", [](auto& r) { r.mutable_ensemble()->set_tolerance(0.1); },
     "ensemble.tolerance is 0.1; Generate uses all samples"},
    {"first_sample", [](auto& r) { r.mutable_ensemble()->set_first_sample(3); }, "ensemble.first_sample is 3; a part"},
    {"samples", [](auto& r) { r.mutable_ensemble()->set_samples(257); },
     "ensemble.samples is 257; the server takes at most 256"},
    {"max_edges_0", [](auto& r) { r.mutable_budget()->set_max_edges(0); }, "budget.max_edges is 0"},
    {"density", [](auto& r) { r.mutable_budget()->set_max_density(1.5); }, "budget.max_density is 1.5"},
    {"keep",
     [](auto& r) {
       r.mutable_budget()->set_max_edges(1000);
       r.mutable_budget()->set_keep(v1::RANDOM);
     },
     "budget.keep is RANDOM; it is for attention sbm, and this request's is dense"},
    {"attention", [](auto& r) { r.set_attention(static_cast<v1::AttentionMode>(5)); }, "attention is 5"},
    {"priority", [](auto& r) { r.set_priority(4); }, "priority is 4"},
    {"overflow", [](auto& r) { r.set_overflow(static_cast<v1::Overflow>(3)); },
     "overflow is 3; allowed are SLIDE, HALVE and STOP"},
    {"override_kind", [](auto& r) { r.mutable_override()->set_kind("dense"); }, "override.kind is \"dense\""},
    {"override_and_dense",
     [](auto& r) {
       r.mutable_override()->set_kind("ssa");
       r.set_attention(v1::DENSE);
     },
     "override cannot go with attention DENSE"},
};

class RefusedGenerationTest : public ::testing::TestWithParam<GenerateCase> {};

TEST_P(RefusedGenerationTest, IsInvalidArgumentThatNamesFieldValueAndLimit) {
  const GenerateCase& c = GetParam();
  const std::unique_ptr<Model> model = LoadTestModel(c.model);
  v1::GenerateRequest request = GoodRequest();
  c.change(request);
  const absl::StatusOr<Work> parsed = Validated(request, *model, {});
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(c.message));
  EXPECT_FALSE(FieldOf(parsed.status()).empty()) << "no google.rpc.BadRequest";
}

INSTANTIATE_TEST_SUITE_P(Catalogue, RefusedGenerationTest, ::testing::ValuesIn(kRefusedGenerations),
                         [](const auto& info) { return info.param.name; });

TEST(ValidateGenerateTest, WhatIsAskedArrives) {
  const std::unique_ptr<Model> model = LoadTestModel("lm-dense");
  v1::GenerateRequest request = GoodRequest();
  request.set_temperature(0.5);
  request.set_top_k(3);
  request.set_top_p(0.9);
  request.set_min_p(0.25);
  request.set_presence_penalty(-0.5);
  request.set_frequency_penalty(1.5);
  request.set_repetition_penalty(1.25);
  request.set_alternatives(20);
  request.set_overflow(v1::HALVE);
  request.mutable_ensemble()->set_seed(7);
  request.mutable_budget()->set_max_density(0.5);
  Work parsed = Validated(request, *model, {}).value();
  EXPECT_EQ(parsed.seed, 7u);
  EXPECT_EQ(parsed.tokens, 3u);
  EXPECT_EQ(parsed.cost, 3u);
  EXPECT_EQ(parsed.budget, BudgetKind::kDensity);
  const GenerationOptions& options = parsed.generation->options;
  EXPECT_EQ(options.max_new_tokens, 5u);
  EXPECT_EQ(options.temperature, 0.5);
  EXPECT_EQ(options.top_k, 3u);
  EXPECT_EQ(options.top_p, 0.9);
  EXPECT_EQ(options.min_p, 0.25);
  EXPECT_EQ(options.presence_penalty, -0.5);
  EXPECT_EQ(options.frequency_penalty, 1.5);
  EXPECT_EQ(options.repetition_penalty, 1.25);
  EXPECT_EQ(options.alternatives, 20u);
  EXPECT_EQ(options.overflow, Overflow::kHalve);
  EXPECT_EQ(options.seed, 7u);
  EXPECT_EQ(options.samples, 1u);
  EXPECT_EQ(options.max_edges, kNoCap);
  EXPECT_EQ(options.max_density, 0.5);
}

TEST(ValidateGenerateTest, MoreThanTheVocabularyIsNoLimitOfTopK) {
  const std::unique_ptr<Model> model = LoadTestModel("lm-dense");
  v1::GenerateRequest request = GoodRequest();
  request.set_top_k(200);
  EXPECT_EQ(Validated(request, *model, {})->generation->options.top_k, 0u);
}

TEST(ValidateGenerateTest, StopStringsAreFewAndShort) {
  const edgewise::testing::TemporaryFolder folder;
  nlohmann::json config = edgewise::testing::SmallConfig();
  for (const char* field : {"pooling", "num_labels", "classifier_hidden_size"}) config.erase(field);
  config["task"] = "causal-lm";
  config["vocab_size"] = 257;
  config["attention"] = {{"kind", "dense"}};
  config["tokenizer"] = {{"kind", "byte"}};
  absl::StatusOr<std::unique_ptr<Model>> model =
      LoadModel(edgewise::testing::WriteModel(folder.path() + "/lm", config), TestBackend());
  ASSERT_TRUE(model.ok()) << model.status();
  v1::GenerateRequest request = GoodRequest();
  for (int i = 0; i < 16; ++i) request.add_stop(std::string(256, 'x'));
  EXPECT_TRUE(Validated(request, **model, {}).ok()) << Validated(request, **model, {}).status();
  request.set_stop(3, "");
  EXPECT_THAT(std::string(Validated(request, **model, {}).status().message()),
              HasSubstr("stop[3] has 0 bytes; allowed are 1 to 256"));
  request.set_stop(3, std::string(257, 'x'));
  EXPECT_THAT(std::string(Validated(request, **model, {}).status().message()), HasSubstr("stop[3] has 257 bytes"));
  request.set_stop(3, "x");
  request.add_stop("y");
  EXPECT_THAT(std::string(Validated(request, **model, {}).status().message()),
              HasSubstr("stop has 17 strings; allowed are at most 16"));
}

TEST(ValidateGenerateTest, KeysAndValuesOfAllSamplesAreBoundedButSharedLayersCountOnce) {
  RequestLimits limits;
  limits.max_cache_bytes = 20000;
  v1::GenerateRequest request = GoodRequest();
  request.mutable_ensemble()->set_samples(100);
  // A page of 64 positions, 2 heads of 8, keys and values: 8192 bytes a layer; what the first layer draws is in the
  // second.
  EXPECT_EQ(Validated(request, *LoadTestModel("lm-dense"), limits)->generation->cache_bytes.longest, 16384u);
  EXPECT_THAT(
      std::string(Validated(request, *LoadTestModel("lm-ssa-local"), limits).status().message()),
      HasSubstr("ensemble.samples is 100, whose keys and values would take up to 827392 bytes; the server holds "
                "at most 20000"));
}

TEST(ValidateGenerateTest, LimitsAreTaken) {
  const std::unique_ptr<Model> model = LoadTestModel("lm-dense");
  RequestLimits limits;
  limits.max_new_tokens = 30;
  v1::GenerateRequest request = GoodRequest();
  request.set_max_new_tokens(30);
  request.set_top_p(1.0);
  request.mutable_ensemble()->set_samples(limits.max_samples);
  const absl::StatusOr<Work> parsed = Validated(request, *model, limits);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->generation->options.max_new_tokens, 30u);
  EXPECT_EQ(parsed->generation->options.top_p, 1.0);
  EXPECT_EQ(parsed->generation->options.samples, limits.max_samples);
}

TEST(ValidateGenerateTest, PadsOfAPromptAreNoTokens) {
  const std::unique_ptr<Model> model = LoadTestModel("lm-block-local");  // 0 is a pad
  v1::GenerateRequest request = GoodRequest();
  request.mutable_prompt()->mutable_token_ids()->set_values(1, 0);
  request.mutable_budget()->set_max_edges(1000);
  const absl::StatusOr<Work> parsed = Validated(request, *model, {});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->tokens, 2u);
  EXPECT_EQ(parsed->cost, 3u);
  EXPECT_EQ(parsed->generation->options.max_edges, 1000u);
  EXPECT_EQ(parsed->generation->options.max_density, 0.0);
  EXPECT_EQ(parsed->generation->prompt.truncated_tokens, 0u);
}

}  // namespace
}  // namespace edgewise::server
