// The engine: clients that go while a layer of their request runs; the times and the order of answers.
#include "server/schedule/engine.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/server/engine_fixture.h"

namespace edgewise::server {
namespace {

TEST_F(EngineTest, PassThatIsAboutToBeAnsweredDelaysNobody) {
  Load("sbm");
  Outcome outcome, next;
  RequestPtr request = Predict(outcome);
  for (const ModelInput& input : request->work.inputs) {
    request->forecast.demand += model_->costs->Expected(*model_->model, input);
  }
  model_->costs->Observe(request->forecast.demand, 50.0);
  request->forecast.seconds = model_->costs->Predict(request->forecast.demand);
  RequestQueue queue({}, [this] { return now(); });
  Engine engine(queue, OneGeneration());
  absl::Status at_answer = absl::UnknownError("not asked");
  RequestPtr waiting = Predict(next, now() + std::chrono::seconds(60));
  waiting->forecast.seconds = request->forecast.seconds;
  request->done = [&, answer = std::move(request->done)](const absl::Status& status) {
    at_answer = queue.Check(waiting->ticket, waiting->forecast.seconds);
    answer(status);
  };
  ASSERT_TRUE(queue.Push(request).ok());
  for (int step = 0; step < 100 && outcome.answers == 0; ++step) {
    EXPECT_TRUE(absl::IsResourceExhausted(queue.Check(waiting->ticket, waiting->forecast.seconds))) << step;
    engine.RunOnce(false);
  }
  EXPECT_TRUE(outcome.result.status.ok()) << outcome.result.status;
  EXPECT_TRUE(at_answer.ok()) << at_answer;
}

TEST_F(EngineTest, RequestWhoseClientGoesInsideALayerIsCancelledOnceAndTheNextIsServed) {
  Load("sbm");
  Outcome whole;
  const int64_t before = backend_->calls();
  Run(Predict(whole));
  ASSERT_TRUE(whole.result.status.ok()) << whole.result.status;
  const int64_t calls = backend_->calls() - before;
  ASSERT_GT(calls, 1);
  for (int64_t call = 0; call < calls; ++call) {
    std::stop_source client;
    Outcome gone, next;
    const int64_t begin = backend_->calls(), dropped = backend_->dropped();
    DuringCall(call, &client);
    std::vector<RequestPtr> requests;
    requests.push_back(Predict(gone));
    requests.back()->ticket.stopping = client.get_token();
    requests.push_back(Predict(next));
    Run(std::move(requests));
    EXPECT_EQ(gone.answers, 1);
    EXPECT_TRUE(absl::IsCancelled(gone.result.status)) << gone.result.status;
    EXPECT_EQ(gone.result.status.message(), "the client cancelled the request");
    EXPECT_TRUE(gone.result.results.empty());
    EXPECT_DOUBLE_EQ(gone.result.cancelled_seconds, 0.04);
    EXPECT_EQ(next.result.cancelled_seconds, 0.0);
    EXPECT_EQ(backend_->calls() - begin, call + 1 + calls) << "no layer after";
    EXPECT_GT(backend_->dropped(), dropped) << "the kernels were told";
    ASSERT_TRUE(next.result.status.ok()) << next.result.status;
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(testing::SameBytes(next.result.results[i], whole.result.results[i])) << i;
    }
  }
}

// gRPC cancels a call whose deadline passes, perhaps a moment before our clock says so.
TEST_F(EngineTest, RequestThatIsStoppedAtItsDeadlineIsLate) {
  Load("sbm");
  for (const int64_t call : {0, 1}) {
    for (const int early : {3, 0}) {
      std::stop_source client;
      Outcome late;
      DuringCall(call, &client);
      RequestPtr request = Predict(late, now() + std::chrono::milliseconds(40 + early));
      request->ticket.stopping = client.get_token();
      Run(std::move(request));
      EXPECT_EQ(late.answers, 1);
      EXPECT_TRUE(absl::IsDeadlineExceeded(late.result.status)) << late.result.status;
    }
  }
}

TEST_F(EngineTest, RequestWhoseDeadlinePassesInItsLastLayerIsLate) {
  Load("sbm");
  Outcome whole, late;
  const int64_t before = backend_->calls();
  Run(Predict(whole));
  DuringCall(backend_->calls() - before - 1);
  Run(Predict(late, now() + std::chrono::milliseconds(40)));
  EXPECT_EQ(late.answers, 1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.result.status)) << late.result.status;
  EXPECT_DOUBLE_EQ(late.result.cancelled_seconds, 0.04);
}

