// Generations side by side: who decodes together, and clients that do not read.
#include "server/schedule/generations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "tests/server/generations_fixture.h"

namespace edgewise::server {
namespace {

TEST_F(GenerationsTest, OneStepDecodesATokenOfAllThatAreReadyAndOfOneLevel) {
  Make(16, 1 << 30);
  std::vector<Client> clients(6);
  for (size_t i = 0; i < clients.size(); ++i) {
    RequestPtr request = Request(clients[i], 1 + static_cast<int32_t>(i), 5);
    if (i == 4) request->ticket.priority = 3;
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

TEST_F(GenerationsTest, AClientThatTakesNoMoreWithinAStepHasItsTokensLater) {
  Make(16, 1 << 30);
  Client client;
  RequestPtr request = Request(client, 10, 5);
  std::minstd_rand random(7);
  request->ready = [&random] { return random() % 3 != 0; };
  generations_->Start(std::move(request));
  for (int step = 0; step < 2000 && client.ends == 0; ++step) {
    generations_->Update();
    generations_->Step(kLevel);
  }
  EXPECT_EQ(client.tokens.size(), 5u);
  EXPECT_TRUE(client.ends == 1 && client.status.ok()) << client.status;
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
    request->work.generation->options.samples = 2;  // else the prompts were short
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
    request->work.generation->options.samples = 2;
    if (client == &gone) request->ticket.stopping = stop.get_token();
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

// After the first token nothing takes longer than a step may, or than a layer: others have their turns in between.
TEST_F(GenerationsTest, ATokenOfALargeModelTakesSeveralSteps) {
  constexpr uint32_t kTokens = 6;
  Client alone, reads, gone, urgent;
  Make(16, 1 << 30);
  Start(alone, 1, kTokens);
  RunUntilStalled();

  product_ = 8;
  std::stop_source stop;
  Start(reads, 1, kTokens);
  RequestPtr request = Request(gone, 1, kTokens, 4);
  request->ticket.stopping = stop.get_token();
  generations_->Start(std::move(request));
  generations_->Step(kLevel);
  ASSERT_EQ(reads.tokens.size(), 1u) << "of what a token takes nothing was known";
  ASSERT_EQ(gone.tokens.size(), 1u);
  generations_->Step(kLevel);
  EXPECT_EQ(reads.tokens.size(), 1u);

  stop.request_stop();
  generations_->Update();
  EXPECT_EQ(gone.ends, 1);
  RequestPtr other = Request(urgent, 1, 1);
  other->ticket.priority = 1;
  generations_->Start(std::move(other));
  generations_->Step(0);
  while (urgent.ends == 0) generations_->Step(0);
  EXPECT_EQ(reads.tokens.size(), 1u) << "half-way still";

  int steps = 1;
  Time::duration longest{};
  for (; reads.ends == 0; ++steps) {
    const Time before = now();
    generations_->Step(kLevel);
    longest = std::max(longest, now() - before);
  }
  EXPECT_GT(steps, 2 * (kTokens - 1));
  EXPECT_LE(longest, std::chrono::milliseconds(20));
  EXPECT_EQ(reads.tokens, alone.tokens);
}

// One that comes, or reads again, waits for the end of the token, unless it has a long prompt: it shares the time with
// tokens.
TEST_F(GenerationsTest, WhoComesDoesNotJoinATokenThatIsHalfWay) {
  Make(16, 1 << 30);
  Client alone;
  Start(alone, 1, 3);
  RunUntilStalled();
  product_ = 8;
  Client first, second, third;
  Start(first, 1, 3);
  Start(second, 1, 3);
  generations_->Step(kLevel);
  second.reads = false;
  generations_->Step(kLevel);
  ASSERT_EQ(first.tokens.size(), 1u);
  second.reads = true;
  while (first.tokens.size() < 2) generations_->Step(kLevel);
  EXPECT_EQ(second.tokens.size(), 1u);
  generations_->Step(kLevel);  // of both
  Start(third, 40, 1);
  const int64_t rows = backend_.rows();
  generations_->Step(kLevel);
  EXPECT_GE(backend_.rows() - rows, 39) << "a layer of the prompt";
  RunUntilStalled();
  EXPECT_EQ(first.tokens, alone.tokens);
  EXPECT_EQ(second.tokens, alone.tokens);
  EXPECT_EQ(third.tokens.size(), 1u);
}

// It ran beside a long prompt, which goes away: it stays a token, though alone it would run as a prompt.
TEST_F(GenerationsTest, AShortPromptThatIsHalfWayAsATokenEndsAsOne) {
  Make(16, 1 << 30);
  Client alone, other, short_one;
  Start(alone, 5, 3);
  RunUntilStalled();
  product_ = 8;
  Start(other, 1, 1);
  RunUntilStalled();
  std::stop_source stop;
  Client gone;
  RequestPtr request = Request(gone, 40, 1);
  request->ticket.stopping = stop.get_token();
  generations_->Start(std::move(request));
  Start(short_one, 5, 3);
  generations_->Step(kLevel);  // of the prompt
  const int64_t products = backend_.products();
  generations_->Step(kLevel);  // of the token
  ASSERT_GT(backend_.products(), products);
  ASSERT_TRUE(short_one.tokens.empty());
  stop.request_stop();
  RunUntilStalled();
  EXPECT_EQ(gone.ends, 1);
  EXPECT_EQ(short_one.tokens, alone.tokens);
  EXPECT_TRUE(short_one.status.ok()) << short_one.status;
}

// What it holds can be computed again, but not from the middle of a token.
TEST_F(GenerationsTest, AClientThatStopsReadingIsParkedAfterItsToken) {
  Make(1, 1 << 30);
  product_ = 8;
  Client client;
  Start(client, 1, 6);
  generations_->Step(kLevel);
  generations_->Step(kLevel);
  client.reads = false;
  Advance(2000);
  generations_->Update();
  EXPECT_EQ(generations_->room().generations, 0u);
  for (int step = 0; step < 100 && generations_->CanStep()[kLevel]; ++step) generations_->Step(kLevel);
  EXPECT_EQ(client.tokens.size(), 2u);
  generations_->Update();
  EXPECT_EQ(generations_->room().generations, 1u);
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

    const uint64_t bytes = Request(parked, 30, 18)->work.generation->cache_bytes.longest;
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

}  // namespace
}  // namespace edgewise::server
