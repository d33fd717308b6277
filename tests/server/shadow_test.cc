// A share of the answered requests is computed again under another profile: what is compared, and that no request
// notices.
#include "server/handler/shadow.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "server/handler/handler.h"
#include "server/models/repository.h"
#include "server/schedule/engine.h"
#include "tests/server/test_models.h"

namespace edgewise::server {
namespace {

// A model with the profiles "quick", its default, and "careful"; an engine that takes a step when a test says so; and a
// clock that only the test moves.
class ShadowTest : public ::testing::Test {
 protected:
  explicit ShadowTest(const std::string& name = "sbm") {
    folder_.AddModel(name, "m", 1);
    std::ifstream file(folder_.path() + "/m/1/config.json");
    config_ = nlohmann::json::parse(file);
    config_["profiles"] = {{"quick", {{"default", true}, {"samples", 2}, {"max_density", 0.5}}},
                           {"careful", {{"samples", 8}}},
                           {"single", {{"samples", 1}}},
                           {"lavish", {{"samples", 300}}}};
  }
  ~ShadowTest() override { EndWork(); }

  // The shadow of config.json from now on. The weights stay.
  void SetShadow(const std::string& profile, double share) {
    config_["shadow"] = {{"profile", profile}, {"share", share}};
    folder_.Write("m/1/config.json", config_.dump());
    const std::vector<LoadJob> jobs = repository_.Scan().value();
    for (const LoadJob& job : jobs) repository_.Load(job, TestBackend());
    ASSERT_EQ(repository_.List()[0].error, "");
  }

  v1::PredictRequest Message(uint64_t seed, const std::string& profile = "") const {
    v1::PredictRequest message;
    message.set_model("m");
    message.set_profile(profile);
    for (int input = 0; input < 2; ++input) {
      v1::TokenIds* ids = message.add_inputs()->mutable_sequence()->mutable_token_ids();
      for (int token = 0; token < 8; ++token) ids->add_values(1 + (token * 7 + input * 5) % 30);
    }
    message.mutable_ensemble()->set_seed(seed);
    return message;
  }
  // Its answer comes while RunUntilAnswered runs.
  void Ask(const v1::PredictRequest& message) {
    ++asked_;
    responses_.emplace_back();
    handler_.Start(message, {.deadline = deadline_,
                             .reply =
                                 [this](const absl::Status& status) {
                                   EXPECT_TRUE(status.ok()) << status;
                                   ++answered_;
                                 },
                             .response = &responses_.back()});
  }
  void Step() { engine_.RunOnce(false); }
  void RunUntilAnswered() {
    for (int steps = 0; answered_ < asked_; ++steps) {
      ASSERT_LT(steps, 10000);
      Step();
    }
  }
  const v1::PredictResponse& Answer(const v1::PredictRequest& message) {
    Ask(message);
    RunUntilAnswered();
    return responses_.back();
  }
  void RunUntilEnded(double shadows) {
    for (int steps = 0; Ended() < shadows; ++steps) {
      ASSERT_LT(steps, 10000);
      Step();
    }
  }
  void EndWork() {
    queue_.CancelAll();
    queue_.Close();
    while (engine_.RunOnce(false)) {
    }
  }

  double Metric(const std::string& name, const std::string& label = "") const {
    const std::string text = metrics_.Render(),
                      series = "\nedgewise_" + name + "{model=\"m\"," + label + "version=\"1\"} ";
    const size_t at = text.find(series);
    return at == std::string::npos ? -1.0 : std::stod(text.substr(at + series.size()));
  }
  double Results(const std::string& result) const {
    return Metric("shadow_requests_total", "result=\"" + result + "\",");
  }
  double Ended() const { return Results("compared") + Results("dropped") + Results("failed"); }

