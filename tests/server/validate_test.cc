// Requests of the catalogue in bad_inputs.md (R1 to R52): each refusal has its code, field, value and limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <ostream>

#include "base/field_error.h"
#include "model/forward/edge_budget.h"
#include "server/base/status_details.h"
#include "tests/server/validated.h"

namespace edgewise::server {
namespace {

using ::testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

v1::PredictRequest GoodRequest(bool pair = false) {
  v1::PredictRequest request;
  request.set_model("m");
  v1::Input* input = request.add_inputs();
  for (int id : {1, 2, 3, 4}) input->mutable_sequence()->mutable_token_ids()->add_values(id);
  if (pair) *input->mutable_second() = input->sequence();
  return request;
}

v1::TokenIds& Ids(v1::PredictRequest& request) {
  return *request.mutable_inputs(0)->mutable_sequence()->mutable_token_ids();
}

struct Case {
  const char* name;
  std::function<void(v1::PredictRequest&)> change;
  const char* message;  // part of it
  const char* model = "sbm";
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

const Case kRefused[] = {
    {"R30_no_inputs", [](auto& r) { r.clear_inputs(); }, "inputs is empty; at least one is needed"},
    {"R30_too_many_inputs",
     [](auto& r) {
       for (int i = 0; i < 1024; ++i) r.add_inputs();
     },
     "inputs has 1025 entries; the server takes at most 1024"},
    {"R29_no_sequence", [](auto& r) { r.mutable_inputs(0)->clear_sequence(); }, "inputs[0].sequence is missing"},
    {"R29_no_content", [](auto& r) { r.mutable_inputs(0)->mutable_sequence()->clear_content(); },
     "inputs[0].sequence has no content"},
    {"R29_second_not_taken", [](auto& r) { *r.mutable_inputs(0)->mutable_second() = r.inputs(0).sequence(); },
     "inputs[0].second is for pair-classification"},
    {"R29_second_missing", [](auto& r) { r.mutable_inputs(0)->clear_second(); }, "inputs[0].second is missing",
     "sbm-pair"},
    {"R7_empty", [](auto& r) { Ids(r).clear_values(); }, "inputs[0].sequence.token_ids is empty"},
    {"R7_only_pads",
     [](auto& r) {
       Ids(r).clear_values();
       Ids(r).add_values(0);
     },
     "inputs[0].sequence.token_ids has 1 tokens, all of them pads"},
    {"R9_too_long",
     [](auto& r) {
       for (int i = 0; i < 45; ++i) Ids(r).add_values(1);
     },
     "inputs[0].sequence.token_ids has 49 tokens; the model takes"},
    {"R10_negative_id", [](auto& r) { Ids(r).set_values(2, -1); },
     "inputs[0].sequence.token_ids[2] is -1; the vocabulary has 40 entries"},
    {"R10_id_40", [](auto& r) { Ids(r).set_values(3, 40); },
     "inputs[0].sequence.token_ids[3] is 40; the vocabulary has 40 entries"},
    {"R10_id_max", [](auto& r) { Ids(r).set_values(0, 2147483647); }, "token_ids[0] is 2147483647"},
    {"R10_second_input",
     [](auto& r) {
       *r.add_inputs() = r.inputs(0);
       r.mutable_inputs(1)->mutable_sequence()->mutable_token_ids()->set_values(0, 99);
     },
     "inputs[1].sequence.token_ids[0] is 99"},
    {"R29_features_to_a_model_of_tokens",
     [](auto& r) { r.mutable_inputs(0)->mutable_sequence()->mutable_features()->set_rows(1); },
     "inputs[0].sequence.features: this model takes tokens"},
    {"bias_empty", [](auto& r) { r.mutable_inputs(0)->mutable_sequence()->mutable_bias(); },
     "inputs[0].sequence.bias is empty; give values or buckets"},
    {"bias_not_taken", [](auto& r) { r.mutable_inputs(0)->mutable_sequence()->mutable_bias()->add_values(1); },
     "inputs[0].sequence.bias.values: this model takes no pairwise bias"},
    {"text_without_tokenizer", [](auto& r) { r.mutable_inputs(0)->mutable_sequence()->set_text("hello"); },
     "inputs[0].sequence.text: this model has no tokenizer"},
    {"R27_truncate",
     [](auto& r) { r.mutable_inputs(0)->mutable_sequence()->set_truncate(static_cast<v1::Truncate>(7)); },
     "inputs[0].sequence.truncate is 7; allowed are REFUSE, HEAD and TAIL"},
    {"R27_attention", [](auto& r) { r.set_attention(static_cast<v1::AttentionMode>(99)); },
     "attention is 99; allowed are MODEL_DEFAULT and DENSE"},
    {"R27_priority", [](auto& r) { r.set_priority(4); }, "priority is 4; allowed are 0 (default) to 3"},
    {"R17_max_edges_0", [](auto& r) { r.mutable_budget()->set_max_edges(0); },
     "budget.max_edges is 0; allowed are 1 and more"},
    {"R18_density_0", [](auto& r) { r.mutable_budget()->set_max_density(0.0); },
     "budget.max_density is 0; allowed is (0, 1]"},
    {"R18_density_negative", [](auto& r) { r.mutable_budget()->set_max_density(-0.5); },
     "budget.max_density is -0.5; allowed is (0, 1]"},
    {"R18_density_nan", [](auto& r) { r.mutable_budget()->set_max_density(kNan); },
     "budget.max_density is nan; allowed is (0, 1]"},
    {"R18_density_inf", [](auto& r) { r.mutable_budget()->set_max_density(kInf); },
     "budget.max_density is inf; allowed is (0, 1]"},
    {"R18_density_above_1", [](auto& r) { r.mutable_budget()->set_max_density(1.0000001); }, "allowed is (0, 1]"},
    {"density_of_no_edge", [](auto& r) { r.mutable_budget()->set_max_density(0.01); },
     "budget.max_density is 0.01, which is 0 of the 64 pairs of inputs[0]; it needs at least 1 edges"},
    {"R17_dense_below_pairs",
     [](auto& r) {
       r.mutable_budget()->set_max_edges(63);
       r.set_attention(v1::DENSE);
     },
     "budget.max_edges is 63; inputs[0] needs at least 64 edges (those that are never dropped), as attention DENSE "
     "keeps every pair: leave it out"},
    {"R17_dense_model", [](auto& r) { r.mutable_budget()->set_max_density(0.99); },
     "it needs at least 64 edges, as dense attention keeps every pair: make it sparse by override {kind: \"ssa\", "
     "windows: 4, sigma: [0.1]} (edgewise predict: --windows 4 --sigma 0.1), in the request or in a profile of "
     "config.json",
     "dense"},
    {"R17_dense_model_dense",
     [](auto& r) {
       r.mutable_budget()->set_max_density(0.99);
       r.set_attention(v1::DENSE);
     },
     "(edgewise predict: --windows 4 --sigma 0.1) instead of attention DENSE", "dense"},
    {"keep",
     [](auto& r) {
       r.mutable_budget()->set_max_edges(9);
       r.mutable_budget()->set_keep(static_cast<v1::Keep>(3));
     },
     "budget.keep is 3; allowed are KEEP_MODEL_DEFAULT, RANDOM and PROBABLE"},
    {"keep_without_a_cap", [](auto& r) { r.mutable_budget()->set_keep(v1::RANDOM); },
     "budget.keep is RANDOM without a cap; set max_edges or max_density too"},
    {"keep_of_all_pairs",
     [](auto& r) {
       r.mutable_budget()->set_max_edges(64);
       r.mutable_budget()->set_keep(v1::PROBABLE);
       r.set_attention(v1::DENSE);
     },
     "budget.keep is PROBABLE; it is for attention sbm, and this request's is dense"},
    {"R22_samples", [](auto& r) { r.mutable_ensemble()->set_samples(257); },
     "ensemble.samples is 257; the server takes at most 256"},
    {"R22_samples_max", [](auto& r) { r.mutable_ensemble()->set_samples(4294967295u); },
     "ensemble.samples is 4294967295"},
    {"tolerance_negative", [](auto& r) { r.mutable_ensemble()->set_tolerance(-1); },
     "ensemble.tolerance is -1; allowed are finite numbers"},
    {"tolerance_nan", [](auto& r) { r.mutable_ensemble()->set_tolerance(kNan); }, "ensemble.tolerance is nan"},
    {"tolerance_inf", [](auto& r) { r.mutable_ensemble()->set_tolerance(kInf); }, "ensemble.tolerance is inf"},
    {"tolerance_of_a_part",
     [](auto& r) {
       r.mutable_ensemble()->set_tolerance(0.1);
       r.mutable_ensemble()->set_first_sample(4);
     },
     "ensemble.tolerance is 0.1 with first_sample 4"},
    {"first_sample_overflow",
     [](auto& r) {
       r.mutable_ensemble()->set_samples(2);
       r.mutable_ensemble()->set_first_sample(4294967295u);
     },
     "ensemble.first_sample is 4294967295 with 2 samples"},
    {"R28_top_k", [](auto& r) { r.mutable_outputs()->set_top_k(6); }, "outputs.top_k is 6; the model has 5 labels"},
    {"R28_top_k_of_tokens", [](auto& r) { r.mutable_outputs()->set_top_k(1); },
     "outputs.top_k is 1; a token-classification model", "sbm-tokens"},
    {"stride_of_a_classifier", [](auto& r) { r.mutable_outputs()->set_stride(1); },
     "outputs.stride is 1; it is for causal language models, this one does sequence-classification"},
    {"graph_of_samples",
     [](auto& r) {
       r.mutable_outputs()->set_graph(true);
       r.mutable_ensemble()->set_samples(2);
     },
     "outputs.graph is set with 2 samples"},
    {"override_on_sbm", [](auto& r) { r.mutable_override()->set_kind("ssa"); },
     "override.kind is \"ssa\"; this model's attention is sbm/bernoulli"},
    {"graph_not_allowed", [](auto& r) { r.mutable_inputs(0)->mutable_graph(); },
     "inputs[0].graph is not taken by this server; start it with --allow_graphs"},
};

class RefusedTest : public ::testing::TestWithParam<Case> {};

TEST_P(RefusedTest, IsInvalidArgumentThatNamesFieldValueAndLimit) {
  const Case& c = GetParam();
  const std::unique_ptr<Model> model = LoadTestModel(c.model);
  v1::PredictRequest request = GoodRequest(std::string(c.model) == "sbm-pair");
  ASSERT_TRUE(Validated(request, *model, {}).ok()) << Validated(request, *model, {}).status();
  c.change(request);
  const absl::StatusOr<Work> parsed = Validated(request, *model, {});
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(parsed.status()), HasSubstr(c.message));
  EXPECT_FALSE(FieldOf(parsed.status()).empty()) << "no google.rpc.BadRequest";
}

INSTANTIATE_TEST_SUITE_P(Catalogue, RefusedTest, ::testing::ValuesIn(kRefused),
                         [](const auto& info) { return info.param.name; });

class ValidateTest : public ::testing::Test {
 protected:
  std::unique_ptr<Model> model_ = LoadTestModel("sbm");
  v1::PredictRequest request_ = GoodRequest();
};

TEST_F(ValidateTest, R8R9OneTokenAndTheLongestInputAreTaken) {
  Ids(request_).clear_values();
  Ids(request_).add_values(5);
  EXPECT_TRUE(Validated(request_, *model_, {}).ok());
  while (Ids(request_).values_size() < 48) Ids(request_).add_values(5);
  EXPECT_TRUE(Validated(request_, *model_, {}).ok());
}

TEST_F(ValidateTest, TruncationIsCountedAndKeepsTheSideAskedFor) {
  Ids(request_).clear_values();
  for (int i = 0; i < 50; ++i) Ids(request_).add_values(i < 25 ? 1 : 2);
  request_.mutable_inputs(0)->mutable_sequence()->set_truncate(v1::HEAD);
  Work head = Validated(request_, *model_, {}).value();
  EXPECT_EQ(head.inputs[0].sequences[0].truncated_tokens, 2u);
  EXPECT_EQ(head.inputs[0].sequences[0].token_ids[22], 1);
  EXPECT_EQ(head.inputs[0].sequences[0].token_ids[23], 2);
  request_.mutable_inputs(0)->mutable_sequence()->set_truncate(v1::TAIL);
  Work tail = Validated(request_, *model_, {}).value();
  EXPECT_EQ(tail.inputs[0].sequences[0].token_ids[24], 1);
  EXPECT_EQ(tail.inputs[0].sequences[0].token_ids[25], 2);
}

TEST_F(ValidateTest, R19R20BudgetsFromOneEdgeToMoreThanAllPairs) {
  for (const uint64_t edges : {uint64_t{1}, uint64_t{64}, std::numeric_limits<uint64_t>::max()}) {
    request_.mutable_budget()->set_max_edges(edges);
    ASSERT_TRUE(Validated(request_, *model_, {}).ok());
    EXPECT_EQ(Validated(request_, *model_, {})->inputs[0].max_edges, edges);
  }
  request_.mutable_budget()->set_max_density(1.0);
  EXPECT_EQ(Validated(request_, *model_, {})->inputs[0].max_edges, 64u);
  request_.mutable_budget()->set_max_density(0.5);
  EXPECT_EQ(Validated(request_, *model_, {})->inputs[0].max_edges, 32u);
}

TEST_F(ValidateTest, DensityIsTheLargestWholeShareThatItAllows) {
  EXPECT_EQ(EdgesOfDensity(0.29, 100), 29u);  // 0.29 * 100 is 28.999999999999996
  EXPECT_EQ(EdgesOfDensity(0.57, 100), 57u);
  EXPECT_EQ(EdgesOfDensity(0.7, 10), 7u);
  EXPECT_EQ(EdgesOfDensity(std::nextafter(0.7, 0.0), 10), 6u);
  EXPECT_EQ(EdgesOfDensity(1.0, 12345), 12345u);
  EXPECT_EQ(EdgesOfDensity(1e-300, 12345), 0u);
  for (uint64_t pairs = 1; pairs < 400; ++pairs) {
    for (uint64_t edges = 0; edges <= pairs; ++edges) {
      ASSERT_EQ(EdgesOfDensity(static_cast<double>(edges) / static_cast<double>(pairs), pairs), edges);
    }
  }
}

TEST_F(ValidateTest, R24SeedIsTakenAsItComesOrDrawn) {
  for (const uint64_t seed : {uint64_t{0}, std::numeric_limits<uint64_t>::max()}) {
    request_.mutable_ensemble()->set_seed(seed);
    EXPECT_EQ(Validated(request_, *model_, {})->seed, seed);
    EXPECT_EQ(Validated(request_, *model_, {})->inputs[0].seed, seed);
  }
  request_.mutable_ensemble()->clear_seed();
  EXPECT_NE(Validated(request_, *model_, {})->seed, Validated(request_, *model_, {})->seed);
}

TEST_F(ValidateTest, NoSamplesMeansOneAndTheLimitIsInclusive) {
  EXPECT_EQ(Validated(request_, *model_, {})->inputs[0].samples, 1u);
  request_.mutable_ensemble()->set_samples(256);
  EXPECT_EQ(Validated(request_, *model_, {})->inputs[0].samples, 256u);
  request_.mutable_ensemble()->set_samples(1);
  request_.mutable_ensemble()->set_first_sample(4294967295u);
  EXPECT_TRUE(Validated(request_, *model_, {}).ok());
}

TEST_F(ValidateTest, R47AnswerTooLargeIsRefusedBeforeCompute) {
  RequestLimits limits;
  limits.max_response_bytes = 10000;
  EXPECT_TRUE(Validated(request_, *model_, limits).ok());
  request_.mutable_ensemble()->set_samples(256);
  EXPECT_TRUE(Validated(request_, *model_, limits).ok());
  request_.mutable_outputs()->set_each_sample(true);
  const absl::Status status = Validated(request_, *model_, limits).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(status), HasSubstr("the server sends at most 10000 in one answer"));
}

TEST_F(ValidateTest, R23SamplesTimesInputsAreBounded) {
  RequestLimits limits;
  limits.max_result_bytes = 100000;
  request_.mutable_ensemble()->set_samples(256);
  EXPECT_TRUE(Validated(request_, *model_, limits).ok());
  *request_.add_inputs() = request_.inputs(0);
  const absl::Status status = Validated(request_, *model_, limits).status();
  EXPECT_THAT(Message(status), HasSubstr("ensemble.samples times inputs would hold"));
}

TEST_F(ValidateTest, ReturnedGraphIsBoundedByTheBudgetOrThePairs) {
  RequestLimits limits;
  limits.max_graph_edges = 63;
  request_.mutable_outputs()->set_graph(true);
  EXPECT_THAT(Message(Validated(request_, *model_, limits).status()),
              HasSubstr("outputs.graph of inputs[0] may have 64 edges; the server returns at most 63"));
  request_.mutable_budget()->set_max_edges(63);
  EXPECT_TRUE(Validated(request_, *model_, limits).ok());
}

// One edge for every row, itself, in every layer and head.
void SetDiagonal(v1::Graph& graph, int layers, int heads, uint32_t positions) {
  for (int l = 0; l < layers; ++l) {
    v1::Graph::Layer* layer = graph.add_layers();
    for (int h = 0; h < heads; ++h) {
      v1::Graph::Head* head = layer->add_heads();
      for (uint32_t i = 0; i <= positions; ++i) head->add_row_offsets(i);
      for (uint32_t i = 0; i < positions; ++i) head->add_keys(i);
    }
  }
}

TEST_F(ValidateTest, GivenGraphIsTakenCheckedAndItsEdgesAreTheLeastBudget) {
  RequestLimits limits;
  limits.allow_graphs = true;
  v1::Graph& graph = *request_.mutable_inputs(0)->mutable_graph();
  EXPECT_THAT(Message(Validated(request_, *model_, limits).status()), HasSubstr("inputs[0].graph has no heads"));
  SetDiagonal(graph, 2, 2, 4);
  ASSERT_TRUE(Validated(request_, *model_, limits).ok()) << Validated(request_, *model_, limits).status();
  request_.mutable_budget()->set_max_edges(15);
  EXPECT_THAT(Message(Validated(request_, *model_, limits).status()), HasSubstr("inputs[0] needs at least 16 edges"));
  request_.clear_budget();
  limits.max_graph_edges = 15;
  EXPECT_THAT(Message(Validated(request_, *model_, limits).status()),
              HasSubstr("inputs[0].graph has 16 edges; the server takes at most 15"));
  limits.max_graph_edges = 16;
  request_.set_attention(v1::DENSE);
  EXPECT_THAT(Message(Validated(request_, *model_, limits).status()),
              HasSubstr("inputs[0].graph cannot go with attention DENSE"));
  request_.set_attention(v1::MODEL_DEFAULT);
  graph.mutable_layers(1)->mutable_heads(0)->set_keys(2, 4294967295u);
  EXPECT_THAT(Message(Validated(request_, *model_, limits).status()),
              HasSubstr("inputs[0].graph.layers[1].heads[0].keys[2] is 4294967295"));
  graph.mutable_layers(1)->mutable_heads(0)->set_keys(2, 4);
  EXPECT_TRUE(absl::IsInvalidArgument(Validated(request_, *model_, limits).status()));
  graph.mutable_layers(1)->mutable_heads(0)->set_keys(2, 2);
  graph.mutable_layers(1)->mutable_heads(0)->set_row_offsets(2, 4000000000u);
  EXPECT_TRUE(absl::IsInvalidArgument(Validated(request_, *model_, limits).status()));
}

TEST_F(ValidateTest, PadsAndGivenEdgesCostRoomInTheQueue) {
  for (int i = 0; i < 3; ++i) Ids(request_).add_values(0);
  Work parsed = Validated(request_, *model_, {}).value();
  EXPECT_EQ(parsed.tokens, 4u);
  EXPECT_EQ(parsed.cost, 7u);
  RequestLimits limits;
  limits.allow_graphs = true;
  request_ = GoodRequest();
  SetDiagonal(*request_.mutable_inputs(0)->mutable_graph(), 2, 2, 4);
  EXPECT_EQ(Validated(request_, *model_, limits).value().cost, 4u + 16u);
}

TEST_F(ValidateTest, MultiplicitiesOfPoissonMultiAreCheckedAndTaken) {
  const std::unique_ptr<Model> model = LoadTestModel("sbm-tokens");
  RequestLimits limits;
  limits.allow_graphs = true;
  SetDiagonal(*request_.mutable_inputs(0)->mutable_graph(), 1, 2, 4);
  v1::Graph::Head& head = *request_.mutable_inputs(0)->mutable_graph()->mutable_layers(0)->mutable_heads(0);
  for (int i = 0; i < 4; ++i) head.add_multiplicities(static_cast<uint32_t>(i + 1));
  const Work parsed = Validated(request_, *model, limits).value();
  EXPECT_EQ(parsed.inputs[0].graph->layers[0][0].multiplicity, (std::vector<int32_t>{1, 2, 3, 4}));
  for (const uint32_t bad : {0u, 1048577u, 4294967295u}) {
    head.set_multiplicities(1, bad);
    EXPECT_THAT(Message(Validated(request_, *model, limits).status()), HasSubstr("heads[0].multiplicities[1] is"))
        << bad;
  }
  head.mutable_multiplicities()->RemoveLast();
  EXPECT_THAT(Message(Validated(request_, *model, limits).status()),
              HasSubstr("multiplicities has 3 entries; its keys have 4"));
}

TEST_F(ValidateTest, BudgetRefusalsAreToldApart) {
  request_.mutable_ensemble()->set_samples(1000);
  EXPECT_EQ(RejectionOf(Validated(request_, *model_, {}).status()), Rejection::kInvalid);
  request_.mutable_ensemble()->set_samples(1);
  request_.set_attention(v1::DENSE);
  request_.mutable_budget()->set_max_edges(5);
  EXPECT_EQ(RejectionOf(Validated(request_, *model_, {}).status()), Rejection::kBudget);
}

}  // namespace
}  // namespace edgewise::server
