// Profiles, limits and consent: what a request runs with, and what is refused.
#include "server/validate/settings.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/models/repository.h"
#include "server/schedule/degrade.h"
#include "tests/model/model_builder.h"
#include "tests/model/run_model.h"
#include "tests/server/validated.h"

namespace edgewise::server {
namespace {

// A model whose config.json has two profiles, "quick" the default, and limits.
class SettingsTest : public ::testing::Test {
 protected:
  SettingsTest() {
    nlohmann::json config = testing::SmallConfig();
    config["profiles"] = {{"quick", {{"default", true}, {"samples", 2}, {"max_density", 0.5}}},
                          {"careful", {{"samples", 8}, {"tolerance", 0.25}}}};
    config["limits"] = {{"samples", 32}, {"max_density", 0.75}};
    loaded_ = std::make_unique<testing::LoadedModel>(testing::LoadModel(testing::WriteModel(folder_.path(), config)));
    request_.set_model("m");
    for (int id : {1, 2, 3, 4}) {
      (request_.inputs_size() > 0 ? request_.mutable_inputs(0) : request_.add_inputs())
          ->mutable_sequence()
          ->mutable_token_ids()
          ->add_values(id);
    }
  }

  absl::StatusOr<Work> Checked(Time deadline = Time::max()) {
    return Validate(request_, **loaded_, (*loaded_)->config().profiles, limits_, {.deadline = deadline});
  }
  std::string Refusal(Time deadline = Time::max()) { return std::string(Checked(deadline).status().message()); }

  testing::TemporaryFolder folder_;
  std::unique_ptr<testing::LoadedModel> loaded_;
  RequestLimits limits_;
  v1::PredictRequest request_;
};

TEST_F(SettingsTest, TheDefaultProfileFillsWhatTheRequestLeavesOpen) {
  const absl::StatusOr<Work> request = Checked();
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->settings->profile(), "quick");
  EXPECT_EQ(request->settings->budget().max_density(), 0.5);
  EXPECT_EQ(request->inputs[0].samples, 2u);
  EXPECT_EQ(request->budget, BudgetKind::kDensity);
}

TEST_F(SettingsTest, FieldsOfTheRequestWinOverItsProfile) {
  request_.set_profile("careful");
  request_.mutable_ensemble()->set_samples(5);
  request_.mutable_budget()->set_max_edges(40);
  const absl::StatusOr<Work> request = Checked();
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->settings->profile(), "careful");
  EXPECT_EQ(request->inputs[0].samples, 5u);
  EXPECT_EQ(request->inputs[0].max_edges, 40u);
  EXPECT_EQ(request->inputs[0].tolerance, 0.25);
}

TEST_F(SettingsTest, NoneIsNoProfileAndTheLimitsStillHold) {
  request_.set_profile("none");
  const absl::StatusOr<Work> request = Checked();
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->settings->profile(), "");
  EXPECT_EQ(request->inputs[0].samples, 1u);
  EXPECT_EQ(request->settings->budget().max_density(), 0.75);
  request_.mutable_budget()->set_max_density(1.0);
  const uint64_t pairs = (*loaded_)->Pairs(request->inputs[0]);
  EXPECT_EQ(Checked()->inputs[0].max_edges, pairs * 3 / 4) << "the lower of both caps";
  request_.mutable_ensemble()->set_samples(33);
  EXPECT_EQ(Refusal(), "ensemble.samples is 33; the model's limits allow at most 32");
}

TEST_F(SettingsTest, AnUnknownProfileIsRefusedWithTheNames) {
  request_.set_profile("fast");
  EXPECT_EQ(Refusal(), "profile is \"fast\"; allowed are none, careful, quick");
}

TEST_F(SettingsTest, TheSettingsOfAnAnswerAskedForGiveTheSameRequest) {
  request_.set_profile("careful");
  const absl::StatusOr<Work> by_profile = Checked();
  ASSERT_TRUE(by_profile.ok());
  const v1::Settings& settings = *by_profile->settings;
  request_.set_profile("none");
  *request_.mutable_budget() = settings.budget();
  request_.mutable_ensemble()->set_samples(settings.samples());
  request_.mutable_ensemble()->set_tolerance(settings.tolerance());
  const absl::StatusOr<Work> asked = Checked();
  ASSERT_TRUE(asked.ok());
  EXPECT_EQ(asked->inputs[0].samples, by_profile->inputs[0].samples);
  EXPECT_EQ(asked->inputs[0].tolerance, by_profile->inputs[0].tolerance);
  EXPECT_EQ(asked->inputs[0].max_edges, by_profile->inputs[0].max_edges);
}