  Time now_ = Time() + std::chrono::hours(1), deadline_ = Time::max();
  TestFolder folder_;
  nlohmann::json config_;
  Metrics metrics_{[this] { return now_; }};
  Repository repository_{{folder_.path()}, metrics_};
  RequestQueue queue_{{}, [this] { return now_; }};
  const ServerOptions options_;
  MemoryLedger memory_{uint64_t{1} << 30};
  RequestHandler handler_{options_, memory_, repository_, queue_};
  Engine engine_{queue_, options_};
  std::deque<v1::PredictResponse> responses_;
  int asked_ = 0, answered_ = 0;
};

double Distance(const v1::Prediction& a, const v1::Prediction& b) {
  double sum = 0.0;
  for (int i = 0; i < a.probabilities_size(); ++i) {
    sum += std::abs(static_cast<double>(a.probabilities(i)) - b.probabilities(i));
  }
  return sum / 2;
}

TEST_F(ShadowTest, ComparesWhatAskingForBothProfilesGives) {
  SetShadow("careful", 1.0);
  double distance = 0.0;
  int disagreements = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    v1::PredictRequest message = Message(seed);
    if (seed % 2 == 0) message.mutable_ensemble()->clear_seed();
    const v1::PredictResponse given = Answer(message);
    RunUntilEnded(static_cast<double>(seed));
    const v1::PredictResponse other = Answer(Message(given.seed(), "careful"));
    for (int input = 0; input < 2; ++input) {
      distance += Distance(given.predictions(input), other.predictions(input));
      disagreements += given.predictions(input).label_id() != other.predictions(input).label_id() ? 1 : 0;
    }
  }
  EXPECT_EQ(Results("compared"), 40) << "who asks for the profile itself is not compared with it";
  EXPECT_EQ(Metric("shadow_distance_ratio_count"), 80);
  EXPECT_GT(distance, 0.0);
  EXPECT_NEAR(Metric("shadow_distance_ratio_sum"), distance, 1e-9 + 1e-9 * distance);
  EXPECT_GT(disagreements, 0);
  EXPECT_EQ(Metric("shadow_disagreements_total"), disagreements);
}

// Each label of a multi-label model is a distribution of its own, over yes and no.
TEST_F(ShadowTest, OfAMultiLabelModelEveryLabelIsCompared) {
  config_["problem_type"] = "multi_label_classification";
  SetShadow("careful", 1.0);
  double distance = 0.0;
  int disagreements = 0, by_label = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const v1::PredictResponse given = Answer(Message(seed));
    RunUntilEnded(static_cast<double>(seed));
    const v1::PredictResponse other = Answer(Message(seed, "careful"));
    for (int input = 0; input < 2; ++input) {
      const v1::Prediction &a = given.predictions(input), &b = other.predictions(input);
      ASSERT_TRUE(a.multi_label());
      distance += 2 * Distance(a, b) / a.probabilities_size();
      bool differ = false;
      for (int i = 0; i < a.probabilities_size(); ++i) {
        differ |= (a.probabilities(i) > 0.5f) != (b.probabilities(i) > 0.5f);
      }
      disagreements += differ ? 1 : 0;
      by_label += a.label_id() != b.label_id() ? 1 : 0;
    }
  }
  EXPECT_NEAR(Metric("shadow_distance_ratio_sum"), distance, 1e-9 + 1e-9 * distance);
  EXPECT_NE(disagreements, by_label) << "this test tests nothing";
  EXPECT_EQ(Metric("shadow_disagreements_total"), disagreements);
}

TEST_F(ShadowTest, TheShareIsChosenByWhatARequestIsAndNotByTheClock) {
  const auto compared = [&](double share) {
    SetShadow("careful", share);
    const double before = Results("compared");
    for (uint64_t seed = 1; seed <= 60; ++seed) {
      now_ += std::chrono::milliseconds(17);
      v1::PredictRequest message = Message(1);
      message.set_request_id("call " + std::to_string(seed));
      Answer(message);
      for (int step = 0; step < 100; ++step) Step();
    }
    return Results("compared") - before;
  };
  EXPECT_EQ(compared(0.0), 0);
  const std::shared_ptr<const Model> model = repository_.Resolve("m", 0).loaded->model;
  EXPECT_EQ(compared(1.0), 60);
  const double half = compared(0.5);
  EXPECT_GT(half, 15);
  EXPECT_LT(half, 45);
  EXPECT_EQ(compared(0.5), half);
  EXPECT_EQ(repository_.Resolve("m", 0).loaded->model, model) << "the weights were not read again";
}