TEST_F(EngineTest, GenerationWhoseClientGoesInsideALayerIsCancelledOnceAndTheNextIsServed) {
  Load("lm-ssa-local");
  Outcome whole;
  const int64_t before = backend_->calls();
  Run(Generate(whole));
  ASSERT_TRUE(whole.result.status.ok()) << whole.result.status;
  ASSERT_EQ(whole.tokens.size(), 3u);
  const int64_t calls = backend_->calls() - before;
  for (int64_t call = 0; call < calls; ++call) {
    for (const bool by_deadline : {false, true}) {
      std::stop_source client;
      Outcome gone, next;
      const int64_t dropped = backend_->dropped();
      DuringCall(call, &client);
      std::vector<RequestPtr> requests;
      requests.push_back(Generate(gone, by_deadline ? now() + std::chrono::milliseconds(43) : Time::max()));
      requests.back()->ticket.stopping = client.get_token();
      requests.push_back(Generate(next));
      Run(std::move(requests));
      EXPECT_EQ(gone.answers, 1);
      EXPECT_EQ(gone.result.status.code(),
                by_deadline ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kCancelled)
          << gone.result.status;
      EXPECT_LT(gone.tokens.size(), 3u);
      EXPECT_GT(backend_->dropped(), dropped) << "the kernels were told";
      EXPECT_TRUE(std::equal(gone.tokens.begin(), gone.tokens.end(), whole.tokens.begin()));
      EXPECT_DOUBLE_EQ(gone.result.cancelled_seconds, 0.04);
      EXPECT_EQ(next.result.cancelled_seconds, 0.0);
      EXPECT_TRUE(next.result.status.ok()) << next.result.status;
      EXPECT_EQ(next.tokens, whole.tokens);
    }
  }
}

// The first waits 28 ms, the second 3 ms and while the first runs; a layer of each takes 40 ms.
TEST_F(EngineTest, QueueAndComputeSecondsAreThoseOfTheClock) {
  Load("sbm");
  Outcome first, second;
  RequestQueue queue({}, [this] { return now(); });
  Engine engine(queue, OneGeneration());
  const auto push = [&](Outcome& outcome) {
    RequestPtr request = Predict(outcome);
    ASSERT_TRUE(queue.Push(request).ok());
  };
  push(first);
  milliseconds_ += 25;
  push(second);
  milliseconds_ += 3;
  queue.Close();
  DuringCall(0);
  engine.Start();
  engine.Join();
  ASSERT_TRUE(first.result.status.ok()) << first.result.status;
  ASSERT_TRUE(second.result.status.ok()) << second.result.status;
  EXPECT_DOUBLE_EQ(first.result.queue_seconds, 0.028);
  EXPECT_DOUBLE_EQ(first.result.compute_seconds, 0.04);
  EXPECT_DOUBLE_EQ(second.result.queue_seconds, 0.043);
  EXPECT_DOUBLE_EQ(second.result.compute_seconds, 0.0);
  EXPECT_EQ(first.result.batch_inputs, 2u);
  EXPECT_EQ(first.result.batch_tokens, 9u);
}

TEST_F(EngineTest, ProgressOfAGenerationHasTheSecondsOfTheClock) {
  Load("lm-ssa-local");
  Outcome outcome;
  struct Progress {
    double queue_seconds, compute_seconds;
    uint32_t running;
    FinishReason finish;
  };
  std::vector<Progress> progress;
  RequestPtr request = Generate(outcome);
  request->token = [&progress, &of = *request](const GeneratedToken&, FinishReason finish) {
    progress.push_back({of.outcome.queue_seconds, of.outcome.compute_seconds, of.outcome.batch_inputs, finish});
  };
  RequestQueue queue({}, [this] { return now(); });
  Engine engine(queue, OneGeneration());
  ASSERT_TRUE(queue.Push(request).ok());
  milliseconds_ += 7;
  queue.Close();
  DuringCall(0);
  engine.Start();
  engine.Join();
  ASSERT_TRUE(outcome.result.status.ok()) << outcome.result.status;
  ASSERT_EQ(progress.size(), 3u);
  for (size_t token = 0; token < 3; ++token) {
    EXPECT_DOUBLE_EQ(progress[token].queue_seconds, 0.007);
    EXPECT_DOUBLE_EQ(progress[token].compute_seconds, 0.04) << "of the first token's row";
    EXPECT_EQ(progress[token].running, 1u);
    EXPECT_EQ(progress[token].finish, token == 2 ? FinishReason::kLength : FinishReason::kNone);
  }
  EXPECT_DOUBLE_EQ(outcome.result.queue_seconds, 0.007);
  EXPECT_DOUBLE_EQ(outcome.result.compute_seconds, 0.04);
}

// Clients learn no more of a device than that it failed.
TEST_F(EngineTest, DeviceThatFailsIsAnInternalErrorOfTheRequestAndOfNoOther) {
  Load("sbm");
  Outcome failed, next;
  std::vector<RequestPtr> requests;
  requests.push_back(Predict(failed));
  requests.push_back(Predict(next));
  backend_->FailAfter(0);
  Run(std::move(requests));
  EXPECT_EQ(failed.answers, 1);
  EXPECT_EQ(failed.result.status, absl::InternalError("the device failed while computing; the server's log says how"));
  EXPECT_TRUE(failed.result.results.empty());
  EXPECT_TRUE(next.result.status.ok()) << next.result.status;
}

