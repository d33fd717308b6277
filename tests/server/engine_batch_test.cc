// Requests that run together: each is answered as if it were alone.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/schedule/engine.h"
#include "tests/server/engine_fixture.h"

namespace edgewise::server {
namespace {

// Requests of one batch: each has the bytes that it has alone, and the batch's size.
TEST_F(EngineTest, ShortRequestsThatWaitTogetherGoTogetherAndNobodysAnswerChanges) {
  Load("sbm");
  std::vector<Outcome> outcomes(4);
  std::vector<RequestPtr> requests;
  std::vector<std::vector<ModelInput>> inputs;
  for (size_t r = 0; r < outcomes.size(); ++r) {
    RequestPtr request = Predict(outcomes[r]);
    for (ModelInput& input : request->work.inputs) input.seed += 10 * r;
    request->work.inputs[0].samples = static_cast<uint32_t>(1 + r);
    request->work.inputs[1].dense = r == 2;
    request->work.inputs[1].max_edges = r == 3 ? 40 : kNoCap;
    request->forecast.seconds = 0.001;
    inputs.push_back(request->work.inputs);
    requests.push_back(std::move(request));
  }
  Run(std::move(requests));
  for (size_t r = 0; r < outcomes.size(); ++r) {
    ASSERT_TRUE(outcomes[r].result.status.ok()) << outcomes[r].result.status;
    EXPECT_EQ(outcomes[r].answers, 1);
    EXPECT_EQ(outcomes[r].result.batch_inputs, 8u);
    EXPECT_EQ(outcomes[r].result.batch_tokens, 36u);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(testing::SameBytes(outcomes[r].result.results[i], testing::RunOne(*model_->model, inputs[r][i])))
          << r << " " << i;
    }
  }
}

TEST_F(EngineTest, ClientThatLeavesABatchTakesNobodyWithIt) {
  Load("sbm");
  Outcome gone, stays;
  std::stop_source client;
  DuringCall(0, &client);
  std::vector<RequestPtr> requests;
  for (Outcome* outcome : {&gone, &stays}) {
    requests.push_back(Predict(*outcome));
    requests.back()->forecast.seconds = 0.001;
  }
  requests[0]->ticket.stopping = client.get_token();
  Run(std::move(requests));
  EXPECT_EQ(gone.answers, 1);
  EXPECT_TRUE(absl::IsCancelled(gone.result.status)) << gone.result.status;
  EXPECT_DOUBLE_EQ(gone.result.cancelled_seconds, 0.02) << "its half of the layer";
  EXPECT_EQ(stays.answers, 1);
  EXPECT_TRUE(stays.result.status.ok()) << stays.result.status;
  EXPECT_EQ(stays.result.cancelled_seconds, 0.0);
}

TEST_F(EngineTest, LayerThatFailsForABatchIsRunAgainForEachAlone) {
  Load("sbm");
  Outcome first, second;
  std::vector<RequestPtr> requests;
  for (Outcome* outcome : {&first, &second}) {
    requests.push_back(Predict(*outcome));
    requests.back()->forecast.seconds = 0.001;
  }
  backend_->FailAfter(0);
  Run(std::move(requests));
  for (const Outcome* outcome : {&first, &second}) {
    EXPECT_EQ(outcome->answers, 1);
    ASSERT_TRUE(outcome->result.status.ok()) << outcome->result.status;
    EXPECT_EQ(outcome->result.batch_inputs, 4u) << "of the batch that it began in";
  }
}

TEST_F(EngineTest, RequestOfABatchIsAnsweredWhenItsOwnInputsAreDone) {
  Load("sbm");
  Outcome short_one, long_one;
  std::vector<RequestPtr> requests;
  for (Outcome* outcome : {&short_one, &long_one}) {
    requests.push_back(Predict(*outcome));
    requests.back()->forecast.seconds = 0.001;
  }
  for (ModelInput& input : requests[1]->work.inputs) input.samples = 4000;  // several waves
  int answered_before = -1;
  requests[1]->done = [&, done = requests[1]->done](const absl::Status& status) {
    answered_before = short_one.answers;
    EXPECT_GT(backend_->calls(), calls_at_answer_);
    done(status);
  };
  requests[0]->done = [&, done = requests[0]->done](const absl::Status& status) {
    calls_at_answer_ = backend_->calls();
    done(status);
  };
  Run(std::move(requests));
  EXPECT_EQ(answered_before, 1);
}

}  // namespace
}  // namespace edgewise::server
