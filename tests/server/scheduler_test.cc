// Who goes next: levels, passes, batches, generations.
#include "server/schedule/scheduler.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/server/scheduler_fixture.h"

namespace edgewise::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(SchedulerTest, RequestsOfALevelGoInOrderOfArrival) {
  TestScheduler scheduler;
  const Request* first = Add(scheduler, MakeRequest());
  const Request* second = Add(scheduler, MakeRequest());
  EXPECT_EQ(NextOf(scheduler), first);
  EXPECT_EQ(NextOf(scheduler), second);
  EXPECT_EQ(NextOf(scheduler), nullptr);
}

TEST(SchedulerTest, PriorityOneGoesFirstAndThreeLast) {
  TestScheduler scheduler;
  const Request* last = Add(scheduler, MakeRequest(1, 3));
  const Request* middle = Add(scheduler, MakeRequest(1, 2));
  const Request* first = Add(scheduler, MakeRequest(1, 1));
  EXPECT_EQ(NextOf(scheduler), first);
  EXPECT_EQ(NextOf(scheduler), middle);
  EXPECT_EQ(NextOf(scheduler), last);
}

TEST(SchedulerTest, TakeEndedRemovesExactlyTheEndedAndKeepsTheOrder) {
  TestScheduler scheduler;
  std::stop_source client;
  const Request* first = Add(scheduler, MakeRequest(1));
  const Request* late = Add(scheduler, MakeRequest(2, 2, kStart + seconds(1)));
  RequestPtr cancellable = MakeRequest(4);
  cancellable->ticket.stopping = client.get_token();
  const Request* cancelled = Add(scheduler, std::move(cancellable));
  const Request* last = Add(scheduler, MakeRequest(8));
  EXPECT_TRUE(scheduler.TakeEnded(kStart + milliseconds(999)).empty());
  client.request_stop();
  std::vector<EndedRequest> dead = scheduler.TakeEnded(kStart + seconds(1));
  ASSERT_EQ(dead.size(), 2u);
  EXPECT_EQ(dead[0].request.get(), late);
  EXPECT_TRUE(absl::IsDeadlineExceeded(dead[0].reason));
  EXPECT_EQ(dead[1].request.get(), cancelled);
  EXPECT_TRUE(absl::IsCancelled(dead[1].reason));
  EXPECT_EQ(scheduler.cost(), 9u);
  EXPECT_EQ(NextOf(scheduler), first);
  EXPECT_EQ(NextOf(scheduler), last);
}

TEST(SchedulerTest, GenerationsAndRequestsWaitInLinesOfTheirOwn) {
  TestScheduler scheduler({.max_requests = 2});
  const Request* generation = Add(scheduler, MakeGeneration());
  Add(scheduler, MakeGeneration());
  RequestPtr third = MakeGeneration();
  const absl::Status full = Push(scheduler, third);
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_NE(std::string(full.message()).find("2 generations wait; the limit is 2"), std::string::npos);
  const Request* request = Add(scheduler, MakeRequest());
  EXPECT_EQ(scheduler.size(), 3u);
  EXPECT_EQ(scheduler.cost(), 3u);
  EXPECT_EQ(NextOf(scheduler), request);
  EXPECT_EQ(NextOf(scheduler), nullptr);
  EXPECT_EQ(scheduler.NextGeneration({1, 1}).get(), generation);
  EXPECT_EQ(scheduler.cost(), 1u);
  EXPECT_EQ(scheduler.TakeAll().size(), 1u);
}

TEST(SchedulerTest, GenerationStartsWhenThereIsRoomAndNoneOvertakesItButByPriority) {
  TestScheduler scheduler;
  const Request* large = Add(scheduler, MakeGeneration(100));
  const Request* small = Add(scheduler, MakeGeneration(1));
  EXPECT_EQ(scheduler.NextGeneration({0, 1000}), nullptr);
  EXPECT_EQ(scheduler.NextGeneration({1, 99}), nullptr) << "the small one would fit, but has to wait";
  EXPECT_FALSE(scheduler.HasWork({1, 99}));
  EXPECT_TRUE(scheduler.HasWork({1, 100}));
  const Request* urgent = Add(scheduler, MakeGeneration(2, 1));
  EXPECT_EQ(scheduler.NextGeneration({1, 99}).get(), urgent);
  EXPECT_EQ(scheduler.NextGeneration({1, 100}).get(), large);
  EXPECT_EQ(scheduler.NextGeneration({1, 100}).get(), small);
  EXPECT_EQ(scheduler.NextGeneration({1, 100}), nullptr);
}