TEST_F(ShadowTest, NoRequestWaitsForItButTheStepThatRuns) {
  SetShadow("careful", 1.0);
  const auto steps = [&] {  // to the answer of a request that comes now
    Ask(Message(2));
    const int before = answered_;
    const double ended = Ended();
    int taken = 0;
    for (; answered_ == before; ++taken) Step();
    EXPECT_EQ(Ended(), ended);
    return taken;
  };
  const int alone = steps();
  for (int more = 0; more < 3; ++more) {
    Step();  // a shadow's
    EXPECT_EQ(steps(), alone);
  }
  RunUntilEnded(4);
  EXPECT_EQ(Results("compared"), 4);
}

TEST_F(ShadowTest, ABusyServerDropsIt) {
  SetShadow("careful", 1.0);
  for (const int begun : {0, 1}) {
    Answer(Message(1));
    for (int step = 0; step < begun; ++step) Step();
    const double before = Results("dropped");
    Ask(Message(2));
    now_ += options_.queue.max_delay;
    Step();
    EXPECT_EQ(Results("dropped"), before + 1);
    RunUntilAnswered();
    RunUntilEnded(2 + 2 * begun);
  }
  EXPECT_EQ(Results("compared"), 2);
}

TEST_F(ShadowTest, NoMoreWaitThanMay) {
  SetShadow("careful", 1.0);
  for (uint64_t seed = 1; seed <= 70; ++seed) Answer(Message(seed));
  EXPECT_EQ(Results("dropped"), 6);
  RunUntilEnded(70);
  EXPECT_EQ(Results("compared"), 64);
}

TEST_F(ShadowTest, ItsMemoryIsCountedAndComesBack) {
  SetShadow("careful", 1.0);
  Ask(Message(1));
  const uint64_t held = memory_.used();
  EXPECT_GT(held, 0u);
  RunUntilAnswered();
  EXPECT_EQ(memory_.used(), held);
  RunUntilEnded(1);
  EXPECT_EQ(memory_.used(), 0u);

  memory_.SetLimit(8 * held - 1);  // shadows may hold an eighth
  Answer(Message(2));
  EXPECT_EQ(Results("dropped"), 1);
  EXPECT_EQ(memory_.used(), 0u);
}

TEST_F(ShadowTest, IsInNoMetricOfRequests) {
  SetShadow("careful", 1.0);
  Answer(Message(1));
  const char* const kRequests[] = {"items_total",          "tokens_total",   "executions_total",
                                   "requests_in_flight",   "queue_requests", "device_seconds_total",
                                   "queue_tokens",         "queue_seconds",  "request_duration_seconds_count",
                                   "attention_edges_total"};
  std::vector<double> before;
  for (const char* name : kRequests) before.push_back(Metric(name));
  RunUntilEnded(1);
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_GE(before[i], 0.0) << kRequests[i];
    EXPECT_EQ(Metric(kRequests[i]), before[i]) << kRequests[i];
  }
  EXPECT_EQ(handler_.in_flight(), 0);
}

TEST_F(ShadowTest, EndsWithTheServerAndWithItsModel) {
  SetShadow("careful", 1.0);
  const std::shared_ptr<ModelMetrics> keeps_its_series = repository_.Resolve("m", 1).metrics;
  for (const int begun : {0, 1}) {  // it waits, or runs
    Answer(Message(1));
    for (int step = 0; step < begun; ++step) Step();
    std::filesystem::remove_all(folder_.path() + "/m");
    ASSERT_TRUE(repository_.Scan().ok());
    Step();
    EXPECT_EQ(Results("dropped"), 1 + begun);
    EXPECT_EQ(memory_.used(), 0u);
    folder_.AddModel("sbm", "m", 1);
    SetShadow("careful", 1.0);
  }
  for (const uint64_t seed : {1, 2}) Answer(Message(seed));
  Step();  // one runs, one waits
  EndWork();
  EXPECT_EQ(Results("dropped"), 4);
  EXPECT_EQ(memory_.used(), 0u);
}

