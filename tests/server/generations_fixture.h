// Generations of one model, stepped as the engine steps them, on a clock that products drive.
#ifndef EDGEWISE_TESTS_SERVER_GENERATIONS_FIXTURE_H_
#define EDGEWISE_TESTS_SERVER_GENERATIONS_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "model/load/load.h"
#include "server/models/repository.h"
#include "server/observe/metrics.h"
#include "server/schedule/generations.h"
#include "tests/model/counting_backend.h"
#include "tests/model/run_model.h"
#include "tests/support/paths.h"

namespace edgewise::server {

inline constexpr uint32_t kLevel = kDefaultPriority - 1;

// Counts matrix products and their rows, as a clock that tells a step of many layers, or of many rows, from one of few.
class ProductsBackend : public testing::CountingBackend {
 public:
  using CountingBackend::CountingBackend;
  absl::Status Linear(const LinearWeights& weights, ConstMatrix x, Matrix y, bool accumulate, Phase phase) override {
    ++products_;
    rows_ += x.rows;
    return CountingBackend::Linear(weights, x, y, accumulate, phase);
  }
  int64_t products() const { return products_; }
  int64_t rows() const { return rows_; }

 private:
  int64_t products_ = 0, rows_ = 0;
};

class GenerationsTest : public ::testing::Test {
 protected:
  struct Client {
    bool reads = true;
    std::vector<int32_t> tokens;
    int ends = 0;
    absl::Status status;
  };

  explicit GenerationsTest(const std::string& folder = tests::TestdataFolder() + "/lm-ssa-local/1") {
    auto loaded = std::make_shared<LoadedModel>();
    loaded->name = "model";
    loaded->version = 1;
    loaded->model = *LoadModel(folder, backend_);
    weights_ = backend_.live();
    loaded->metrics = metrics_.ForModel(loaded->name, 1)->Loaded(metrics_.other()->Event(), *loaded->model);
    model_ = std::move(loaded);
  }

  RequestPtr Request(Client& client, int32_t prompt, uint32_t tokens, uint64_t seed = 3) const {
    auto request = std::make_unique<server::Request>();
    request->ticket.model = model_;
    request->outcome.queued = now();
    request->done = [&client](const absl::Status& status) {
      ++client.ends;
      client.status = status;
    };
    GenerationWork& work = request->work.generation.emplace();
    work.prompt = *model_->model->Prepare(testing::RandomTokens(prompt, 20, seed), TruncateMode::kRefuse);
    work.options.max_new_tokens = tokens;
    work.cache_bytes = CacheBytesOf(*model_->model, work.prompt, work.options);
    request->ready = [&client] { return client.reads; };
    request->token = [&client](const GeneratedToken& token, FinishReason) { client.tokens.push_back(token.token_id); };
    return request;
  }

  void Start(Client& client, int32_t prompt, uint32_t tokens) { generations_->Start(Request(client, prompt, tokens)); }
  void Make(uint32_t max_generations, uint64_t max_cache_bytes) {
    ServerOptions options;
    options.max_generations = max_generations;
    options.limits.max_cache_bytes = max_cache_bytes;
    generations_ = std::make_unique<Generations>(queue_, options);
  }
  // As the engine does; how many steps there were.
  int RunUntilStalled() {
    int steps = 0;
    for (generations_->Update(); generations_->CanStep()[kLevel] && steps < 1000; generations_->Update(), ++steps) {
      generations_->Step(kLevel);
    }
    return steps;
  }
  // Layer by layer, and the one that predicts.
  int steps_of_prompts() const { return model_->model->config().num_hidden_layers + 1; }
  void Advance(int64_t milliseconds) { milliseconds_ += milliseconds; }
  Time now() const {
    return Time() + std::chrono::milliseconds(milliseconds_ + product_ * backend_.products()) +
           std::chrono::microseconds(row_ * backend_.rows());
  }

  int64_t milliseconds_ = 1000, product_ = 0;  // of a product
  int64_t row_ = 0;                            // microseconds of a row of a product
  Metrics metrics_;
  ProductsBackend backend_{testing::MakeBackend()};
  int64_t weights_ = 0;
  std::shared_ptr<const LoadedModel> model_;
  RequestQueue queue_{{}, [this] { return now(); }};
  std::unique_ptr<Generations> generations_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_TESTS_SERVER_GENERATIONS_FIXTURE_H_
