// Passes: a step takes about what it may.
#include "server/schedule/passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "model/load/load.h"
#include "server/models/repository.h"
#include "server/observe/metrics.h"
#include "server/schedule/degrade.h"
#include "server/schedule/engine.h"
#include "tests/model/model_builder.h"
#include "tests/model/run_model.h"
#include "tests/model/wave_config.h"

namespace edgewise::server {
namespace {

constexpr int32_t kTokens = 1000;

class PassesTest : public ::testing::Test {
 protected:
  PassesTest() : backend_(testing::MakeBackend()) {
    const nlohmann::json config = testing::WaveConfig({{"max_position_embeddings", kTokens + 1}});
    auto model = LoadModel(testing::WriteModel(folder_.path(), config), *backend_);
    EXPECT_TRUE(model.ok()) << model.status();
    auto loaded = std::make_shared<LoadedModel>();
    loaded->metrics = metrics_.ForModel("long", 1)->Loaded(metrics_.other()->Event(), **model);
    loaded->model = *std::move(model);
    model_ = std::move(loaded);
  }

  // One input whose one layer is predicted to take so long.
  RequestPtr Make(double seconds) {
    auto request = std::make_unique<Request>();
    request->ticket.model = model_;
    request->work.inputs.push_back(testing::MakeInput(*model_->model, testing::RandomTokens(kTokens, 49, 1)));
    request->forecast.demand = {1, kTokens, 1e6, 1e5};
    request->forecast.samples = 1;
    request->work.tokens = request->work.cost = kTokens;
    request->done = [this, raw = request.get()](const absl::Status& status) {
      ASSERT_TRUE(status.ok()) << status;
      results_.push_back(std::move(raw->outcome.results[0]));
    };
    for (int i = 0; i < 200; ++i) model_->costs->Observe(request->forecast.demand, seconds);
    model_->metrics->CountValid(*request, 0.0);
    return request;
  }

  int StepsOf(RequestPtr request, double share = 1.0) {
    RequestQueue queue({});
    Finisher answers;
    Passes passes(queue, answers, std::chrono::milliseconds(20));
    const uint64_t number = queue.Started({});
    std::vector<RequestPtr> requests;
    requests.push_back(std::move(request));
    passes.Start(std::move(requests), number);
    int steps = 0;
    for (; !passes.empty(); ++steps) passes.Step(number, share);
    return steps;
  }

  const testing::TemporaryFolder folder_;
  std::unique_ptr<Backend> backend_;
  Metrics metrics_;
  std::shared_ptr<const LoadedModel> model_;
  std::vector<InputResult> results_;
};

TEST_F(PassesTest, OnlyLayersThatDrawFromMembershipsAddUpChances) {
  ModelInput input = testing::MakeInput(*model_->model, testing::RandomTokens(9, 49, 1));
  input.samples = 3;
  EXPECT_EQ(model_->costs->Expected(*model_->model, input).summed, 0.0);
  input.wanted.expected = true;
  EXPECT_EQ(model_->costs->Expected(*model_->model, input).summed, 3 * 81.0);
  input.dense = true;
  EXPECT_EQ(model_->costs->Expected(*model_->model, input).summed, 0.0);
}

TEST_F(PassesTest, ALayerThatTakesLongerThanAStepMayIsCutByRows) {
  EXPECT_GE(StepsOf(Make(0.2)), 10);
  EXPECT_EQ(StepsOf(Make(0.002)), 1);
  ASSERT_EQ(results_.size(), 2u);
  EXPECT_TRUE(testing::SameBytes(results_[0], results_[1]));
}

// A long request with its expected edges, which alone make its layer long, beside short ones.
class ExpectedPassesTest : public PassesTest {
 protected:
  ExpectedPassesTest() : queue_({}, [this] { return now_; }), engine_(queue_, ServerOptions()) {
    for (int i = 0; i < 200; ++i) {
      model_->costs->Observe({1, kTokens, 1e6, 1e5, i % 2 * 1e6}, i % 2 == 0 ? 0.002 : 0.2);
    }
  }

  // Predicted and pushed. `done` gets its status.
  void Push(int32_t tokens, bool expected, Time deadline, std::function<void(const absl::Status&)> done) {
    auto request = std::make_unique<Request>();
    request->ticket.model = model_;
    request->work.inputs.push_back(testing::MakeInput(*model_->model, testing::RandomTokens(tokens, 49, 1)));
    request->work.inputs[0].wanted.expected = expected;
    request->work.tokens = request->work.cost = tokens;
    request->ticket.deadline = deadline;
    request->done = std::move(done);
    request->forecast = MakeForecast(*model_, request->work);
    model_->metrics->CountValid(*request, 0.0);
    ASSERT_TRUE(queue_.Push(request).ok());
  }

  // The turns of a long request. Before each but the first `between` is called.
  int TurnsOf(bool expected, const std::function<void()>& between) {
    bool answered = false;
    Push(kTokens, expected, Time::max(), [&](const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      answered = true;
    });
    int turns = 0;
    for (; !answered && turns < 1000; ++turns) {
      if (turns > 0) between();
      engine_.RunOnce(false);
    }
    return turns;
  }

  Time now_ = Time() + std::chrono::hours(1);
  RequestQueue queue_;
  Engine engine_;
};

TEST_F(ExpectedPassesTest, ShortRequestsHaveTurnsBetweenTheirParts) {
  const auto none = [] {};
  EXPECT_EQ(TurnsOf(false, none), 1);
  const int turns = TurnsOf(true, none);
  EXPECT_GT(turns, 10);
  int answers = 0;
  EXPECT_EQ(TurnsOf(true,
                    [&] {
                      Push(9, false, Time::max(), [&](const absl::Status& status) { answers += status.ok() ? 1 : 0; });
                      const int before = answers;
                      engine_.RunOnce(false);
                      EXPECT_EQ(answers, before + 1) << "at once";
                    }),
            turns);
  EXPECT_EQ(answers, turns - 1);
}

TEST_F(ExpectedPassesTest, ADeadlineEndsThemAtTheNextTurn) {
  const int turns = TurnsOf(true, [] {});
  for (int turn = 1; turn < turns; ++turn) {
    absl::Status ended = absl::UnknownError("not yet");
    const Time deadline = now_ + std::chrono::milliseconds(300);
    Push(kTokens, true, deadline, [&](const absl::Status& status) { ended = status; });
    for (int t = 0; t < turn; ++t) engine_.RunOnce(false);
    EXPECT_TRUE(absl::IsUnknown(ended)) << turn << ": " << ended;
    now_ = deadline;
    const std::optional<Turn> next = engine_.RunOnce(false);
    EXPECT_TRUE(absl::IsDeadlineExceeded(ended)) << turn << ": " << ended;
    EXPECT_EQ(next->kind, Turn::kNothing);
  }
}

// It runs as predicted, and says how long what was predicted took.
TEST_F(PassesTest, ARequestOfOneSampleHasNothingToGiveUp) {
  RequestPtr request = Make(0.002);
  request->work.may_degrade = true;
  EXPECT_EQ(StepsOf(std::move(request), 0.5), 1);
  EXPECT_THAT(metrics_.Render(),
              ::testing::HasSubstr("edgewise_measured_over_predicted_ratio_count{model=\"long\",version=\"1\"} 1\n"));
}

}  // namespace
}  // namespace edgewise::server
