// Generations of long texts side by side: who has memory, and what a part of a prompt may take.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/schedule/generations.h"
#include "tests/model/model_kinds.h"
#include "tests/server/generations_fixture.h"

namespace edgewise::server {
namespace {

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
    if (room.generations == 0 || request->work.generation->cache_bytes.ahead > room.cache_bytes) return false;
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
    request->ticket.priority = client == &low ? 3 : 1;
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
    made->work.generation->options.max_density = density;
    made->work.generation->cache_bytes =
        CacheBytesOf(*model_->model, made->work.generation->prompt, made->work.generation->options);
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
    request->work.generation->options.samples = i % 2 == 1 ? 3 : 1;
    request->work.generation->options.attention = drawn;
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
