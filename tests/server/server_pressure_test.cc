// Consent, deadlines and profiles over a real port: what an answer says, and that asking for it gives the same bytes.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/server/test_server.h"

namespace edgewise::server {
namespace {

// The model "sbm" with profiles and limits.
class PressureTest : public ::testing::Test {
 protected:
  PressureTest() {
    folder_.AddModel("sbm", "sbm", 1);
    std::ifstream file(folder_.path() + "/sbm/1/config.json");
    nlohmann::json config = nlohmann::json::parse(file);
    config["profiles"] = {{"quick", {{"default", true}, {"samples", 2}, {"max_density", 0.5}}},
                          {"careful", {{"samples", 8}, {"tolerance", 1e-9}}}};
    config["limits"] = {{"samples", 32}};
    folder_.Write("sbm/1/config.json", config.dump());
    server_ = std::make_unique<TestServer>(TestOptions(folder_.path()));
  }

  // The answer to what `answer` says that it ran with.
  v1::PredictResponse Again(v1::PredictRequest request, const v1::PredictResponse& answer) {
    request.set_profile("none");
    *request.mutable_budget() = answer.settings().budget();
    request.mutable_ensemble()->set_samples(answer.settings().samples());
    request.mutable_ensemble()->set_tolerance(answer.settings().tolerance());
    request.mutable_ensemble()->set_seed(answer.seed());
    v1::PredictResponse response;
    const grpc::Status status = server_->Predict(request, response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.settings().profile(), "");
    return response;
  }

  TestFolder folder_;
  std::unique_ptr<TestServer> server_;
};

TEST_F(PressureTest, WhatAnAnswerSaysItRanWithGivesTheSameBytes) {
  for (const char* profile : {"", "quick", "careful", "none"}) {
    for (const bool fit : {false, true}) {
      v1::PredictRequest request = SmallRequest();
      request.set_profile(profile);
      request.mutable_budget()->set_fit_deadline(fit);
      v1::PredictResponse answer;
      const grpc::Status status = server_->Predict(request, answer);
      ASSERT_TRUE(status.ok()) << status.error_message();
      EXPECT_EQ(answer.settings().profile(), std::string(profile).empty()     ? "quick"
                                             : std::string(profile) == "none" ? ""
                                                                              : profile);
      EXPECT_EQ(answer.has_degraded(), fit);
      if (fit) EXPECT_EQ(answer.degraded().samples(), answer.settings().samples());
      EXPECT_EQ(answer.predictions(0).samples(), answer.settings().samples());
      EXPECT_EQ(Again(request, answer).predictions(0).SerializeAsString(), answer.predictions(0).SerializeAsString());
    }
  }
}

TEST_F(PressureTest, GetModelListsTheProfilesAndTheLimits) {
  v1::GetModelRequest request;
  request.set_model("sbm");
  v1::GetModelResponse response;
  CallContext context;
  ASSERT_TRUE(server_->stub().GetModel(&context, request, &response).ok());
  const v1::ModelInfo& model = response.model();
  ASSERT_EQ(model.profiles_size(), 2);
  EXPECT_EQ(model.profiles(0).profile(), "careful");
  EXPECT_EQ(model.profiles(0).samples(), 8u);
  EXPECT_EQ(model.profiles(1).budget().max_density(), 0.5);
  EXPECT_EQ(model.default_profile(), "quick");
  EXPECT_EQ(model.limits().samples(), 32u);
}

TEST_F(PressureTest, DegradedAnswersAreCounted) {
  const std::string series = R"(edgewise_degraded_requests_total{model="sbm",reason="deadline",version="1"})";
  EXPECT_EQ(server_->Metric(series), 0.0);
  v1::PredictRequest request = SmallRequest();
  request.mutable_budget()->set_fit_deadline(true);
  request.mutable_ensemble()->set_samples(3);
  v1::PredictResponse answer;
  ASSERT_TRUE(server_->Predict(request, answer).ok());
  EXPECT_EQ(answer.degraded().requested_samples(), 3u);
  EXPECT_EQ(server_->Metric(series), answer.degraded().samples() < 3 ? 1.0 : 0.0);
}

}  // namespace
}  // namespace edgewise::server
