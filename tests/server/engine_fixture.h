// An engine, one model and a clock.
#ifndef EDGEWISE_TESTS_SERVER_ENGINE_FIXTURE_H_
#define EDGEWISE_TESTS_SERVER_ENGINE_FIXTURE_H_

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/load/load.h"
#include "server/models/repository.h"
#include "server/observe/metrics.h"
#include "server/schedule/engine.h"
#include "tests/model/cancelling_backend.h"
#include "tests/model/run_model.h"
#include "tests/support/paths.h"

namespace edgewise::server {

inline ServerOptions OneGeneration() {
  ServerOptions options;
  options.max_generations = 1;
  options.unread_timeout = std::chrono::seconds(1);
  return options;
}

// One model, requests that are there before the engine starts, and a clock that only tests move: what happens does not
// depend on time.
class EngineTest : public ::testing::Test {
 protected:
  struct Outcome {
    int answers = 0;
    struct {
      absl::Status status;
      std::vector<ModelInput> inputs;
      std::vector<InputResult> results;
      double queue_seconds, compute_seconds, cancelled_seconds;
      uint32_t batch_inputs;
      uint64_t batch_tokens;
    } result{};
    std::vector<int32_t> tokens;
  };

  void Load(const std::string& name) {
    backend_ = std::make_unique<testing::CancellingBackend>(testing::MakeBackend());
    auto model = LoadModel(tests::TestdataFolder() + "/" + name + "/1", *backend_);
    ASSERT_TRUE(model.ok()) << model.status();
    auto loaded = std::make_shared<LoadedModel>();
    loaded->name = name;
    loaded->version = 1;
    loaded->metrics = metrics_.ForModel(name, 1)->Loaded(metrics_.other()->Event(), **model);
    loaded->model = *std::move(model);
    model_ = std::move(loaded);
  }

  RequestPtr MakeRequest(Outcome& outcome, Time deadline = Time::max()) const {
    auto request = std::make_unique<Request>();
    request->ticket.model = model_;
    request->work.tokens = request->work.cost = 9;
    request->ticket.deadline = deadline;
    request->done = [&outcome, raw = request.get()](const absl::Status& status) {
      ++outcome.answers;
      outcome.result = {status,
                        raw->work.inputs,
                        std::move(raw->outcome.results),
                        raw->outcome.queue_seconds,
                        raw->outcome.compute_seconds,
                        raw->outcome.cancelled_seconds,
                        raw->outcome.batch_inputs,
                        raw->outcome.batch_tokens};
    };
    return request;
  }

  RequestPtr Predict(Outcome& outcome, Time deadline = Time::max()) const {
    RequestPtr request = MakeRequest(outcome, deadline);
    for (const uint64_t seed : {1, 2}) {
      ModelInput& input =
          request->work.inputs.emplace_back(testing::MakeInput(*model_->model, {3, 1, 4, 1, 5, 9, 2, 6, 5}));
      input.seed = seed;
      input.samples = 3;
    }
    return request;
  }

  RequestPtr Generate(Outcome& outcome, Time deadline = Time::max()) const {
    RequestPtr request = MakeRequest(outcome, deadline);
    request->work.generation.emplace();
    request->work.generation->prompt = *model_->model->Prepare({3, 1, 4, 1, 5, 9, 2, 6, 5}, TruncateMode::kRefuse);
    request->work.generation->options.max_new_tokens = 3;
    request->ready = [] { return true; };
    request->token = [&outcome](const GeneratedToken& token, FinishReason) {
      outcome.tokens.push_back(token.token_id);
    };
    return request;
  }

  // Runs them to their end, in this order.
  void Run(std::vector<RequestPtr> requests) {
    RequestQueue queue({}, [this] { return now(); });
    Engine engine(queue, OneGeneration());
    for (RequestPtr& request : requests) {
      for (ModelInput& input : request->work.inputs) input.stopping = request->ticket.stopping;
      if (request->work.generation) request->work.generation->options.stopping = request->ticket.stopping;
      model_->metrics->CountValid(*request, 0.0);
      ASSERT_TRUE(queue.Push(request).ok());
    }
    queue.Close();
    while (engine.RunOnce(true)) {
    }
  }
  void Run(RequestPtr request) {
    std::vector<RequestPtr> requests;
    requests.push_back(std::move(request));
    Run(std::move(requests));
  }

  // 40 ms go by during the call of Attend number `call`; then `gone`, or only the time.
  void DuringCall(int64_t call, std::stop_source* gone = nullptr) {
    backend_->CancelAfter(call, [this, gone] {
      milliseconds_ += 40;
      if (gone != nullptr) gone->request_stop();
    });
  }

  Time now() const { return Time() + std::chrono::milliseconds(milliseconds_.load()); }

  std::atomic<int64_t> milliseconds_ = 1000;
  int64_t calls_at_answer_ = 0;
  Metrics metrics_;
  std::unique_ptr<testing::CancellingBackend> backend_;
  std::shared_ptr<const LoadedModel> model_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_TESTS_SERVER_ENGINE_FIXTURE_H_
