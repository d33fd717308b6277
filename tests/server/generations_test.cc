// Generations side by side: who decodes together, and clients that do not read.
#include "server/schedule/generations.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "model/load.h"
#include "server/models/repository.h"
#include "server/observe/metrics.h"
#include "tests/model/run_model.h"
#include "tests/support/paths.h"

namespace edgewise::server {
namespace {

constexpr uint32_t kLevel = kDefaultPriority - 1;

class GenerationsTest : public ::testing::Test {
 protected:
  struct Client {
    bool reads = true;
    std::vector<int32_t> tokens;
    int ends = 0;
    absl::Status status;
  };

  GenerationsTest() {
    auto loaded = std::make_shared<LoadedModel>();
    loaded->name = "lm-ssa-local";
    loaded->version = 1;
    loaded->model = *LoadModel(tests::TestdataFolder() + "/lm-ssa-local/1", *backend_);
    loaded->metrics = metrics_.ForModel(loaded->name, 1).Loaded(metrics_.other().Event(), *loaded->model);
    model_ = std::move(loaded);
  }

  RequestPtr Request(Client& client, int32_t prompt, uint32_t tokens) const {
    auto request = std::make_unique<server::Request>();
    request->model = model_;
    request->queued = now();
    request->done = [&client](const absl::Status& status) {
      ++client.ends;
      client.status = status;
    };
    request->generation = std::make_unique<GenerationWork>();
    GenerationWork& work = *request->generation;
    work.prompt = *model_->model->Prepare(testing::RandomTokens(prompt, 20, 3), TruncateMode::kRefuse);
    work.options.max_new_tokens = tokens;
    work.cache_bytes = CacheBytes(model_->model->config(), work.prompt, work.options);
    work.ready = [&client] { return client.reads; };
    work.token = [&client](const GeneratedToken& token, FinishReason) { client.tokens.push_back(token.token_id); };
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
  void Advance(int64_t milliseconds) { milliseconds_ += milliseconds; }
  Time now() const { return Time() + std::chrono::milliseconds(milliseconds_); }

  int64_t milliseconds_ = 1000;
  Metrics metrics_;
  const std::unique_ptr<Backend> backend_ = testing::MakeBackend();
  std::shared_ptr<const LoadedModel> model_;
  RequestQueue queue_{{}, [this] { return now(); }};
  std::unique_ptr<Generations> generations_;
};

TEST_F(GenerationsTest, OneStepDecodesATokenOfAllThatAreReadyAndOfOneLevel) {
  Make(16, 1 << 30);
  std::vector<Client> clients(6);
  for (size_t i = 0; i < clients.size(); ++i) {
    RequestPtr request = Request(clients[i], 1 + static_cast<int32_t>(i), 5);
    if (i == 4) request->priority = 3;
    clients[i].reads = i != 5;
    generations_->Start(std::move(request));
  }
  generations_->Step(kLevel);
  for (size_t i = 0; i < clients.size(); ++i) EXPECT_EQ(clients[i].tokens.size(), i < 4 ? 1u : 0u) << i;
  generations_->Step(2);
  EXPECT_EQ(clients[4].tokens.size(), 1u);
}

TEST_F(GenerationsTest, LayersOfAPromptAndStepsOfOthersTakeTurns) {
  Make(16, 1 << 30);
  Client writes, reads_long;
  Start(writes, 1, 40);
  Start(reads_long, 40, 5);
  while (reads_long.tokens.empty() && writes.tokens.size() < 30) generations_->Step(kLevel);
  const auto layers = static_cast<size_t>(model_->model->config().num_hidden_layers);
  EXPECT_EQ(reads_long.tokens.size(), 1u);
  EXPECT_EQ(writes.tokens.size(), layers + 1) << "one between two layers, and one beside the first token";
}

TEST_F(GenerationsTest, AClientThatStopsReadingHoldsNoRows) {
  Make(16, 1 << 30);
  Client stalled, other;
  Start(stalled, 40, 5);
  generations_->Step(kLevel);  // its prompt is half-way
  stalled.reads = false;
  Start(other, 40, 5);
  const int steps = RunUntilStalled();
  EXPECT_LT(steps, 1000) << "the engine would poll";
  EXPECT_EQ(other.tokens.size(), 5u);
  EXPECT_TRUE(stalled.tokens.empty());
  stalled.reads = true;
  RunUntilStalled();
  EXPECT_EQ(stalled.tokens, other.tokens);
}

TEST_F(GenerationsTest, WhoReadsNothingForASecondGivesPlaceAndMemoryAwayAndGoesOnLater) {
  for (const bool memory_for_both : {true, false}) {
    Client alone, parked, next;
    Make(1, 1 << 30);
    Start(alone, 30, 18);
    RunUntilStalled();
    ASSERT_EQ(alone.tokens.size(), 18u);

    const uint64_t bytes = Request(parked, 30, 18)->generation->cache_bytes;
    Make(1, memory_for_both ? 2 * bytes : bytes);
    Start(parked, 30, 18);
    while (parked.tokens.size() < 7) generations_->Step(kLevel);
    parked.reads = false;
    generations_->Update();
    Advance(999);
    generations_->Update();
    EXPECT_EQ(generations_->room().generations, 0u);
    Advance(1);
    generations_->Update();
    EXPECT_FALSE(generations_->CanStep()[kLevel]);
    EXPECT_EQ(generations_->room().generations, 1u);
    EXPECT_GE(generations_->room().cache_bytes, bytes);

    Start(next, 30, 18);
    EXPECT_EQ(generations_->room().generations, 0u);
    generations_->Step(kLevel);
    parked.reads = true;  // it comes after `next`, and before those that wait
    generations_->Update();
    EXPECT_EQ(generations_->room().generations, 0u);
    while (next.ends == 0) {
      EXPECT_EQ(parked.tokens.size(), 7u);
      generations_->Step(kLevel);
      generations_->Update();
    }
    EXPECT_EQ(generations_->room().generations, 0u);
    RunUntilStalled();
    for (const Client* client : {&parked, &next}) {
      EXPECT_EQ(client->ends, 1);
      EXPECT_TRUE(client->status.ok()) << client->status;
      EXPECT_EQ(client->tokens, alone.tokens);
    }
    EXPECT_TRUE(generations_->empty());
  }
}

TEST_F(GenerationsTest, AParkedGenerationEndsWhenItsClientReadsNothingForHalfAMinute) {
  Make(1, 1 << 30);
  Client client;
  Start(client, 3, 18);
  client.reads = false;
  generations_->Update();
  for (int second = 0; second < 29; ++second) {
    Advance(1000);
    generations_->Update();
  }
  EXPECT_EQ(client.ends, 0);
  Advance(1000);
  generations_->Update();
  EXPECT_EQ(client.ends, 1);
  EXPECT_TRUE(absl::IsCancelled(client.status)) << client.status;
}

}  // namespace
}  // namespace edgewise::server