TEST(SchedulerTest, CancelledGenerationsAreTakenOut) {
  TestScheduler scheduler;
  RequestPtr request = MakeGeneration();
  std::stop_source client;
  request->ticket.stopping = client.get_token();
  Add(scheduler, std::move(request));
  client.request_stop();
  const std::vector<EndedRequest> dead = scheduler.TakeEnded(kStart);
  ASSERT_EQ(dead.size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(dead[0].reason));
  EXPECT_FALSE(scheduler.HasWork({1, 1}));
}

TEST(SchedulerTest, ARequestStartsBesideAPassOfFourTimesItsLength) {
  TestScheduler scheduler;
  Add(scheduler, Taking(0.11));
  const Request* shorter = Add(scheduler, Taking(0.1));
  const std::vector<RunningPass> running = {Pass(1.0), Pass(0.4)};
  Turn turn = Next(scheduler, running, {}, kStart);
  ASSERT_EQ(turn.kind, Turn::kStart);
  const std::vector<RequestPtr> batch = scheduler.TakeBatch(turn, kStart);
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0].get(), shorter) << "the first waits: 0.11 s are more than a quarter";
  const Turn next = Next(scheduler, running, {}, kStart);
  EXPECT_EQ(next.kind, Turn::kStep);
  EXPECT_EQ(scheduler.IndexOf(next), 1u) << "the latest";
}

TEST(SchedulerTest, WhereNothingIsKnownOfAModelRequestsGoOneByOne) {
  TestScheduler scheduler;
  Add(scheduler, MakeRequest());
  EXPECT_EQ(Next(scheduler, std::vector{Pass(1.0)}, {}, kStart).kind, Turn::kStep);
  Add(scheduler, MakeRequest());
  EXPECT_EQ(NextBatch(scheduler).size(), 1u);
}

TEST(SchedulerTest, APassSetAsideGetsAStepEveryPatience) {
  TestScheduler scheduler;
  const Time now = kStart + Scheduler::kPatience;
  const std::vector<RunningPass> running = {Pass(1.0, kLevel, kStart), Pass(0.1, kLevel, now)};
  EXPECT_EQ(scheduler.IndexOf(Next(scheduler, running, {}, now - milliseconds(1))), 1u);
  EXPECT_EQ(scheduler.IndexOf(Next(scheduler, running, {}, now)), 0u);
}

TEST(SchedulerTest, LevelsWithWorkShareTheDeviceByWeight) {
  TestScheduler scheduler;
  const std::vector<RunningPass> running = {Pass(1.0, 0), Pass(1.0, 1), Pass(1.0, 2)};
  PerLevel<double> seconds = {};
  for (int step = 0; step < 1300; ++step) {
    const Turn turn = Next(scheduler, running, {}, kStart);
    ASSERT_EQ(turn.kind, Turn::kStep);
    const double took = step % 7 == 0 ? 0.02 : 0.001;  // unequal steps
    seconds[turn.level] += took;
    scheduler.Charge(turn, took);
  }
  EXPECT_NEAR(seconds[0] / seconds[2], 8.0, 0.8);
  EXPECT_NEAR(seconds[1] / seconds[2], 4.0, 0.4);
}

// Of 50, beside the level above, which has four times its weight.
int TurnsOfTheLowest(TestScheduler& scheduler) {
  const std::vector<RunningPass> both = {Pass(1.0, 1), Pass(1.0, 2)};
  int turns = 0;
  for (int step = 0; step < 50; ++step) {
    const Turn turn = Next(scheduler, both, {}, kStart);
    turns += turn.level == 2 ? 1 : 0;
    scheduler.Charge(turn, 0.01);
  }
  return turns;
}