TEST_F(ShadowTest, AProfileThatTheServerRefusesFailsAndTheAnswerIsFine) {
  SetShadow("lavish", 1.0);  // more than the server takes
  Answer(Message(1));
  EXPECT_EQ(Results("failed"), 1);
  EXPECT_EQ(responses_.back().predictions_size(), 2);
}

TEST_F(ShadowTest, RequestsThatFitTheirDeadlineAndOthersThatWouldRunTheSameAreNotCompared) {
  SetShadow("none", 1.0);
  deadline_ = now_ + std::chrono::seconds(10);
  v1::PredictRequest fits = Message(1);
  fits.mutable_budget()->set_fit_deadline(true);
  fits.mutable_ensemble()->set_samples(3);
  v1::PredictRequest explicit_fields = Message(1);
  explicit_fields.mutable_budget()->set_max_density(0.25);
  explicit_fields.mutable_ensemble()->set_samples(3);
  for (const v1::PredictRequest& message : {fits, explicit_fields, Message(1, "none"), Message(1, "single")}) {
    Answer(message);
    for (int step = 0; step < 100; ++step) Step();
  }
  EXPECT_EQ(Ended(), 0);
  Answer(Message(1));
  RunUntilEnded(1);
  EXPECT_EQ(Results("compared"), 1);
}

TEST_F(ShadowTest, ADegradedAnswerIsNotCompared) {
  SetShadow("careful", 1.0);
  v1::PredictRequest message = Message(1);
  message.mutable_budget()->set_allow_degraded(true);
  message.mutable_ensemble()->set_samples(200);
  deadline_ = now_ + std::chrono::seconds(1);
  Ask(message);
  while (answered_ == 0) {
    now_ += std::chrono::milliseconds(20);
    Step();
  }
  ASSERT_TRUE(responses_.back().has_degraded());
  for (int step = 0; step < 100; ++step) Step();
  EXPECT_EQ(Results("dropped"), 1);
  EXPECT_EQ(Ended(), 1);
}

class TokensShadowTest : public ShadowTest {
 protected:
  TokensShadowTest() : ShadowTest("sbm-tokens") {}
};

TEST_F(TokensShadowTest, TheDistanceIsTheMeanOverTheTokensThatHaveLabels) {
  SetShadow("careful", 1.0);
  v1::PredictRequest message = Message(1);
  message.mutable_inputs(0)->mutable_sequence()->mutable_token_ids()->set_values(3, 0);  // a pad
  const v1::PredictResponse given = Answer(message);
  RunUntilEnded(1);
  message.set_profile("careful");
  const v1::PredictResponse& other = Answer(message);
  double distance = 0.0;
  for (int input = 0; input < 2; ++input) {
    double sum = 0.0;
    int tokens = 0;
    for (int t = 0; t < given.predictions(input).tokens_size(); ++t) {
      const v1::TokenPrediction &a = given.predictions(input).tokens(t), &b = other.predictions(input).tokens(t);
      tokens += a.pad() ? 0 : 1;
      for (int i = 0; i < a.probabilities_size(); ++i) {
        sum += std::abs(static_cast<double>(a.probabilities(i)) - b.probabilities(i)) / 2;
      }
    }
    EXPECT_EQ(tokens, 8 - (input == 0 ? 1 : 0));
    distance += sum / tokens;
  }
  EXPECT_GT(distance, 0.0);
  EXPECT_NEAR(Metric("shadow_distance_ratio_sum"), distance, 1e-9);
  EXPECT_EQ(Metric("shadow_distance_ratio_count"), 2);
}

}  // namespace
}  // namespace edgewise::server
