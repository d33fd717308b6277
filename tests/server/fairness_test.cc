// Principals share a level by seconds.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "server/schedule/scheduler.h"
#include "tests/server/retry_delay.h"
#include "tests/server/scheduler_fixture.h"

namespace edgewise::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

RequestPtr Of(const std::string& principal, double predicted, Time deadline = Time::max()) {
  RequestPtr request = Taking(predicted, kDefaultPriority, deadline);
  request->ticket.principal.name = principal;
  return request;
}

RunningPass PassOf(const std::string& principal, double remaining) {
  return {.level = kLevel, .principal = principal, .progress = {.remaining = remaining, .stepped = kStart}};
}

TEST(FairnessTest, PrincipalsShareALevelBySecondsWhateverTheySend) {
  TestScheduler scheduler({.max_requests = 1000, .max_delay = seconds(100)});
  for (int i = 0; i < 300; ++i) Add(scheduler, Of("short", 0.01));
  for (int i = 0; i < 100; ++i) Add(scheduler, Of("long", 0.03));
  std::map<std::string, double> served;
  for (int i = 0; i < 160; ++i) {
    Turn turn = Next(scheduler, {}, {}, kStart);
    const std::vector<RequestPtr> batch = scheduler.TakeBatch(turn, kStart);
    ASSERT_EQ(batch.size(), 1u);
    served[batch[0]->ticket.principal.name] += batch[0]->forecast.seconds;
    scheduler.Charge(turn, batch[0]->forecast.seconds);
  }
  EXPECT_NEAR(served["short"], served["long"], 0.031);
}

TEST(FairnessTest, MatesOfABatchAreChargedTheirOwnShare) {
  TestScheduler scheduler;
  for (int i = 0; i < 4; ++i) Add(scheduler, Of("one", 0.001));
  Add(scheduler, Of("other", 0.001));
  Turn turn = Next(scheduler, {}, {}, kStart);
  ASSERT_EQ(scheduler.TakeBatch(turn, kStart).size(), 5u);
  scheduler.Charge(turn, 0.005);
  Add(scheduler, Of("one", 0.006));
  const Request* next = Add(scheduler, Of("other", 0.006));
  scheduler.Run({});
  EXPECT_EQ(NextOf(scheduler), next) << "the one had four times as much";
}

TEST(FairnessTest, APassBeyondItsShareDelaysOthersByItsStepOnly) {
  TestScheduler scheduler;
  Next(scheduler, std::vector{PassOf("greedy", 1.0)}, {}, kStart);
  const Request* polite = Add(scheduler, Of("polite", 0.9));
  Turn turn = Next(scheduler, std::vector{PassOf("greedy", 1.0)}, {}, kStart);
  ASSERT_EQ(turn.kind, Turn::kStart);
  EXPECT_EQ(scheduler.TakeBatch(turn, kStart)[0].get(), polite);
  Add(scheduler, Of("other", 1.1));
  EXPECT_EQ(Next(scheduler, std::vector{PassOf("greedy", 1.0)}, {}, kStart).kind, Turn::kStep) << "it ends first";
}

TEST(FairnessTest, NotEveryPrincipalHasAPassAtATime) {
  TestScheduler scheduler;
  std::vector<RunningPass> running;
  for (size_t i = 0; i < Scheduler::kMostPasses; ++i) running.push_back(PassOf(std::to_string(i), 1.0));
  Next(scheduler, running, {}, kStart);
  Add(scheduler, Of("one more", 0.01));
  EXPECT_EQ(Next(scheduler, running, {}, kStart).kind, Turn::kStep);
  running.pop_back();
  EXPECT_EQ(Next(scheduler, running, {}, kStart).kind, Turn::kStart);
}

