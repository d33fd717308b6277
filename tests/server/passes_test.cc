// Passes: a step takes about what it may.
#include "server/schedule/passes.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "model/load.h"
#include "server/models/repository.h"
#include "server/observe/metrics.h"
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
    request->model = model_;
    request->inputs.push_back(testing::MakeInput(*model_->model, testing::RandomTokens(kTokens, 49, 1)));
    request->demand = {1, kTokens, 1e6, 1e5};
    request->tokens = request->cost = kTokens;
    request->done = [this, raw = request.get()](const absl::Status& status) {
      ASSERT_TRUE(status.ok()) << status;
      results_.push_back(std::move(raw->results[0]));
    };
    for (int i = 0; i < 200; ++i) model_->costs->Observe(request->demand, seconds);
    model_->metrics->CountValid(*request, 0.0);
    return request;
  }

  int StepsOf(RequestPtr request) {
    RequestQueue queue({});
    Answers answers;
    Passes passes(queue, answers, std::chrono::milliseconds(20));
    std::vector<RequestPtr> requests;
    requests.push_back(std::move(request));
    passes.Start(std::move(requests));
    int steps = 0;
    for (; !passes.empty(); ++steps) passes.StepLatest();
    return steps;
  }

  const testing::TemporaryFolder folder_;
  std::unique_ptr<Backend> backend_;
  Metrics metrics_;
  std::shared_ptr<const LoadedModel> model_;
  std::vector<InputResult> results_;
};

TEST_F(PassesTest, ALayerThatTakesLongerThanAStepMayIsCutByRows) {
  EXPECT_GE(StepsOf(Make(0.2)), 10);
  EXPECT_EQ(StepsOf(Make(0.002)), 1);
  ASSERT_EQ(results_.size(), 2u);
  EXPECT_TRUE(testing::SameBytes(results_[0], results_[1]));
}

}  // namespace
}  // namespace edgewise::server