TEST(SchedulerTest, AnIdleLevelSavesNothingUp) {
  TestScheduler scheduler;
  for (int step = 0; step < 100; ++step) scheduler.Charge(Next(scheduler, std::vector{Pass(1.0, 2)}, {}, kStart), 0.1);
  EXPECT_NEAR(TurnsOfTheLowest(scheduler), 10, 2);
}

TEST(SchedulerTest, ALevelThatBeginsOnAnIdleServerIsNotOwedWhatOthersHadBefore) {
  TestScheduler scheduler;
  for (int step = 0; step < 100; ++step) scheduler.Charge(Next(scheduler, std::vector{Pass(1.0, 1)}, {}, kStart), 1.0);
  scheduler.Charge(Next(scheduler, std::vector{Pass(1.0, 2)}, {}, kStart), 0.01);
  EXPECT_NEAR(TurnsOfTheLowest(scheduler), 10, 2);
}

TEST(SchedulerTest, RequestsAndGenerationsOfALevelGetEqualTimes) {
  TestScheduler scheduler;
  const std::vector<RunningPass> running = {Pass(1.0)};
  PerLevel<bool> generations = {};
  generations[kLevel] = true;
  double predict = 0.0, generate = 0.0;
  for (int step = 0; step < 300; ++step) {
    const Turn turn = Next(scheduler, running, generations, kStart);
    const double took = turn.kind == Turn::kGeneration ? 0.002 : 0.006;
    (turn.kind == Turn::kGeneration ? generate : predict) += took;
    scheduler.Charge(turn, took);
  }
  EXPECT_NEAR(predict, generate, 0.01);
}

TEST(SchedulerTest, RequestsOfOneModelGoTogetherWhereTheyAreShort) {
  const auto model = std::make_shared<const LoadedModel*>(), other = std::make_shared<const LoadedModel*>();
  const auto of = [](const auto& owner) {
    return std::shared_ptr<const LoadedModel>(owner, reinterpret_cast<const LoadedModel*>(owner.get()));
  };
  TestScheduler scheduler;
  std::vector<const Request*> own;
  for (int i = 0; i < 12; ++i) {
    RequestPtr request = Taking(0.0006);
    request->ticket.model = of(i % 4 == 3 ? other : model);
    const Request* added = Add(scheduler, std::move(request));
    if (i % 4 != 3) own.push_back(added);
  }
  const std::vector<RequestPtr> batch = NextBatch(scheduler);
  ASSERT_EQ(batch.size(), 8u) << "0.0006 s each, at most kBatchSeconds";
  for (size_t i = 0; i < batch.size(); ++i) EXPECT_EQ(batch[i].get(), own[i]);
  EXPECT_EQ(NextBatch(scheduler).size(), 3u) << "those of the other model came before the ninth";
  EXPECT_EQ(NextBatch(scheduler).size(), 1u);
}

TEST(SchedulerTest, ABatchHasAtMostAsManyRequestsAsMayGoTogether) {
  TestScheduler scheduler({.max_batch = 3});
  for (int i = 0; i < 7; ++i) Add(scheduler, Taking(0.0001));
  EXPECT_EQ(NextBatch(scheduler).size(), 3u);
  EXPECT_EQ(NextBatch(scheduler).size(), 3u);
  EXPECT_EQ(NextBatch(scheduler).size(), 1u);
}

TEST(SchedulerTest, NobodyIsMadeLateByItsMates) {
  TestScheduler scheduler;
  const Time soon = kStart + std::chrono::microseconds(1700);
  Add(scheduler, Taking(0.001));
  Add(scheduler, Taking(0.0004, 2, soon));
  Add(scheduler, Taking(0.001));
  Add(scheduler, Taking(0.00005));
  EXPECT_EQ(NextBatch(scheduler).size(), 3u) << "the third would make the second late; the fourth does not";
}

}  // namespace
}  // namespace edgewise::server