TEST(FairnessTest, OnlyTheShareOfOthersMakesARequestLate) {
  TestScheduler scheduler;
  for (int i = 0; i < 10; ++i) Add(scheduler, Of("greedy", 0.1));
  RequestPtr greedy = Of("greedy", 0.1, kStart + milliseconds(300));
  EXPECT_TRUE(absl::IsResourceExhausted(Push(scheduler, greedy)));
  RequestPtr late = Of("polite", 0.1, kStart + milliseconds(220));
  EXPECT_TRUE(absl::IsResourceExhausted(Push(scheduler, late))) << "one of the greedy client goes first";
  RequestPtr polite = Of("polite", 0.1, kStart + milliseconds(240));
  const Request* added = polite.get();
  ASSERT_TRUE(Push(scheduler, polite).ok());
  Turn turn = Next(scheduler, {}, {}, kStart);
  EXPECT_NE(scheduler.TakeBatch(turn, kStart)[0].get(), added);
  scheduler.Charge(turn, 0.1);
  EXPECT_EQ(NextOf(scheduler), added);
}

TEST(FairnessTest, TheNewestOfTheLargestPrincipalMakesRoomInAFullLine) {
  TestScheduler scheduler({.max_requests = 4});
  const Request* newest = nullptr;
  for (int i = 0; i < 4; ++i) newest = Add(scheduler, Of("greedy", 0.1));
  RequestPtr polite = Of("polite", 0.1);
  std::vector<EndedRequest> ended;
  ASSERT_TRUE(scheduler.Add(polite, kStart, ended).ok());
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].request.get(), newest);
  EXPECT_TRUE(absl::IsResourceExhausted(ended[0].reason));
  EXPECT_GE(RetryDelay(ended[0].reason), 0.05);
  EXPECT_EQ(scheduler.size(), 4u);
}

TEST(FairnessTest, AFullLineIsNoRoomForALateRequest) {
  TestScheduler scheduler({.max_requests = 4});
  for (int i = 0; i < 4; ++i) Add(scheduler, Of("greedy", 0.1));
  RequestPtr late = Of("polite", 0.1, kStart + milliseconds(150));
  EXPECT_TRUE(absl::IsResourceExhausted(Push(scheduler, late))) << "and nobody made room for it";
  EXPECT_EQ(scheduler.size(), 4u);
}

TEST(FairnessTest, AClientHoldsHalfOfTheLineWhileOthersWait) {
  TestScheduler scheduler({.max_requests = 6});
  Add(scheduler, Of("polite", 0.1));
  for (int i = 0; i < 3; ++i) Add(scheduler, Of("greedy", 0.1));
  RequestPtr more = Of("greedy", 0.1);
  EXPECT_EQ(Push(scheduler, more).message(),
            "the queue is full: 3 requests of this client wait; the limit while others wait is 3; try again in 400ms");
  RequestPtr second = Of("polite", 0.1);
  EXPECT_TRUE(Push(scheduler, second).ok());
}

TEST(FairnessTest, NewcomersDoNotStarveALongRequest) {
  TestScheduler scheduler;
  Add(scheduler, Of("long", 1.0));
  int before = 0;
  for (; before < 1000; ++before) {
    Add(scheduler, Of("short " + std::to_string(before), 0.1));
    Turn turn = Next(scheduler, {}, {}, kStart);
    const std::vector<RequestPtr> batch = scheduler.TakeBatch(turn, kStart);
    scheduler.Charge(turn, batch[0]->forecast.seconds);
    if (batch[0]->forecast.seconds == 1.0) break;
  }
  EXPECT_LE(before, 20) << "after as much of others";
  EXPECT_GE(before, 9);
}

TEST(FairnessTest, GenerationsOfPrincipalsStartInTurn) {
  TestScheduler scheduler;
  const auto generation = [](const char* principal) {
    RequestPtr request = MakeGeneration();
    request->ticket.principal.name = principal;
    request->forecast.seconds = 1.0;
    return request;
  };
  for (int i = 0; i < 3; ++i) Add(scheduler, generation("greedy"));
  Add(scheduler, generation("polite"));
  std::string order;
  for (int i = 0; i < 4; ++i) order += scheduler.NextGeneration({1, 1})->ticket.principal.name[0];
  EXPECT_EQ(order, "gpgg");
}

}  // namespace
}  // namespace edgewise::server