TEST_F(SettingsTest, KeepIsTheRequestsElseTheProfilesElseTheModels) {
  nlohmann::json config = testing::SmallConfig();
  config["profiles"] = {{"plain", {{"max_density", 0.5}}}, {"keeps", {{"keep", "random"}}}};
  config["budget_keep"] = "probable";
  loaded_ = std::make_unique<testing::LoadedModel>(testing::LoadModel(testing::WriteModel(folder_.path(), config)));
  const auto kept = [&](const char* profile, bool cap, v1::Keep keep) {
    request_.set_profile(profile);
    request_.clear_budget();
    if (cap) request_.mutable_budget()->set_max_edges(40);
    request_.mutable_budget()->set_keep(keep);
    const absl::StatusOr<Work> request = Checked();
    EXPECT_TRUE(request.ok()) << request.status();
    const v1::Keep effective = request->settings->budget().keep();
    EXPECT_EQ(request->inputs[0].keep == CapRule::kProbable, effective == v1::PROBABLE);
    return effective;
  };
  EXPECT_EQ(kept("none", true, v1::KEEP_MODEL_DEFAULT), v1::PROBABLE);
  EXPECT_EQ(kept("plain", false, v1::KEEP_MODEL_DEFAULT), v1::PROBABLE);
  EXPECT_EQ(kept("plain", false, v1::RANDOM), v1::RANDOM);
  EXPECT_EQ(kept("keeps", true, v1::KEEP_MODEL_DEFAULT), v1::RANDOM);
  EXPECT_EQ(kept("keeps", true, v1::PROBABLE), v1::PROBABLE);
  EXPECT_EQ(kept("keeps", false, v1::KEEP_MODEL_DEFAULT), v1::KEEP_MODEL_DEFAULT) << "there is no cap";
  request_.set_profile("keeps");
  request_.clear_budget();
  EXPECT_FALSE(Checked()->settings->has_budget());
  request_.mutable_budget()->set_max_edges(64);
  request_.set_attention(v1::DENSE);
  EXPECT_EQ(Checked()->settings->budget().keep(), v1::KEEP_MODEL_DEFAULT) << "nothing is drawn";
}

TEST_F(SettingsTest, APartOfAnEnsembleHasNoToleranceAndAGraphOneSample) {
  request_.set_profile("careful");
  request_.mutable_ensemble()->set_first_sample(4);
  ASSERT_TRUE(Checked().ok()) << Refusal();
  EXPECT_EQ(Checked()->inputs[0].tolerance, 0.0);
  request_.mutable_outputs()->set_graph(true);
  ASSERT_TRUE(Checked().ok()) << Refusal();
  EXPECT_EQ(Checked()->inputs[0].samples, 1u);
}

TEST_F(SettingsTest, FittingADeadlineNeedsOneAndIsBoundedBySamplesOrTheLimits) {
  request_.mutable_budget()->set_fit_deadline(true);
  EXPECT_EQ(Refusal(), "budget.fit_deadline is set; the call has no deadline to fit");
  const Time deadline = Time() + std::chrono::hours(1);
  EXPECT_EQ(Checked(deadline)->inputs.front().samples, 2u) << "of the profile";
  request_.set_profile("none");
  EXPECT_EQ(Checked(deadline)->inputs.front().samples, 32u) << "of the limits";
  request_.mutable_ensemble()->set_samples(7);
  const absl::StatusOr<Work> request = Checked(deadline);
  EXPECT_EQ(request->inputs.front().samples, 7u);
  EXPECT_TRUE(request->may_degrade);
}

