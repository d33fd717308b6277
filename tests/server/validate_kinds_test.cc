// Errors of requests to models of features, biases, values and language: code, field, value and limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <ostream>

#include "base/field_error.h"
#include "model/kinds/kind.h"
#include "tests/server/validated.h"

namespace edgewise::server {
namespace {

using ::testing::HasSubstr;

v1::Sequence& Sequence(v1::PredictRequest& request) { return *request.mutable_inputs(0)->mutable_sequence(); }
v1::Features& Features(v1::PredictRequest& request) { return *Sequence(request).mutable_features(); }
v1::PairwiseBias& Bias(v1::PredictRequest& request) { return *Sequence(request).mutable_bias(); }
v1::AttentionOverride& Override(v1::PredictRequest& request) { return *request.mutable_override(); }

// Three rows of six features, or four tokens, that the model takes.
v1::PredictRequest GoodRequest(const Model& model) {
  v1::PredictRequest request;
  request.set_model("m");
  v1::Sequence* sequence = request.add_inputs()->mutable_sequence();
  const uint32_t columns = static_cast<uint32_t>(model.config().feature_size);
  if (columns == 0) {
    for (int id : {1, 2, 3, 4}) sequence->mutable_token_ids()->add_values(id);
    return request;
  }
  sequence->mutable_features()->set_rows(3);
  sequence->mutable_features()->set_columns(columns);
  for (uint32_t i = 0; i < 3 * columns; ++i) sequence->mutable_features()->add_values(0.25f * static_cast<float>(i));
  return request;
}

struct KindCase {
  const char* name;
  const char* model;
  std::function<void(v1::PredictRequest&)> change;
  const char* message;  // part of it
};

void PrintTo(const KindCase& c, std::ostream* out) { *out << c.name; }

void LocalSsa(v1::PredictRequest& r) {
  Override(r).set_kind("ssa");
  Override(r).set_windows(2);
  Override(r).add_sigma(0.1);
}

void LocalBlocks(v1::PredictRequest& r) {
  Override(r).set_kind("block");
  Override(r).set_pattern("local");
  Override(r).set_block_size(4);
}

void Probable(v1::PredictRequest& r) {
  r.mutable_budget()->set_max_density(1.0);
  r.mutable_budget()->set_keep(v1::PROBABLE);
}

const KindCase kRefusedKinds[] = {
    {"columns", "features", [](auto& r) { Features(r).set_columns(5); },
     "inputs[0].sequence.features.columns is 5; the model takes 6"},
    {"rows_0", "features", [](auto& r) { Features(r).set_rows(0); }, "inputs[0].sequence.features.rows is 0"},
    {"rows_times_columns", "features", [](auto& r) { Features(r).mutable_values()->RemoveLast(); },
     "inputs[0].sequence.features.values has 17 entries; 3 rows of 6 are 18"},
    {"rows_that_overflow", "features", [](auto& r) { Features(r).set_rows(4294967295u); },
     "inputs[0].sequence.features.values has 18 entries; 4294967295 rows of 6 are 25769803770"},
    {"R9_too_many_rows", "features",
     [](auto& r) {
       Features(r).set_rows(49);
       while (Features(r).values_size() < 49 * 6) Features(r).add_values(1);
     },
     "inputs[0].sequence.features.rows is 49; the model takes 48"},
    {"R11_nan", "features", [](auto& r) { Features(r).set_values(7, std::nanf("")); },
     "inputs[0].sequence.features.values[7] is nan; finite numbers are expected"},
    {"R11_inf", "features", [](auto& r) { Features(r).set_values(0, -kInf); },
     "inputs[0].sequence.features.values[0] is -inf"},
    {"tokens_to_a_model_of_features", "features", [](auto& r) { Sequence(r).mutable_token_ids()->add_values(1); },
     "inputs[0].sequence.token_ids: this model takes rows of features"},
    {"text_to_a_model_of_features", "features", [](auto& r) { Sequence(r).set_text("hello"); },
     "inputs[0].sequence.text: this model takes rows of features"},
    {"image_to_a_model_of_features", "features", [](auto& r) { Sequence(r).set_image("x"); },
     "inputs[0].sequence.image: this model has no preprocessor_config.json; send rows of features"},
    {"image_to_a_model_of_tokens", "dense-tokens", [](auto& r) { Sequence(r).set_image("x"); },
     "inputs[0].sequence.image: this model takes tokens; send text or token_ids"},
    {"bias_size", "pairwise-values", [](auto& r) { Bias(r).mutable_values()->Resize(15, 0.5f); },
     "inputs[0].sequence.bias.values has 15 entries; 4 x 4 positions are 16"},
    {"bias_nan", "pairwise-values",
     [](auto& r) {
       Bias(r).mutable_values()->Resize(16, 0.5f);
       Bias(r).set_values(3, std::nanf(""));
     },
     "inputs[0].sequence.bias.values[3] is nan"},
    {"bias_of_the_other_kind", "pairwise-values", [](auto& r) { Bias(r).set_buckets(std::string(16, '\0')); },
     "inputs[0].sequence.bias.buckets: this model takes bias.values"},
    {"bias_of_both_kinds", "pairwise-buckets",
     [](auto& r) {
       Bias(r).set_buckets(std::string(16, '\0'));
       Bias(r).mutable_values()->Resize(16, 0.5f);
     },
     "bias.buckets are both given"},
    {"bucket_out_of_range", "pairwise-buckets", [](auto& r) { Bias(r).set_buckets(std::string(16, '\x09')); },
     "inputs[0].sequence.bias.buckets[0] is 9; the model has 9 buckets"},
    {"bucket_255", "pairwise-buckets", [](auto& r) { Bias(r).set_buckets(std::string(16, '\xff')); },
     "inputs[0].sequence.bias.buckets[0] is 255"},
    {"bias_of_windows", "lm-dense",
     [](auto& r) {
       for (int i = 0; i < 60; ++i) Sequence(r).mutable_token_ids()->add_values(1);
       Bias(r).add_values(1);
     },
     "inputs[0].sequence.bias is given for a text that is scored in 2 windows"},
    {"logits_of_values", "regression", [](auto& r) { r.mutable_outputs()->set_logits(true); },
     "outputs.logits is set; the values of a regression model"},
    {"top_k_of_values", "regression", [](auto& r) { r.mutable_outputs()->set_top_k(1); },
     "outputs.top_k is 1; a regression model has no labels"},
    {"stride_of_a_regression", "regression", [](auto& r) { r.mutable_outputs()->set_stride(7); },
     "outputs.stride is 7; it is for causal language models, this one does regression"},
    {"stride_of_the_context", "lm-dense", [](auto& r) { r.mutable_outputs()->set_stride(48); },
     "outputs.stride is 48; allowed are 1 to 47"},
    {"stride_max", "lm-dense", [](auto& r) { r.mutable_outputs()->set_stride(4294967295u); },
     "outputs.stride is 4294967295"},
    {"token_embeddings_of_a_regression", "regression", [](auto& r) { r.mutable_outputs()->set_token_embeddings(true); },
     "outputs.token_embeddings is set; it is for embedding models, this one does regression"},
    {"token_scores_of_a_regression", "regression", [](auto& r) { r.mutable_outputs()->set_token_scores(true); },
     "outputs.token_scores is set; it is for causal language models, this one does regression"},
    {"alternatives_without_scores", "lm-dense", [](auto& r) { r.mutable_outputs()->set_alternatives(3); },
     "outputs.alternatives is 3 without token_scores"},
    {"alternatives_above_20", "lm-dense",
     [](auto& r) {
       r.mutable_outputs()->set_token_scores(true);
       r.mutable_outputs()->set_alternatives(21);
     },
     "outputs.alternatives is 21; allowed are 0 to 20"},
    {"alternatives_of_samples", "lm-ssa-local",
     [](auto& r) {
       r.mutable_outputs()->set_token_scores(true);
       r.mutable_outputs()->set_alternatives(2);
       r.mutable_ensemble()->set_samples(4);
     },
     "outputs.alternatives is 2 with 4 samples that differ"},
    {"top_k_above_the_vocabulary", "lm-dense", [](auto& r) { r.mutable_outputs()->set_top_k(25); },
     "outputs.top_k is 25; the model has 24 labels"},
    {"override_kind", "dense", [](auto& r) { Override(r).set_kind("sbm"); },
     "override.kind is \"sbm\"; allowed: ssa, block"},
    {"override_no_kind", "dense", [](auto& r) { Override(r).set_windows(2); },
     "override.kind is \"\"; allowed: ssa, block"},
    {"override_on_blocks", "block-local", LocalSsa, "override.kind is \"ssa\"; this model's attention is block/local"},
    {"keep_on_dense", "dense", Probable,
     "budget.keep is PROBABLE; it is for attention sbm, and this request's is dense"},
    {"keep_on_blocks", "block-local", Probable,
     "budget.keep is PROBABLE; it is for attention sbm, and this request's is block/local"},
    {"keep_of_an_override", "dense",
     [](auto& r) {
       LocalSsa(r);
       Probable(r);
     },
     "budget.keep is PROBABLE; it is for attention sbm, and this request's is ssa/local"},
    {"windows_0", "dense", [](auto& r) { Override(r).set_kind("ssa"); },
     "override.windows is 0; allowed: windows, window_tokens or keep from 1"},
    {"windows_and_keep", "dense",
     [](auto& r) {
       LocalSsa(r);
       Override(r).set_keep(3);
     },
     "override.keep is 3 beside windows"},
    {"sigma_negative", "dense",
     [](auto& r) {
       LocalSsa(r);
       Override(r).set_sigma(0, -0.5);
     },
     "override.sigma[0] is -0.5; allowed: 0 to"},
    {"sigma_nan", "dense",
     [](auto& r) {
       LocalSsa(r);
       Override(r).set_sigma(0, kNan);
     },
     "override.sigma[0] is nan"},
    {"sigma_too_many", "dense",
     [](auto& r) {
       LocalSsa(r);
       Override(r).add_sigma(0.2);
       Override(r).add_sigma(0.3);
     },
     "override.sigma has 3 entries"},
    {"last_layers", "dense",
     [](auto& r) {
       LocalSsa(r);
       Override(r).set_last_layers(3);
     },
     "override.last_layers is 3; the model has 2 layers"},
    {"window_tokens_and_windows", "dense",
     [](auto& r) {
       LocalSsa(r);
       Override(r).set_window_tokens(16);
     },
     "override.window_tokens is 16 beside windows; allowed: one of them"},
    {"windows_of_blocks", "lm-dense",
     [](auto& r) {
       LocalBlocks(r);
       Override(r).set_windows(3);
     },
     "override.windows is 3; it belongs to kind \"ssa\""},
    {"block_size_0", "lm-dense",
     [](auto& r) {
       LocalBlocks(r);
       Override(r).clear_block_size();
     },
     "override.block_size is 0; allowed: 1 to 1048576"},
    {"pattern", "dense",
     [](auto& r) {
       LocalBlocks(r);
       Override(r).set_pattern("diag");
     },
     "override.pattern is \"diag\"; allowed: diagonal, local, strided, first_and_diagonal, learned"},
    {"stride_of_local", "dense",
     [](auto& r) {
       LocalBlocks(r);
       Override(r).set_stride(2);
     },
     "override.stride is 2; it belongs to pattern \"strided\""},
    {"width_of_strided", "dense",
     [](auto& r) {
       LocalBlocks(r);
       Override(r).set_pattern("strided");
       Override(r).set_stride(2);
       Override(r).set_width(0);
     },
     "override.width is 0; it belongs to pattern \"local\""},
    {"threshold_of_local", "dense",
     [](auto& r) {
       LocalBlocks(r);
       Override(r).set_threshold(0.5);
     },
     "override.threshold is 0.5; it belongs to pattern \"learned\""},
    {"learned_on_dense", "dense",
     [](auto& r) {
       Override(r).set_kind("block");
       Override(r).set_pattern("learned");
       Override(r).set_threshold(0.5);
     },
     "override.pattern is \"learned\"; this model's attention is dense"},
    {"threshold_above_1", "block-learned",
     [](auto& r) {
       Override(r).set_kind("block");
       Override(r).set_pattern("learned");
       Override(r).set_threshold(1.5);
     },
     "override.threshold is 1.5; allowed: 0 to 1"},
    {"override_and_dense", "dense",
     [](auto& r) {
       LocalSsa(r);
       r.set_attention(v1::DENSE);
     },
     "override cannot go with attention DENSE"},
};

class RefusedKindTest : public ::testing::TestWithParam<KindCase> {};

TEST_P(RefusedKindTest, IsInvalidArgumentThatNamesFieldValueAndLimit) {
  const KindCase& c = GetParam();
  const std::unique_ptr<Model> model = LoadTestModel(c.model);
  v1::PredictRequest request = GoodRequest(*model);
  ASSERT_TRUE(Validated(request, *model, {}).ok()) << Validated(request, *model, {}).status();
  c.change(request);
  const absl::StatusOr<Work> parsed = Validated(request, *model, {});
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(c.message));
  EXPECT_FALSE(FieldOf(parsed.status()).empty()) << "no google.rpc.BadRequest";
}

INSTANTIATE_TEST_SUITE_P(Catalogue, RefusedKindTest, ::testing::ValuesIn(kRefusedKinds),
                         [](const auto& info) { return info.param.name; });

TEST(ValidateKindsTest, R11DenormalFeaturesAndTheMostRowsAreTaken) {
  const std::unique_ptr<Model> model = LoadTestModel("features");
  v1::PredictRequest request = GoodRequest(*model);
  Features(request).set_rows(48);
  while (Features(request).values_size() < 48 * 6) Features(request).add_values(1e-40f);
  EXPECT_TRUE(Validated(request, *model, {}).ok()) << Validated(request, *model, {}).status();
}

TEST(ValidateKindsTest, LongTextBecomesWindowsThatScoreEachTokenOnce) {
  const std::unique_ptr<Model> model = LoadTestModel("lm-dense");
  for (const uint32_t stride : {0u, 1u, 7u, 24u, 47u}) {
    v1::PredictRequest request = GoodRequest(*model);
    while (Sequence(request).token_ids().values_size() < 150) Sequence(request).mutable_token_ids()->add_values(5);
    request.mutable_outputs()->set_stride(stride);
    const absl::StatusOr<Work> parsed = Validated(request, *model, {});
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    int scored = 0;
    for (const ModelSequence& window : parsed->inputs[0].sequences) scored += window.valid() - window.first_scored;
    EXPECT_EQ(scored, 149) << "stride " << stride;
  }
}

TEST(ValidateKindsTest, TheWindowsOfARequestAreBounded) {
  const std::unique_ptr<Model> model = LoadTestModel("lm-ssa-local");
  v1::PredictRequest request = GoodRequest(*model);
  while (Sequence(request).token_ids().values_size() < 40000) Sequence(request).mutable_token_ids()->add_values(5);
  const absl::StatusOr<Work> parsed = Validated(request, *model, {});  // 1666 windows of 48
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const uint64_t pairs = model->Pairs(parsed->inputs[0]);
  request.mutable_budget()->set_max_edges(pairs);
  EXPECT_TRUE(Validated(request, *model, {}).ok()) << "a budget that caps nothing";
  request.mutable_budget()->set_max_edges(pairs - 1);
  const absl::Status capped = Validated(request, *model, {}).status();
  EXPECT_EQ(capped.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(capped.message()),
              HasSubstr("inputs[0]: the windows of the text have 79968 positions; under a "
                        "budget or with a graph at most 65536"));
  request.clear_budget();
  while (request.inputs_size() < 13) *request.add_inputs() = request.inputs(0);
  EXPECT_TRUE(Validated(request, *model, {}).ok()) << Validated(request, *model, {}).status();
  *request.add_inputs() = request.inputs(0);
  const absl::Status many = Validated(request, *model, {}).status();
  EXPECT_EQ(many.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(many.message()),
              HasSubstr("inputs: the windows of the texts up to inputs[13] have 1119552 positions; at most 1048576"));
}

// A client that sent a text knows no token_ids.
TEST(ValidateKindsTest, ATextThatIsTooLongIsNamedAsAText) {
  const std::unique_ptr<Model> model = LoadTestModel("../testdata_hugging_face/gpt2_causal");
  v1::PredictRequest request = GoodRequest(*model);
  request.mutable_outputs()->set_stride(1);
  while (Sequence(request).token_ids().values_size() < 26400) Sequence(request).mutable_token_ids()->add_values(5);
  const auto message = [&] { return std::string(Validated(request, *model, {}).status().message()); };
  const std::string windows = " has 26400 tokens, which makes 26361 windows of 40 positions";
  EXPECT_EQ(message().find("inputs[0].sequence: token_ids" + windows), 0u) << message();
  Sequence(request).set_text(std::string(26400, 'b'));
  EXPECT_EQ(message().find("inputs[0].sequence: text" + windows), 0u) << message();
}

TEST(ValidateKindsTest, TokenProbabilitiesCountInTheSizeOfTheAnswerAndOfWhatIsHeld) {
  const std::unique_ptr<Model> model = LoadTestModel("lm-dense");
  v1::PredictRequest request = GoodRequest(*model);
  while (Sequence(request).token_ids().values_size() < 10000) Sequence(request).mutable_token_ids()->add_values(5);
  RequestLimits limits;
  limits.max_response_bytes = 100000;
  EXPECT_TRUE(Validated(request, *model, limits).ok());
  request.mutable_outputs()->set_each_sample(true);
  EXPECT_TRUE(Validated(request, *model, limits).ok()) << Validated(request, *model, limits).status();
  request.mutable_ensemble()->set_samples(2);  // 2 * 9999 * 8 bytes
  EXPECT_EQ(Validated(request, *model, limits).status().code(), absl::StatusCode::kResourceExhausted);
  limits = {};
  limits.max_result_bytes = 79000;
  request.mutable_outputs()->set_each_sample(false);
  request.mutable_ensemble()->set_samples(1);
  EXPECT_THAT(std::string(Validated(request, *model, limits).status().message()),
              HasSubstr("ensemble.samples times inputs would hold"));
}

TEST(ValidateKindsTest, OverrideIsTheAttentionOfEveryInputAndExcludesAGraph) {
  const std::unique_ptr<Model> model = LoadTestModel("dense");
  v1::PredictRequest request = GoodRequest(*model);
  LocalSsa(request);
  Override(request).set_last_layers(1);
  *request.add_inputs() = request.inputs(0);
  const absl::StatusOr<Work> parsed = Validated(request, *model, {});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  for (const ModelInput& input : parsed->inputs) {
    ASSERT_EQ(AttentionOf(model->config(), input).size(), 2u);
    EXPECT_EQ(AttentionOf(model->config(), input)[0].kind, &kDenseKind);
    EXPECT_EQ(AttentionOf(model->config(), input)[1].kind, &kSsaKind);
  }
  RequestLimits limits;
  limits.allow_graphs = true;
  request.mutable_inputs(0)->mutable_graph()->add_layers()->add_heads();
  EXPECT_THAT(std::string(Validated(request, *model, limits).status().message()),
              HasSubstr("inputs[0].graph cannot go with an override"));
}

}  // namespace
}  // namespace edgewise::server