// Three samples in waves of one: 40 ms of 60 go by in one layer, after which no other of the kind fits.
TEST_F(EngineTest, UnderConsentARequestEndsInTimeWithTheSamplesThatHaveRun) {
  Load("sbm");
  Outcome whole;
  const int64_t before = backend_->calls();
  Run(Predict(whole));
  const int64_t layers = backend_->calls() - before;  // of all samples at once
  for (int64_t late = 0; late < 3 * layers; ++late) {
    Outcome outcome;
    RequestPtr request = Predict(outcome, now() + std::chrono::milliseconds(60));
    request->ticket.arrival = now();
    request->work.tokens = 18;
    request->work.may_degrade = true;
    request->forecast.samples = 3;
    const std::vector<ModelInput> inputs = request->work.inputs;
    uint32_t given = 0;
    request->done = [&given, raw = request.get(), done = request->done](const absl::Status& status) {
      given = raw->forecast.samples;
      done(status);
    };
    DuringCall(late);
    Run(std::move(request));
    EXPECT_EQ(outcome.answers, 1);
    ASSERT_TRUE(outcome.result.status.ok()) << outcome.result.status;
    EXPECT_EQ(given, std::max<int64_t>(1, (late + 1) / layers)) << "what had run in whole, but at least one";
    for (size_t i = 0; i < inputs.size(); ++i) {
      ModelInput asked = inputs[i];
      asked.samples = given;
      EXPECT_TRUE(testing::SameBytes(outcome.result.results[i], testing::RunOne(*model_->model, asked))) << i;
    }
  }
}

// It ends before a step, not after one.
TEST_F(EngineTest, PassThatEndsWithTheSamplesItHasDelaysNobody) {
  Load("sbm");
  RequestQueue queue({}, [this] { return now(); });
  Engine engine(queue, OneGeneration());
  Outcome outcome, next;
  RequestPtr request = Predict(outcome, now() + std::chrono::milliseconds(60));
  request->ticket.arrival = now();
  request->work.tokens = 18;
  request->work.may_degrade = true;
  request->forecast.samples = 3;
  for (const ModelInput& input : request->work.inputs) {
    request->forecast.demand += model_->costs->Expected(*model_->model, input);
  }
  model_->costs->Observe(request->forecast.demand, 0.03);  // so that samples run one by one
  request->forecast.seconds = model_->costs->Predict(request->forecast.demand);
  RequestPtr hopeless = Predict(next, now() + std::chrono::seconds(60));
  hopeless->forecast.seconds = 1000.0;  // only a server without other work tries it
  absl::Status at_answer = absl::UnknownError("not asked");
  request->done = [&, answer = std::move(request->done)](const absl::Status& status) {
    at_answer = queue.Check(hopeless->ticket, hopeless->forecast.seconds);
    answer(status);
  };
  DuringCall(0);  // 40 ms go by: no second sample fits
  ASSERT_TRUE(queue.Push(request).ok());
  for (int step = 0; step < 100 && outcome.answers == 0; ++step) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(queue.Check(hopeless->ticket, hopeless->forecast.seconds))) << step;
    engine.RunOnce(false);
  }
  ASSERT_EQ(outcome.answers, 1);
  ASSERT_TRUE(outcome.result.status.ok()) << outcome.result.status;
  EXPECT_EQ(outcome.result.results[0].samples, 1u);
  EXPECT_TRUE(at_answer.ok()) << at_answer;
}

TEST_F(EngineTest, OnlySamplesThatRunAreExpectedAndObserved) {
  Load("sbm");
  const Model& model = *model_->model;
  ModelInput input = testing::MakeInput(model, {3, 1, 4, 1, 5, 9, 2, 6, 5});
  input.samples = 16;
  const auto expected = [&] { return model_->costs->Expected(model, input).passes; };
  const auto observed = [&] { return model_->costs->Observed(model, input, testing::RunOne(model, input)).passes; };
  EXPECT_EQ(expected(), 16.0);
  EXPECT_EQ(observed(), 16.0);
  input.tolerance = 10.0;
  EXPECT_EQ(expected(), 16.0) << "nothing is known of this tolerance";
  EXPECT_EQ(observed(), 4.0) << "any answer is as sure";
  EXPECT_EQ(expected(), 4.0);
  input.dense = true;  // all samples are the same
  EXPECT_EQ(expected(), 1.0);
  EXPECT_EQ(observed(), 1.0);
  input.tolerance = 0.0;
  EXPECT_EQ(expected(), 1.0);
  EXPECT_EQ(observed(), 1.0);
}

