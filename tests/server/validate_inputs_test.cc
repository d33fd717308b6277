// Of several inputs the one that is refused is named, whatever is wrong with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <ostream>
#include <string>

#include "base/field_error.h"
#include "server/base/status_details.h"
#include "tests/server/validated.h"

namespace edgewise::server {
namespace {

struct InputCase {
  const char* name;
  std::function<void(v1::Input&)> change;
  const char* field;  // within the input
  const char* what;   // the message after the field
  const char* model = "sbm";
};

void PrintTo(const InputCase& c, std::ostream* out) { *out << c.name; }

const InputCase kRefusedInputs[] = {
    {"sequence", [](auto& input) { input.clear_sequence(); }, "sequence", "is missing"},
    {"content", [](auto& input) { input.mutable_sequence()->clear_content(); }, "sequence",
     "has no content; give text, token_ids, features or image"},
    {"no_tokens", [](auto& input) { input.mutable_sequence()->mutable_token_ids()->clear_values(); },
     "sequence.token_ids", "is empty; at least one token is needed"},
    {"token", [](auto& input) { input.mutable_sequence()->mutable_token_ids()->set_values(2, 40); },
     "sequence.token_ids[2]", "is 40; the vocabulary has 40 entries"},
    {"truncate", [](auto& input) { input.mutable_sequence()->set_truncate(static_cast<v1::Truncate>(3)); },
     "sequence.truncate", "is 3; allowed are REFUSE, HEAD and TAIL"},
    {"bias", [](auto& input) { input.mutable_sequence()->mutable_bias(); }, "sequence.bias",
     "is empty; give values or buckets, or leave it out"},
    {"second", [](auto& input) { *input.mutable_second() = input.sequence(); }, "second",
     "is for pair-classification models; this one does sequence-classification"},
    {"no_second", [](auto& input) { input.clear_second(); }, "second",
     "is missing; a pair-classification model takes two sequences", "sbm-pair"},
    {"token_of_second", [](auto& input) { input.mutable_second()->mutable_token_ids()->set_values(1, -1); },
     "second.token_ids[1]", "is -1; the vocabulary has 40 entries", "sbm-pair"},
    {"graph", [](auto& input) { input.mutable_graph(); }, "graph",
     "is not taken by this server; start it with --allow_graphs"},
};

class RefusedInputTest : public ::testing::TestWithParam<InputCase> {};

TEST_P(RefusedInputTest, IsNamedByItsOwnIndex) {
  constexpr int kInputs = 4;
  const InputCase& c = GetParam();
  const std::unique_ptr<Model> model = LoadTestModel(c.model);
  v1::PredictRequest good;
  for (int i = 0; i < kInputs; ++i) {
    v1::Input* input = good.add_inputs();
    for (const int id : {1, 2, 3}) input->mutable_sequence()->mutable_token_ids()->add_values(id);
    if (std::string(c.model) == "sbm-pair") *input->mutable_second() = input->sequence();
  }
  ASSERT_TRUE(Validated(good, *model, {}).ok()) << Validated(good, *model, {}).status();
  for (int i = 0; i < kInputs; ++i) {
    v1::PredictRequest request = good;
    c.change(*request.mutable_inputs(i));
    const absl::Status refused = Validated(request, *model, {}).status();
    const std::string field = "inputs[" + std::to_string(i) + "]." + c.field;
    EXPECT_EQ(refused, FieldError(field, c.what)) << refused;  // the google.rpc.BadRequest too
  }
}

INSTANTIATE_TEST_SUITE_P(Inputs, RefusedInputTest, ::testing::ValuesIn(kRefusedInputs),
                         ::testing::PrintToStringParamName());

// A text of `tokens` tokens, none a pad.
void SetTokens(v1::Input& input, int tokens) {
  for (int t = 0; t < tokens; ++t) input.mutable_sequence()->mutable_token_ids()->add_values(1 + t % 9);
}

// Budgets, and what an answer may hold, depend on the input's length: the first that is too short or too long is named.
TEST(RefusedSizeTest, TheInputThatABudgetIsTooSmallForIsNamed) {
  const std::unique_ptr<Model> model = LoadTestModel("dense");
  for (int i = 0; i < 3; ++i) {
    v1::PredictRequest request;
    for (int input = 0; input < 3; ++input) SetTokens(*request.add_inputs(), input == i ? 5 : 4);
    request.mutable_budget()->set_max_edges(4 * 4 * 2 * 2);
    const absl::Status refused = Validated(request, *model, {}).status();
    const std::string message(refused.message()), field = "budget.max_edges";
    EXPECT_THAT(message, ::testing::StartsWith(field + " is 64; inputs[" + std::to_string(i) +
                                               "] needs at least 100 edges (those that are never dropped), as dense"));
    EXPECT_EQ(refused, WithRejection(FieldError(field, message.substr(field.size() + 1)), Rejection::kBudget));
  }
}

TEST(RefusedSizeTest, TheInputWhoseGraphIsTooLargeToReturnIsNamed) {
  const std::unique_ptr<Model> model = LoadTestModel("sbm");
  RequestLimits limits;
  limits.max_graph_edges = 64;
  for (int i = 0; i < 3; ++i) {
    v1::PredictRequest request;
    for (int input = 0; input < 3; ++input) SetTokens(*request.add_inputs(), input == i ? 5 : 4);
    request.mutable_outputs()->set_graph(true);
    EXPECT_EQ(Validated(request, *model, limits).status(),
              FieldError("outputs.graph", "of inputs[" + std::to_string(i) +
                                              "] may have 100 edges; the server returns at most 64 (lower the "
                                              "budget)"));
  }
}

// Every field of a request, one at a time, reaches each of its inputs.
TEST(ParsedInputTest, WhatIsAskedForReachesEveryInput) {
  const std::unique_ptr<Model> model = LoadTestModel("sbm");
  v1::PredictRequest plain;
  plain.mutable_ensemble()->set_seed(1);
  for (int i = 0; i < 2; ++i) SetTokens(*plain.add_inputs(), 4 + i);
  struct Field {
    std::function<void(v1::PredictRequest&)> set;
    std::function<double(const ModelInput&)> of;
    double unset, expected;
  };
  const Field fields[] = {
      {[](auto& r) { r.mutable_ensemble()->set_seed(9); }, [](const auto& in) { return in.seed; }, 1, 9},
      {[](auto& r) { r.mutable_ensemble()->set_samples(3); }, [](const auto& in) { return in.samples; }, 1, 3},
      {[](auto& r) { r.mutable_ensemble()->set_first_sample(5); }, [](const auto& in) { return in.first_sample; }, 0,
       5},
      {[](auto& r) { r.mutable_ensemble()->set_tolerance(0.5); }, [](const auto& in) { return in.tolerance; }, 0, 0.5},
      {[](auto& r) { r.mutable_budget()->set_max_edges(7); }, [](const auto& in) { return in.max_edges; },
       static_cast<double>(kNoCap), 7},
      {[](auto& r) { r.set_attention(v1::DENSE); }, [](const auto& in) { return in.dense; }, 0, 1},
      {[](auto& r) { r.mutable_outputs()->set_layer_stats(true); }, [](const auto& in) { return in.wanted.expected; },
       0, 1},
      {[](auto& r) { r.mutable_outputs()->set_key_degrees(true); },
       [](const auto& in) { return in.wanted.key_degrees; }, 0, 1},
      {[](auto& r) { r.mutable_outputs()->set_graph(true); }, [](const auto& in) { return in.wanted.graph; }, 0, 1}};
  for (size_t f = 0; f < std::size(fields); ++f) {
    v1::PredictRequest request = plain;
    fields[f].set(request);
    const absl::StatusOr<Work> parsed = Validated(request, *model, {});
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    ASSERT_EQ(parsed->inputs.size(), 2u);
    for (const ModelInput& input : parsed->inputs) {
      for (size_t other = 0; other < std::size(fields); ++other) {
        EXPECT_EQ(fields[other].of(input), other == f ? fields[other].expected : fields[other].unset)
            << "field " << other << " of a request that sets field " << f;
      }
    }
  }
}

TEST(ParsedInputTest, TheMostInputsAreTaken) {
  const std::unique_ptr<Model> model = LoadTestModel("sbm");
  RequestLimits limits;
  limits.max_inputs = 3;
  v1::PredictRequest request;
  for (int i = 0; i < 3; ++i) SetTokens(*request.add_inputs(), 2);
  EXPECT_TRUE(Validated(request, *model, limits).ok());
  SetTokens(*request.add_inputs(), 2);
  EXPECT_EQ(Validated(request, *model, limits).status(),
            FieldError("inputs", "has 4 entries; the server takes at most 3"));
}

}  // namespace
}  // namespace edgewise::server
