// What the engine tells a client that went while a layer of its request ran.
#include "server/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "server/metrics.h"
#include "server/repository.h"
#include "tests/model/run_model.h"
#include "tests/model/stopping_backend.h"
#include "tests/support/paths.h"

namespace edgewise::server {
namespace {

using testing::StoppingBackend;

// One model, requests that are there before the engine starts, and a clock that only tests move: what happens does not
// depend on time.
class EngineTest : public ::testing::Test {
 protected:
  struct Outcome {
    int answers = 0;
    TaskResult result;
    std::vector<int32_t> tokens;
  };

  void Load(const std::string& name) {
    backend_ = std::make_unique<StoppingBackend>(testing::MakeBackend());
    auto model = Model::Load(tests::TestdataFolder() + "/" + name + "/1", *backend_);
    ASSERT_TRUE(model.ok()) << model.status();
    auto loaded = std::make_shared<LoadedModel>();
    loaded->name = name;
    loaded->version = 1;
    loaded->metrics = metrics_.ForModel(name, 1).Loaded(**model);
    loaded->model = *std::move(model);
    model_ = std::move(loaded);
  }

  TaskPtr MakeTask(Outcome& outcome, Time deadline = Time::max()) const {
    auto task = std::make_unique<Task>();
    task->model = model_;
    task->tokens = task->cost = 9;
    task->deadline = deadline;
    task->done = [&outcome](TaskResult result) {
      ++outcome.answers;
      outcome.result = std::move(result);
    };
    return task;
  }

  TaskPtr Predict(Outcome& outcome, Time deadline = Time::max()) const {
    TaskPtr task = MakeTask(outcome, deadline);
    for (const uint64_t seed : {1, 2}) {
      ModelInput& input = task->inputs.emplace_back(testing::MakeInput(*model_->model, {3, 1, 4, 1, 5, 9, 2, 6, 5}));
      input.seed = seed;
      input.samples = 3;
    }
    return task;
  }

  TaskPtr Generate(Outcome& outcome, Time deadline = Time::max()) const {
    TaskPtr task = MakeTask(outcome, deadline);
    task->generation = std::make_unique<GenerationWork>();
    task->generation->prompt = *model_->model->Prepare({3, 1, 4, 1, 5, 9, 2, 6, 5}, TruncateMode::kRefuse);
    task->generation->options.max_new_tokens = 3;
    task->generation->ready = [] { return true; };
    task->generation->token = [&outcome](const GeneratedToken& token, const GenerationProgress&) {
      outcome.tokens.push_back(token.token_id);
    };
    return task;
  }

  // Runs them to their end, in this order.
  void Run(std::vector<TaskPtr> tasks) {
    TaskQueue queue({}, [this] { return now(); });
    Engine engine(queue, 1, 1 << 30, std::chrono::seconds(1), [] {});
    for (TaskPtr& task : tasks) {
      model_->metrics->AddQueued(1, static_cast<int64_t>(task->tokens));
      ASSERT_TRUE(queue.Push(std::move(task)).ok());
    }
    queue.Close();
    engine.Start();
    engine.Join();
  }
  void Run(TaskPtr task) {
    std::vector<TaskPtr> tasks;
    tasks.push_back(std::move(task));
    Run(std::move(tasks));
  }

  // 40 ms go by during the call of Attend number `call`; then `gone`, or only the time.
  void DuringCall(int64_t call, std::stop_source* gone = nullptr) {
    backend_->StopAfter(call, [this, gone] {
      milliseconds_ += 40;
      if (gone != nullptr) gone->request_stop();
    });
  }

  Time now() const { return Time() + std::chrono::milliseconds(milliseconds_.load()); }

  std::atomic<int64_t> milliseconds_ = 1000;
  Metrics metrics_;
  std::unique_ptr<StoppingBackend> backend_;
  std::shared_ptr<const LoadedModel> model_;
};

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
    std::vector<TaskPtr> tasks;
    tasks.push_back(Predict(gone));
    tasks.back()->stopping = client.get_token();
    tasks.push_back(Predict(next));
    Run(std::move(tasks));
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
      TaskPtr task = Predict(late, now() + std::chrono::milliseconds(40 + early));
      task->stopping = client.get_token();
      Run(std::move(task));
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
      std::vector<TaskPtr> tasks;
      tasks.push_back(Generate(gone, by_deadline ? now() + std::chrono::milliseconds(43) : Time::max()));
      tasks.back()->stopping = client.get_token();
      tasks.push_back(Generate(next));
      Run(std::move(tasks));
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

}  // namespace
}  // namespace edgewise::server
