// Generations side by side: who decodes together, clients that do not read, and who has memory.
#include "server/schedule/generations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/load.h"
#include "server/models/repository.h"
#include "server/observe/metrics.h"
#include "tests/model/counting_backend.h"
#include "tests/model/model_kinds.h"
#include "tests/model/run_model.h"
#include "tests/support/paths.h"

namespace edgewise::server {
namespace {

constexpr uint32_t kLevel = kDefaultPriority - 1;

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
    request->model = model_;
    request->queued = now();
    request->done = [&client](const absl::Status& status) {
      ++client.ends;
      client.status = status;
    };
    request->generation = std::make_unique<GenerationWork>();
    GenerationWork& work = *request->generation;
    work.prompt = *model_->model->Prepare(testing::RandomTokens(prompt, 20, seed), TruncateMode::kRefuse);
    work.options.max_new_tokens = tokens;
    work.cache_bytes = CacheBytesOf(*model_->model, work.prompt, work.options);
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
  for (int step = 0; step < steps_of_prompts(); ++step) {
    EXPECT_TRUE(clients[4].tokens.empty()) << "without tokens beside it a short prompt is one like others";
    generations_->Step(2);
  }
  EXPECT_EQ(clients[4].tokens.size(), 1u);
}

TEST_F(GenerationsTest, ShortPromptsRunInOneStepOfPromptsOrBesideTokens) {
  Make(16, 1 << 30);
  std::vector<Client> clients(5);
  for (size_t i = 0; i < 4; ++i) Start(clients[i], 10, 5);
  for (int step = 0; step < steps_of_prompts(); ++step) generations_->Step(kLevel);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(clients[i].tokens.size(), 1u) << "40 rows";
  Start(clients[4], 10, 5);
  generations_->Step(kLevel);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(clients[i].tokens.size(), i < 4 ? 2u : 1u);
}

TEST_F(GenerationsTest, PromptsAndTokensGetEqualTimes) {
  Make(16, 1 << 30);
  product_ = 1;
  Client writes;
  Start(writes, 1, 60);
  std::vector<Client> reads(6);
  for (Client& client : reads) Start(client, 40, 60);
  // A token goes through all layers, so it takes the time of as many layers of prompts, or more.
  const auto layers = static_cast<size_t>(model_->model->config().num_hidden_layers);
  int64_t prompts = 0, tokens = 0, longest = 0;
  for (int steps = 0; reads.back().tokens.empty() && steps < 100; ++steps) {
    EXPECT_LE(std::abs(prompts - tokens), longest) << "after " << steps << " steps";
    const int64_t before = backend_.products();
    const size_t written = writes.tokens.size();
    generations_->Step(kLevel);
    const int64_t step = backend_.products() - before;
    (writes.tokens.size() > written ? tokens : prompts) += step;
    longest = std::max(longest, step);
  }
  EXPECT_EQ(reads.back().tokens.size(), 1u);
  EXPECT_LE(writes.tokens.size(), reads.size() + 1);
  EXPECT_GE(writes.tokens.size(), reads.size() * layers / (layers + 1)) << "the text that decodes does not stand still";
}

// Together they have no more tokens than the context.
TEST_F(GenerationsTest, PromptsThatFitBesideEachOtherRunInOneStep) {
  row_ = 1;  // one that ran alone before shows that there is time for more
  std::vector<Client> alone(3);
  const auto start = [&](Client& client, uint64_t seed) {
    RequestPtr request = Request(client, 18, 3, seed);
    request->generation->options.samples = 2;  // else the prompts were short
    generations_->Start(std::move(request));
  };
  for (const int prompts : {1, 2, 3}) {
    Make(16, 1 << 30);
    start(alone[prompts - 1], prompts);
    RunUntilStalled();
    std::vector<Client> clients(prompts);
    for (int i = 0; i < prompts; ++i) start(clients[i], i + 1);
    for (int step = 0; step < steps_of_prompts(); ++step) {
      EXPECT_TRUE(clients[0].tokens.empty());
      generations_->Step(kLevel);
    }
    for (int i = 0; i < prompts; ++i) EXPECT_EQ(clients[i].tokens.size(), i < 2 ? 1u : 0u) << "of " << prompts;
    RunUntilStalled();
    for (int i = 0; i < prompts; ++i) EXPECT_EQ(clients[i].tokens, alone[i].tokens) << i;
  }
}

TEST_F(GenerationsTest, AClientThatIsGoneLeavesTheStepOfPromptsToTheOthers) {
  Make(16, 1 << 30);
  row_ = 1;
  Client gone, stays, alone;
  std::stop_source stop;
  for (Client* client : {&alone, &gone, &stays}) {
    RequestPtr request = Request(*client, 18, 3, client == &gone ? 4 : 3);
    request->generation->options.samples = 2;
    if (client == &gone) request->stopping = stop.get_token();
    generations_->Start(std::move(request));
    if (client == &alone) RunUntilStalled();
  }
  generations_->Step(kLevel);
  stop.request_stop();
  generations_->Update();
  EXPECT_EQ(gone.ends, 1);
  for (int step = 1; step < steps_of_prompts(); ++step) generations_->Step(kLevel);
  EXPECT_EQ(stays.tokens.size(), 1u) << "it shared the first layer";
  RunUntilStalled();
  EXPECT_EQ(stays.tokens, alone.tokens);
  EXPECT_TRUE(generations_->empty());
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
  EXPECT_EQ(stalled.tokens.size(), 1u) << "the prompt's";
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

    const uint64_t bytes = Request(parked, 30, 18)->generation->cache_bytes.longest;
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
    EXPECT_EQ(static_cast<uint64_t>(backend_.live() - weights_) * sizeof(float), memory_for_both ? 2 * bytes : bytes);
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

TEST_F(GenerationsTest, NoMoreAreParkedThanMayRun) {
  Make(1, 1 << 30);
  Client first, second;
  Start(first, 3, 18);
  first.reads = false;
  Advance(1000);
  generations_->Update();
  EXPECT_EQ(generations_->room().generations, 1u);
  Start(second, 3, 18);
  second.reads = false;
  Advance(1000);
  generations_->Update();
  EXPECT_EQ(generations_->room().generations, 0u);
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

// A dense model of a context of 8 pages, and generations that ask for more memory than there is.
class GenerationMemoryTest : public GenerationsTest {
 protected:
  static constexpr uint64_t kPage = 2 * 64 * 2 * 32 * sizeof(float);  // layers, tokens, keys and values
  static constexpr uint32_t kLongest = 8 * 64;

  GenerationMemoryTest() : GenerationsTest(Folder()) {}

  static std::string Folder() {
    static const testing::TemporaryFolder folder;
    nlohmann::json config = testing::ConfigOf(testing::LanguageModelKinds()[0]);
    config["max_position_embeddings"] = kLongest;
    return testing::WriteModel(folder.path(), config);
  }

  std::vector<int32_t> Alone(int32_t prompt, uint32_t tokens) {
    Client client;
    Make(1, 1 << 30);
    Start(client, prompt, tokens);
    RunUntilStalled();
    EXPECT_TRUE(client.status.ok()) << client.status;
    return client.tokens;
  }
  // Starts the request if there is room for it.
  bool StartIfRoom(RequestPtr request) {
    const GenerationRoom room = generations_->room();
    if (room.generations == 0 || request->generation->cache_bytes.ahead > room.cache_bytes) return false;
    generations_->Start(std::move(request));
    return true;
  }
  // One turn of the engine; false: nothing can step.
  bool Turn() {
    generations_->Update();
    const PerLevel<bool> can = generations_->CanStep();
    for (uint32_t level = 0; level < kPriorityLevels; ++level) {
      if (!can[level]) continue;
      generations_->Step(level);
      return true;
    }
    return false;
  }
  uint64_t Held() const { return static_cast<uint64_t>(backend_.live() - weights_) * sizeof(float); }
};

TEST_F(GenerationMemoryTest, MemoryOfFourLongestTextsStartsSixteen) {
  Make(32, 4 * 8 * kPage);
  std::vector<Client> clients(20);
  size_t running = 0;
  while (running < clients.size() && StartIfRoom(Request(clients[running], 10, kLongest - 10))) ++running;
  EXPECT_EQ(running, 16u) << "each has a page, and could take one more";
  EXPECT_EQ(generations_->cache_bytes(), 16 * kPage);
  EXPECT_EQ(Held(), 16 * kPage);
  while (clients[0].tokens.size() < 100) ASSERT_TRUE(Turn());
  for (size_t i = 0; i < running; ++i) EXPECT_GE(clients[i].tokens.size(), 90u) << i;
  EXPECT_EQ(Held(), 32 * kPage);
}

TEST_F(GenerationMemoryTest, WhereMemoryRunsOutTheLastGiveWayAndAllHaveTheTokensThatTheyHaveAlone) {
  constexpr uint32_t kTokens = 300;
  std::vector<std::vector<int32_t>> alone;
  for (int32_t i = 0; i < 6; ++i) alone.push_back(Alone(20 * i + 1, kTokens));
  Make(32, 12 * kPage);  // two of them
  std::vector<Client> clients(6);
  std::vector<size_t> order;
  size_t started = 0;
  bool gave_way = false;
  for (int turns = 0; order.size() < clients.size(); ++turns) {
    ASSERT_LT(turns, 10000);
    while (started < clients.size() &&
           StartIfRoom(Request(clients[started], 20 * static_cast<int>(started) + 1, kTokens))) {
      ++started;
    }
    const uint64_t before = generations_->cache_bytes();
    ASSERT_TRUE(Turn()) << "someone can always go on";
    ASSERT_LE(generations_->cache_bytes(), 12 * kPage);
    gave_way |= generations_->cache_bytes() < before;
    for (size_t i = 0; i < clients.size(); ++i) {
      const bool known = std::find(order.begin(), order.end(), i) != order.end();
      if (clients[i].ends > 0 && !known) order.push_back(i);
    }
  }
  EXPECT_TRUE(gave_way);
  EXPECT_EQ(order[0], 0u) << "nothing is taken from the first";
  for (size_t i = 0; i < clients.size(); ++i) {
    EXPECT_EQ(clients[i].ends, 1);
    EXPECT_TRUE(clients[i].status.ok()) << clients[i].status;
    EXPECT_EQ(clients[i].tokens, alone[i]) << i;
  }
  EXPECT_EQ(generations_->cache_bytes(), 0u);
  EXPECT_EQ(Held(), 0u);
}

TEST_F(GenerationMemoryTest, AHigherLevelTakesMemoryOfOneThatStartedBefore) {
  const std::vector<int32_t> alone = Alone(60, 200);
  Make(32, 6 * kPage);
  Client low, high, waits;
  for (Client* client : {&low, &high}) {
    RequestPtr request = Request(*client, 60, 200);
    request->priority = client == &low ? 3 : 1;
    ASSERT_TRUE(StartIfRoom(std::move(request)));
    while (client->tokens.size() < 70) ASSERT_TRUE(Turn());  // three pages each
  }
  ASSERT_EQ(Held(), 6 * kPage);
  while (high.ends == 0) {
    ASSERT_TRUE(Turn());
    ASSERT_FALSE(StartIfRoom(Request(waits, 1, 4)) && high.ends == 0) << "who was parked comes first";
    ASSERT_LE(Held(), 6 * kPage);
  }
  EXPECT_LT(low.tokens.size(), 200u);
  while (Turn()) {
  }
  EXPECT_EQ(high.tokens, alone);
  EXPECT_EQ(low.tokens, alone);
  EXPECT_EQ(Held(), 0u);
}

TEST_F(GenerationMemoryTest, OneUnderABudgetTakesAllAtItsStartAndKeepsIt) {
  Make(32, 8 * kPage);
  Client capped, grows;
  const auto request = [&](Client& client, double density) {
    RequestPtr made = Request(client, 10, 240);
    made->generation->options.max_density = density;
    made->generation->cache_bytes = CacheBytesOf(*model_->model, made->generation->prompt, made->generation->options);
    return made;
  };
  ASSERT_TRUE(StartIfRoom(request(grows, 0.0)));
  EXPECT_EQ(Held(), kPage);
  ASSERT_TRUE(StartIfRoom(request(capped, 1.0)));
  EXPECT_EQ(Held(), 5 * kPage);
  while (grows.ends + capped.ends < 2) {
    ASSERT_TRUE(Turn());
    ASSERT_LE(Held(), 8 * kPage);
  }
  EXPECT_EQ(grows.tokens, capped.tokens);
  EXPECT_EQ(grows.tokens.size(), 240u);
}

// By what layers took before, whatever ran in between: the last layer, in which hardly a row of a prompt does anything,
// other texts' tokens, and prompts of fewer samples.
TEST_F(GenerationMemoryTest, ALayerOfPromptsTakesNoLongerThanAStep) {
  Make(32, 1 << 30);
  row_ = 20;  // so that a layer of 400 tokens takes 32 ms or more
  Client writes;
  Start(writes, 1, 500);
  const nlohmann::json ssa = {{"kind", "ssa"}, {"bias", "local"}, {"windows", 4}, {"sigma", 0.2}};
  const auto drawn = testing::Override(testing::ConfigOf(testing::LanguageModelKinds()[0]), ssa);
  std::vector<Client> reads(8);
  const auto read = [&](size_t i, int32_t prompt) {
    RequestPtr request = Request(reads[i], prompt, 2, i);
    request->generation->options.samples = i % 2 == 1 ? 3 : 1;
    request->generation->options.attention = drawn;
    generations_->Start(std::move(request));
  };
  int64_t longest = 0, steps = 0;
  for (size_t i = 0; i < reads.size(); ++i) {
    if (i < 4) read(i, 400);
    for (size_t all = 4; i == 4 && all < reads.size(); ++all) read(all, 90);  // at once
    while (reads[i].tokens.empty()) {
      const Time start = now();
      const size_t written = writes.tokens.size();
      ASSERT_TRUE(Turn());
      if (i == 0 || writes.tokens.size() > written) continue;
      longest =
          std::max<int64_t>(longest, std::chrono::duration_cast<std::chrono::milliseconds>(now() - start).count());
      ++steps;
    }
  }
  EXPECT_LE(longest, 20);
  EXPECT_LE(steps, 40) << "parts are no smaller than they have to be";
}

// What a layer of few rows takes, most of it for the weights, says nothing of one of many.
TEST_F(GenerationMemoryTest, ATinyPromptMakesNoPartShorter) {
  Make(32, 1 << 30);
  product_ = 1;
  std::vector<Client> clients(3);
  std::vector<int> steps;
  for (Client& client : clients) {
    Start(client, &client == &clients[1] ? 2 : 400, 1);
    steps.push_back(RunUntilStalled());
  }
  EXPECT_GT(steps[0], steps[2]) << "nothing was known of the first";
  EXPECT_EQ(steps[2], steps_of_prompts()) << "in one part";
}

TEST_F(GenerationMemoryTest, AShortPromptDoesNotWaitForALongOne) {
  Make(32, 1 << 30);
  row_ = 40;
  Client reads, asks;
  Start(reads, 400, 2);
  ASSERT_TRUE(Turn());  // a layer of its first part
  Start(asks, 10, 2);
  for (int turns = 0; turns < 2; ++turns) ASSERT_TRUE(Turn());
  EXPECT_FALSE(asks.tokens.empty());
  EXPECT_TRUE(reads.tokens.empty());
}

}  // namespace
}  // namespace edgewise::server