TEST_F(SettingsTest, WithoutANumberSamplesAreThoseWhoseAnswerFits) {
  request_.set_profile("none");
  request_.mutable_budget()->set_fit_deadline(true);
  request_.mutable_outputs()->set_each_sample(true);
  limits_.max_response_bytes = 2500;
  const absl::StatusOr<Work> request = Checked(Time() + std::chrono::hours(1));
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_LT(request->inputs.front().samples, 32u);
  EXPECT_GE(request->inputs.front().samples, 1u);
}

// Under consent to less, of a model on which each edge and each pair takes so many seconds.
Forecast Predicted(const absl::StatusOr<Work>& work, const Model& model, double edge, double pair) {
  auto loaded = std::make_shared<LoadedModel>();
  loaded->model = std::shared_ptr<const Model>(&model, [](const Model*) {});
  for (int i = 0; i < 100; ++i) {
    const double tokens = 4 + i % 20, pairs = 4 * tokens * tokens, edges = pairs / (1 + i % 3);
    loaded->costs->Observe({1, tokens, pairs, edges}, 1e-3 + 1e-5 * tokens + pair * pairs + edge * edges);
  }
  return MakeForecast(*loaded, *work);
}

TEST_F(SettingsTest, EdgesGiveWayOnlyWhereThatIsPredictedToSaveTime) {
  request_.set_profile("none");
  request_.mutable_budget()->set_allow_degraded(true);
  const Forecast edges = Predicted(Checked(), **loaded_, 1e-3, 0.0);
  ASSERT_EQ(edges.caps.inputs.size(), 1u);
  EXPECT_TRUE(edges.caps.by_density);
  EXPECT_EQ(edges.caps.most, 0.75) << "of the limits";
  EXPECT_EQ(edges.caps.least, 0.75 / 16);
  EXPECT_LT(edges.least_seconds, 0.5 * edges.one_seconds);
  const Forecast pairs = Predicted(Checked(), **loaded_, 0.0, 1e-3);
  EXPECT_TRUE(pairs.caps.inputs.empty());
  EXPECT_EQ(pairs.least_seconds, pairs.one_seconds);
}

TEST_F(SettingsTest, EdgesOfAnotherRuleThanTheModelsOwnNeverGiveWay) {
  request_.set_profile("none");
  request_.mutable_budget()->set_allow_degraded(true);
  for (const char* rule : {"dense", "graph", "override"}) {
    absl::StatusOr<Work> request = Checked();
    ASSERT_TRUE(request.ok());
    ModelInput& input = request->inputs[0];
    if (std::string(rule) == "dense") input.dense = true;
    if (std::string(rule) == "graph") input.graph.emplace();
    if (std::string(rule) == "override") {
      input.attention = std::make_shared<const std::vector<AttentionConfig>>((*loaded_)->config().attention);
    }
    EXPECT_TRUE(Predicted(request, **loaded_, 1e-3, 0.0).caps.inputs.empty()) << rule;
  }
}

TEST_F(SettingsTest, ACapInEdgesGivesWayInEdges) {
  request_.mutable_budget()->set_allow_degraded(true);
  request_.mutable_budget()->set_max_edges(33);
  const Forecast request = Predicted(Checked(), **loaded_, 1e-3, 0.0);
  EXPECT_FALSE(request.caps.by_density);
  EXPECT_EQ(request.caps.most, 33.0);
  EXPECT_EQ(request.caps.least, 3.0) << "whole edges";
}

TEST(GenerateSettingsTest, TakesNoConsent) {
  const std::unique_ptr<Model> model = LoadTestModel("lm-ssa-local");
  v1::GenerateRequest request;
  for (int id : {1, 2, 3}) request.mutable_prompt()->mutable_token_ids()->add_values(id);
  request.set_max_new_tokens(1);
  request.mutable_budget()->set_allow_degraded(true);
  EXPECT_EQ(Validated(request, *model, {}).status().message(),
            "budget.allow_degraded is set; Generate uses all samples for every token");
  request.mutable_budget()->set_allow_degraded(false);
  request.mutable_budget()->set_fit_deadline(true);
  EXPECT_EQ(Validated(request, *model, {}).status().message(),
            "budget.fit_deadline is set; Generate uses all samples for every token");
}

}  // namespace
}  // namespace edgewise::server