TEST_F(EngineTest, ShortRequestGoesFirstBesideALongPass) {
  Load("sbm");
  Outcome short_one, long_one;
  RequestQueue queue({}, [this] { return now(); });
  Engine engine(queue, OneGeneration());
  RequestPtr request = Predict(long_one);
  request->forecast.seconds = 10.0;
  model_->costs->Observe({1, 9, 100, 100}, 10.0);  // of what is left
  request->forecast.demand = {1, 9, 100, 100};
  model_->metrics->CountValid(*request, 0.0);
  request->done = [&, done = request->done](const absl::Status& status) {
    EXPECT_EQ(short_one.answers, 1);
    done(status);
  };
  ASSERT_TRUE(queue.Push(request).ok());
  backend_->CancelAfter(0, [&] {
    RequestPtr late = Predict(short_one);
    late->forecast.seconds = 0.001;
    EXPECT_TRUE(queue.Push(late).ok());
    queue.Close();
  });
  engine.Start();
  engine.Join();
  EXPECT_TRUE(short_one.result.status.ok()) << short_one.result.status;
  EXPECT_TRUE(long_one.result.status.ok()) << long_one.result.status;
  EXPECT_EQ(long_one.answers, 1);
}

TEST(AliveTest, AClientMayCancelFiveMillisecondsBeforeItsDeadline) {
  Request request;
  const Time deadline = Time() + std::chrono::hours(1);
  const auto code = [&](int64_t early_us) {
    return CancelledOrExpired(request, deadline - std::chrono::microseconds(early_us)).code();
  };
  EXPECT_EQ(code(0), absl::StatusCode::kOk) << "without a deadline";
  request.ticket.deadline = deadline;
  EXPECT_EQ(code(1), absl::StatusCode::kOk);
  EXPECT_EQ(code(0), absl::StatusCode::kDeadlineExceeded);
  std::stop_source client;
  client.request_stop();
  request.ticket.stopping = client.get_token();
  EXPECT_EQ(code(5001), absl::StatusCode::kCancelled);
  EXPECT_EQ(code(5000), absl::StatusCode::kDeadlineExceeded);
  request.ticket.deadline = Time::max();
  EXPECT_EQ(code(0), absl::StatusCode::kCancelled);
}

// Features so large that sums of them are infinite.
TEST_F(EngineTest, TheInputThatHasNoFiniteAnswerIsNamed) {
  Load("features");
  const uint32_t columns = static_cast<uint32_t>(model_->model->config().feature_size);
  for (size_t bad = 0; bad < 3; ++bad) {
    Outcome outcome;
    RequestPtr request = MakeRequest(outcome);
    for (size_t i = 0; i < 3; ++i) {
      const std::vector<float> values(3 * columns, i == bad ? 3e38f : 0.25f);
      request->work.inputs.emplace_back().sequences.push_back(
          *model_->model->PrepareFeatures(3, columns, values, TruncateMode::kRefuse));
    }
    Run(std::move(request));
    EXPECT_EQ(outcome.answers, 1);
    EXPECT_TRUE(absl::IsInternal(outcome.result.status));
    EXPECT_EQ(outcome.result.status.message().substr(0, 10), "inputs[" + std::to_string(bad) + "] ")
        << outcome.result.status;
  }
}

// Inputs of one request that differ in text, length and seed: each has the answer that it gets alone.
TEST_F(EngineTest, ResultsAreInTheOrderOfTheInputs) {
  Load("sbm");
  Outcome together;
  RequestPtr request = MakeRequest(together);
  const std::vector<std::vector<int32_t>> texts = {{3, 1, 4}, {1, 5, 9, 2, 6}, {3, 1, 4}, {5}, {2, 7, 1, 8}, {4, 1, 3}};
  for (size_t i = 0; i < texts.size(); ++i) {
    request->work.inputs.push_back(testing::MakeInput(*model_->model, texts[i]));
    request->work.inputs.back().seed = i;
    request->work.inputs.back().samples = 2;
  }
  const std::vector<ModelInput> inputs = request->work.inputs;
  Run(std::move(request));
  ASSERT_TRUE(together.result.status.ok()) << together.result.status;
  ASSERT_EQ(together.result.results.size(), inputs.size());
  ASSERT_EQ(together.result.inputs.size(), inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_EQ(together.result.inputs[i].seed, inputs[i].seed);
    EXPECT_EQ(together.result.inputs[i].sequences[0].token_ids, texts[i]);
    for (size_t other = 0; other < inputs.size(); ++other) {
      const InputResult alone = testing::RunOne(*model_->model, inputs[other]);
      EXPECT_EQ(testing::SameBytes(together.result.results[i], alone), i == other) << i << " and " << other;
    }
  }
}

}  // namespace
}  // namespace edgewise::server
