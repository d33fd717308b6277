// Consent, deadlines and profiles over a real port: what an answer says, and that asking for it gives the same bytes.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/server/test_server.h"

namespace edgewise::server {
namespace {

// The model "sbm" with profiles, limits and, where a test says so, a shadow.
class PressureTest : public ::testing::Test {
 protected:
  PressureTest() {
    folder_.AddModel("sbm", "sbm", 1);
    std::ifstream file(folder_.path() + "/sbm/1/config.json");
    nlohmann::json config = nlohmann::json::parse(file);
    config["profiles"] = {{"quick", {{"default", true}, {"samples", 2}, {"max_density", 0.5}}},
                          {"careful", {{"samples", 8}, {"tolerance", 1e-9}}},
                          {"likely", {{"max_density", 0.04}, {"keep", "probable"}}}};
    config["limits"] = {{"samples", 32}};
    folder_.Write("sbm/1/config.json", config.dump());
    config_ = std::move(config);
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
  nlohmann::json config_;
  std::unique_ptr<TestServer> server_;
};

TEST_F(PressureTest, WhatAnAnswerSaysItRanWithGivesTheSameBytes) {
  for (const char* profile : {"", "quick", "careful", "likely", "none"}) {
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
      EXPECT_EQ(answer.degraded().samples(), fit ? answer.settings().samples() : 0);
      EXPECT_EQ(answer.predictions(0).samples(), answer.settings().samples());
      EXPECT_EQ(Again(request, answer).predictions(0).SerializeAsString(), answer.predictions(0).SerializeAsString());
    }
  }
}

TEST_F(PressureTest, TheAnswerSaysWhichEdgesItsCapKept) {
  v1::PredictRequest request = SmallRequest();
  request.set_profile("none");
  request.mutable_ensemble()->set_samples(4);
  request.mutable_ensemble()->set_seed(3);
  request.mutable_budget()->set_max_density(0.04);
  v1::PredictResponse silent, random, probable, likely;
  ASSERT_TRUE(server_->Predict(request, silent).ok());
  ASSERT_TRUE(silent.predictions(0).edges().capped());
  EXPECT_EQ(silent.settings().budget().keep(), v1::RANDOM);
  request.mutable_budget()->set_keep(v1::RANDOM);
  ASSERT_TRUE(server_->Predict(request, random).ok());
  EXPECT_EQ(random.predictions(0).SerializeAsString(), silent.predictions(0).SerializeAsString());
  request.mutable_budget()->set_keep(v1::PROBABLE);
  ASSERT_TRUE(server_->Predict(request, probable).ok());
  EXPECT_EQ(probable.settings().budget().keep(), v1::PROBABLE);
  EXPECT_NE(probable.predictions(0).SerializeAsString(), silent.predictions(0).SerializeAsString());
  request.set_profile("likely");
  request.clear_budget();
  ASSERT_TRUE(server_->Predict(request, likely).ok());
  EXPECT_EQ(likely.settings().budget().keep(), v1::PROBABLE);
  EXPECT_EQ(likely.predictions(0).SerializeAsString(), probable.predictions(0).SerializeAsString());
}

TEST_F(PressureTest, GetModelListsTheProfilesAndTheLimits) {
  v1::GetModelRequest request;
  request.set_model("sbm");
  v1::GetModelResponse response;
  CallContext context;
  ASSERT_TRUE(server_->stub().GetModel(&context, request, &response).ok());
  const v1::ModelInfo& model = response.model();
  ASSERT_EQ(model.profiles_size(), 3);
  EXPECT_EQ(model.profiles(0).profile(), "careful");
  EXPECT_EQ(model.profiles(0).samples(), 8u);
  EXPECT_EQ(model.profiles(1).budget().keep(), v1::PROBABLE);
  EXPECT_EQ(model.profiles(2).budget().max_density(), 0.5);
  EXPECT_EQ(model.default_profile(), "quick");
  EXPECT_EQ(model.limits().samples(), 32u);
}

TEST_F(PressureTest, AShadowOfEveryAnswerEndsAndNoMemoryIsLeft) {
  constexpr int kClients = 3, kRequests = 40;
  config_["shadow"] = {{"profile", "careful"}, {"share", 1.0}};
  folder_.Write("sbm/1/config.json", config_.dump());
  ASSERT_TRUE(server_->server().Reload().ok());
  ASSERT_TRUE(server_->WaitForMetric(R"(edgewise_model_loads_total{model="sbm",result="ok",version="1"})", 2));
  std::vector<std::thread> clients;
  for (int client = 0; client < kClients; ++client) {
    clients.emplace_back([this] {
      for (int i = 0; i < kRequests; ++i) {
        v1::PredictResponse answer;
        const grpc::Status status = server_->Predict(SmallRequest(), answer);
        EXPECT_TRUE(status.ok()) << status.error_message();
        EXPECT_EQ(answer.settings().profile(), "quick");
      }
    });
  }
  for (std::thread& client : clients) client.join();
  const auto results = [&](const std::string& result) {
    return server_->Metric("edgewise_shadow_requests_total{model=\"sbm\",result=\"" + result + "\",version=\"1\"}");
  };
  EXPECT_TRUE(WaitUntil("the shadows to end",
                        [&] { return results("compared") + results("dropped") == kClients * kRequests; }));
  EXPECT_GT(results("compared"), 0);
  EXPECT_EQ(server_->Metric(OfSbm("requests_in_flight")), 0);
  EXPECT_TRUE(server_->WaitForMetric("edgewise_call_memory_bytes", 0));
}

TEST_F(PressureTest, CapacityAndUtilizationAreKnownOnceRequestsCame) {
  EXPECT_EQ(server_->Metric(OfSbm("capacity_requests_per_second")), 0);
  EXPECT_EQ(server_->Metric("edgewise_device_utilization_ratio"), 0);
  v1::PredictResponse answer;
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(server_->Predict(SmallRequest(), answer).ok());
  EXPECT_GT(server_->Metric(OfSbm("capacity_requests_per_second")), 1);
  const double utilization = server_->Metric("edgewise_device_utilization_ratio");
  EXPECT_GT(utilization, 0);
  EXPECT_LE(utilization, 1);
  std::filesystem::remove_all(folder_.path() + "/sbm");
  ASSERT_TRUE(server_->server().Reload().ok());
  EXPECT_TRUE(server_->WaitForMetric(OfSbm("capacity_requests_per_second"), -1)) << "its series leave";
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

// On a clock that goes by this much at each look, so that a request takes as long as a test says.
class EdgesTest : public ::testing::TestWithParam<std::tuple<bool, std::string>> {
 protected:
  EdgesTest() {
    ServerOptions options = TestOptions();
    options.message_timeout = options.queue.max_delay = std::chrono::hours(24);
    options.clock = [this] { return Clock::now() + std::chrono::milliseconds(gone_ += per_look_); };
    server_ = std::make_unique<TestServer>(options);
  }

  v1::PredictRequest Request() const {
    v1::PredictRequest request;
    request.set_model("sbm");
    for (int input = 0; input < 2; ++input) {
      v1::TokenIds* ids = request.add_inputs()->mutable_sequence()->mutable_token_ids();
      for (int token = 0; token < 40 - 8 * input; ++token) ids->add_values(1 + (token * 7 + input) % 38);
    }
    return request;
  }
  // `deadline`: in so many seconds; 0: none.
  v1::PredictResponse Answer(const v1::PredictRequest& request, double deadline = 0.0) {
    v1::PredictResponse response;
    grpc::Status status;
    const auto ask = [&] {
      grpc::ClientContext context;
      const auto time = std::chrono::system_clock::now() + milliseconds(static_cast<int64_t>(1e3 * deadline));
      if (deadline > 0.0) context.set_deadline(time);
      status = server_->stub().Predict(&context, request, &response);
      return status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED;
    };
    EXPECT_TRUE(WaitUntil("the engine to end the request before", ask));
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  // With a cap a request takes half as long. The seconds without.
  double Learn() {
    v1::PredictRequest capped = Request();
    capped.mutable_budget()->set_max_density(0.05);
    double takes = 0.0;
    for (int i = 0; i < 20; ++i) {
      per_look_ = 50000;
      Answer(capped);
      per_look_ = 100000;
      takes = 1e-6 * static_cast<double>(Answer(Request()).timing().compute_us());
    }
    per_look_ = 0;
    return takes;
  }

  std::atomic<int64_t> per_look_ = 0, gone_ = 0;  // milliseconds
  std::unique_ptr<TestServer> server_;
};

// The parameters: fit_deadline, or allow_degraded of three samples; the cap that is asked for.
TEST_P(EdgesTest, WhereOneSampleIsLateItHasFewerEdgesAndTheBytesOfAskingForThem) {
  const auto& [fit, cap] = GetParam();
  v1::PredictRequest request = Request();
  v1::Budget& budget = *request.mutable_budget();
  if (cap == "edges") budget.set_max_edges(3000);
  if (cap == "density") budget.set_max_density(0.4);
  v1::Budget asked = budget;
  if (cap != "none") asked.set_keep(v1::RANDOM);
  fit ? budget.set_fit_deadline(true) : budget.set_allow_degraded(true);
  if (!fit) request.mutable_ensemble()->set_samples(3);
  const v1::PredictResponse answer = Answer(request, 0.7 * Learn());
  const v1::Degraded& degraded = answer.degraded();
  EXPECT_EQ(degraded.reason(), v1::Degraded::DEADLINE);
  EXPECT_EQ(degraded.samples(), 1u);
  EXPECT_EQ(answer.settings().samples(), 1u);
  ASSERT_TRUE(degraded.has_budget());
  EXPECT_EQ(degraded.has_requested_budget(), cap != "none");
  EXPECT_EQ(degraded.requested_budget().SerializeAsString(), asked.SerializeAsString());
  EXPECT_EQ(degraded.budget().SerializeAsString(), answer.settings().budget().SerializeAsString());
  EXPECT_EQ(degraded.budget().has_max_edges(), cap == "edges") << "in the unit of the request";
  EXPECT_LT(degraded.budget().max_edges(), 3000u);
  EXPECT_EQ(degraded.budget().keep(), v1::RANDOM);
  EXPECT_LT(degraded.budget().max_density(), 0.4);
  EXPECT_EQ(server_->Metric(R"(edgewise_degraded_requests_total{model="sbm",reason="deadline",version="1"})"), 1.0);

  v1::PredictRequest again = Request();
  *again.mutable_budget() = answer.settings().budget();
  again.mutable_ensemble()->set_seed(answer.seed());
  const v1::PredictResponse same = Answer(again);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(answer.predictions(i).edges().capped());
    EXPECT_EQ(same.predictions(i).SerializeAsString(), answer.predictions(i).SerializeAsString());
  }
}

INSTANTIATE_TEST_SUITE_P(Asked, EdgesTest,
                         ::testing::Combine(::testing::Bool(), ::testing::Values("none", "edges", "density")));

}  // namespace
}  // namespace edgewise::server
