#include "server/schedule/scheduler.h"

#include <gtest/gtest.h>

#include <map>

#include "server/status_details.h"
#include "tests/server/retry_delay.h"

namespace edgewise::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Time kStart = Time() + seconds(100);

RequestPtr MakeRequest(uint64_t cost = 1, uint32_t priority = kDefaultPriority, Time deadline = Time::max()) {
  auto request = std::make_unique<Request>();
  request->cost = cost;
  request->priority = priority;
  request->deadline = deadline;
  return request;
}

// Nothing leaves the lines: nothing that waits has ended.
absl::Status Push(Scheduler& scheduler, RequestPtr& request) {
  std::vector<EndedRequest> ended;
  absl::Status status = scheduler.Add(request, kStart, ended);
  EXPECT_TRUE(ended.empty());
  return status;
}

// Adds and returns the request's address, which is its identity.
const Request* Add(Scheduler& scheduler, RequestPtr request) {
  const Request* address = request.get();
  EXPECT_TRUE(Push(scheduler, request).ok());
  EXPECT_EQ(request, nullptr);
  return address;
}

Turn Next(Scheduler& scheduler, const std::vector<RunningPass>& running, const PerLevel<bool>& generations, Time now) {
  scheduler.SetRunning(running);
  return scheduler.Next(generations, now);
}

// The requests that start next, where nothing runs.
std::vector<RequestPtr> NextBatch(Scheduler& scheduler) {
  const Turn turn = Next(scheduler, {}, {}, kStart);
  if (turn.kind != Turn::kStart) return {};
  return scheduler.TakeBatch(turn.level, kStart);
}

// Who starts next; null: nobody.
const Request* NextOf(Scheduler& scheduler) {
  const std::vector<RequestPtr> batch = NextBatch(scheduler);
  EXPECT_LE(batch.size(), 1u);
  return batch.empty() ? nullptr : batch[0].get();
}

// A request that takes so long on an idle server.
RequestPtr Taking(double predicted, uint32_t priority = kDefaultPriority, Time deadline = Time::max()) {
  RequestPtr request = MakeRequest(1, priority, deadline);
  request->predicted_seconds = predicted;
  return request;
}

constexpr uint32_t kLevel = kDefaultPriority - 1;
RunningPass Pass(double remaining, uint32_t level = kLevel, Time stepped = kStart) {
  return {level, remaining, stepped};
}

TEST(SchedulerTest, RequestsOfALevelGoInOrderOfArrival) {
  Scheduler scheduler({});
  const Request* first = Add(scheduler, MakeRequest());
  const Request* second = Add(scheduler, MakeRequest());
  EXPECT_EQ(NextOf(scheduler), first);
  EXPECT_EQ(NextOf(scheduler), second);
  EXPECT_EQ(NextOf(scheduler), nullptr);
}

TEST(SchedulerTest, PriorityOneGoesFirstAndThreeLast) {
  Scheduler scheduler({});
  const Request* last = Add(scheduler, MakeRequest(1, 3));
  const Request* middle = Add(scheduler, MakeRequest(1, 2));
  const Request* first = Add(scheduler, MakeRequest(1, 1));
  EXPECT_EQ(NextOf(scheduler), first);
  EXPECT_EQ(NextOf(scheduler), middle);
  EXPECT_EQ(NextOf(scheduler), last);
}

TEST(SchedulerTest, FullQueueRefusesWithRetryInfoAndLeavesTheRequest) {
  Scheduler scheduler({.max_requests = 2});
  Add(scheduler, MakeRequest());
  Add(scheduler, MakeRequest());
  RequestPtr third = MakeRequest();
  const absl::Status status = Push(scheduler, third);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "the queue is full: 2 requests wait; the limit is 2");
  EXPECT_GE(RetryDelay(status), 0.05);
  EXPECT_LE(RetryDelay(status), 5.0);
  ASSERT_NE(third, nullptr);
  EXPECT_EQ(scheduler.size(), 2u);
  NextOf(scheduler);
  EXPECT_TRUE(Push(scheduler, third).ok());
}

TEST(SchedulerTest, EndedRequestsLeaveAFullLineOnly) {
  Scheduler scheduler({.max_requests = 2});
  const Request* late = Add(scheduler, MakeRequest(1, 2, kStart + seconds(1)));
  std::vector<EndedRequest> ended;
  RequestPtr second = MakeRequest(), third = MakeRequest();
  ASSERT_TRUE(scheduler.Add(second, kStart + seconds(1), ended).ok());
  EXPECT_TRUE(ended.empty());
  ASSERT_TRUE(scheduler.Add(third, kStart + seconds(1), ended).ok());
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].request.get(), late);
  EXPECT_EQ(scheduler.size(), 2u);
}

TEST(SchedulerTest, TokensBoundTheQueueToo) {
  Scheduler scheduler({.max_requests = 100, .max_tokens = 10});
  Add(scheduler, MakeRequest(6));
  Add(scheduler, MakeRequest(4));
  RequestPtr more = MakeRequest(1);
  ASSERT_TRUE(absl::IsResourceExhausted(Push(scheduler, more)));
  ASSERT_NE(more, nullptr);
  NextOf(scheduler);
  EXPECT_EQ(scheduler.cost(), 4u);
  EXPECT_TRUE(Push(scheduler, more).ok());
  EXPECT_EQ(scheduler.cost(), 5u);
}

TEST(SchedulerTest, EmptyQueueTakesARequestOfAnySize) {
  Scheduler scheduler({.max_requests = 1, .max_tokens = 10});
  Add(scheduler, MakeRequest(1000000));
  EXPECT_NE(NextOf(scheduler), nullptr);
  EXPECT_EQ(scheduler.cost(), 0u);
}

// A client whose deadline passes cancels as well, perhaps a moment before our clock says so.
TEST(SchedulerTest, CancelledByItsOwnDeadlineIsLateAndNotCancelled) {
  std::stop_source client;
  Request request;
  request.stopping = client.get_token();
  request.deadline = kStart + std::chrono::seconds(1);
  EXPECT_TRUE(CancelledOrExpired(request, request.deadline - std::chrono::milliseconds(1)).ok());
  client.request_stop();
  EXPECT_TRUE(absl::IsDeadlineExceeded(CancelledOrExpired(request, request.deadline + std::chrono::seconds(1))));
  EXPECT_TRUE(absl::IsDeadlineExceeded(CancelledOrExpired(request, request.deadline - std::chrono::milliseconds(1))));
  EXPECT_TRUE(absl::IsCancelled(CancelledOrExpired(request, kStart)));
}

TEST(SchedulerTest, LateOrCancelledRequestsAreRefusedAtTheDoor) {
  Scheduler scheduler({});
  RequestPtr late = MakeRequest(1, 2, kStart);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Push(scheduler, late)));
  std::stop_source client;
  client.request_stop();
  RequestPtr cancelled = MakeRequest();
  cancelled->stopping = client.get_token();
  EXPECT_TRUE(absl::IsCancelled(Push(scheduler, cancelled)));
  EXPECT_EQ(scheduler.size(), 0u);
}

TEST(SchedulerTest, TakeEndedRemovesExactlyTheEndedAndKeepsTheOrder) {
  Scheduler scheduler({});
  std::stop_source client;
  const Request* first = Add(scheduler, MakeRequest(1));
  const Request* late = Add(scheduler, MakeRequest(2, 2, kStart + seconds(1)));
  RequestPtr cancellable = MakeRequest(4);
  cancellable->stopping = client.get_token();
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

RequestPtr MakeGeneration(uint64_t cache_bytes = 1, uint32_t priority = kDefaultPriority) {
  RequestPtr request = MakeRequest(1, priority);
  request->generation = std::make_unique<GenerationWork>();
  request->generation->cache_bytes.ahead = cache_bytes;
  return request;
}

TEST(SchedulerTest, GenerationsAndRequestsWaitInLinesOfTheirOwn) {
  Scheduler scheduler({.max_requests = 2});
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
  Scheduler scheduler({});
  const Request* large = Add(scheduler, MakeGeneration(100));
  const Request* small = Add(scheduler, MakeGeneration(1));
  EXPECT_EQ(scheduler.NextGeneration({0, 1000}), nullptr);
  EXPECT_EQ(scheduler.NextGeneration({1, 99}), nullptr) << "the small one would fit, but has to wait";
  EXPECT_FALSE(scheduler.HasGeneration({1, 99}));
  EXPECT_TRUE(scheduler.HasGeneration({1, 100}));
  const Request* urgent = Add(scheduler, MakeGeneration(2, 1));
  EXPECT_EQ(scheduler.NextGeneration({1, 99}).get(), urgent);
  EXPECT_EQ(scheduler.NextGeneration({1, 100}).get(), large);
  EXPECT_EQ(scheduler.NextGeneration({1, 100}).get(), small);
  EXPECT_EQ(scheduler.NextGeneration({1, 100}), nullptr);
}

TEST(SchedulerTest, AGenerationThatCannotBeginBeforeItsDeadlineIsRefused) {
  Scheduler scheduler({});
  const auto generation = [](Time deadline) {
    RequestPtr request = MakeGeneration();
    request->predicted_seconds = 1.0;
    request->deadline = deadline;
    return request;
  };
  Add(scheduler, generation(Time::max()));
  RequestPtr late = generation(kStart + milliseconds(900)), in_time = generation(kStart + milliseconds(1100));
  const absl::Status status = Push(scheduler, late);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_NEAR(RetryDelay(status), 1.0, 1e-9);
  EXPECT_TRUE(Push(scheduler, in_time).ok()) << "it may end late: its client reads what there is";
}

TEST(SchedulerTest, CancelledGenerationsAreTakenOut) {
  Scheduler scheduler({});
  RequestPtr request = MakeGeneration();
  std::stop_source client;
  request->stopping = client.get_token();
  Add(scheduler, std::move(request));
  client.request_stop();
  const std::vector<EndedRequest> dead = scheduler.TakeEnded(kStart);
  ASSERT_EQ(dead.size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(dead[0].reason));
  EXPECT_FALSE(scheduler.HasGeneration({1, 1}));
}

TEST(SchedulerTest, RetryAdviceIsTheWorkThatGoesFirst) {
  Scheduler scheduler({.max_requests = 3});
  for (int i = 0; i < 3; ++i) Add(scheduler, Taking(0.4));
  RequestPtr more = Taking(0.4);
  EXPECT_NEAR(RetryDelay(Push(scheduler, more)), 1.2, 1e-9);
}

TEST(SchedulerTest, ARequestThatNoIdleServerAnswersInTimeIsLateAtTheDoor) {
  Scheduler scheduler({});
  Add(scheduler, Taking(0.0001));  // not idle
  RequestPtr hopeless = Taking(1.0, 2, kStart + milliseconds(600));
  const absl::Status status = Push(scheduler, hopeless);
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_EQ(status.message(), "the request takes about 1s on an idle server; its deadline is in 600ms");
  EXPECT_NE(hopeless, nullptr);
  EXPECT_TRUE(scheduler.TakeEnded(kStart + milliseconds(50)).empty());
  Add(scheduler, Taking(0.01, 1, kStart + milliseconds(25)));
  const std::vector<EndedRequest> ended = scheduler.TakeEnded(kStart + milliseconds(20));
  ASSERT_EQ(ended.size(), 1u) << "waiting made it hopeless";
  EXPECT_TRUE(absl::IsDeadlineExceeded(ended[0].reason));
}

// Else a prediction that is too long would never be corrected.
TEST(SchedulerTest, AnIdleServerTriesEveryRequest) {
  Scheduler scheduler({});
  const Request* tried = Add(scheduler, Taking(10.0, 2, kStart + milliseconds(10)));
  EXPECT_TRUE(scheduler.TakeEnded(kStart).empty());
  EXPECT_EQ(NextOf(scheduler), tried);
}

TEST(SchedulerTest, ARequestThatOthersMakeLateIsRefusedWithTheirTime) {
  Scheduler scheduler({});
  Add(scheduler, Taking(0.5));
  RequestPtr late = Taking(0.2, 2, kStart + milliseconds(600));
  const absl::Status status = Push(scheduler, late);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_EQ(status.message(),
            "the queue is full: requests that go first take about 500ms and this one about 200ms; its deadline is in "
            "600ms");
  EXPECT_NEAR(RetryDelay(status), 0.5, 1e-9);
  RequestPtr in_time = Taking(0.2, 2, kStart + milliseconds(810));
  EXPECT_TRUE(Push(scheduler, in_time).ok());
}

TEST(SchedulerTest, ACheckRefusesAsAddDoesAndChangesNothing) {
  Scheduler scheduler({.max_requests = 2});
  Add(scheduler, Taking(0.5));
  std::vector<EndedRequest> ended;
  const RequestPtr late = Taking(0.2, 2, kStart + milliseconds(600));
  EXPECT_TRUE(absl::IsResourceExhausted(scheduler.Check(*late, kStart, ended)));
  const RequestPtr in_time = Taking(0.2, 2, kStart + milliseconds(810));
  EXPECT_TRUE(scheduler.Check(*in_time, kStart, ended).ok());
  EXPECT_EQ(scheduler.size(), 1u);
  Add(scheduler, Taking(0.1));
  EXPECT_TRUE(absl::IsResourceExhausted(scheduler.Check(*in_time, kStart, ended)));
  EXPECT_TRUE(ended.empty());
}

TEST(SchedulerTest, WorkThatRunsCountsToo) {
  Scheduler scheduler({});
  Next(scheduler, std::vector{Pass(0.5)}, {}, kStart);
  RequestPtr late = Taking(0.2, 2, kStart + milliseconds(600));
  EXPECT_TRUE(absl::IsResourceExhausted(Push(scheduler, late)));
  Next(scheduler, {}, {}, kStart);
  EXPECT_TRUE(Push(scheduler, late).ok());
}

TEST(SchedulerTest, WorkThatRunsCountsUntilItsDeadlineOrItsClientGoes) {
  Scheduler scheduler({});
  std::stop_source gone;
  RunningPass pass = Pass(0.5);
  pass.stopping = gone.get_token();
  pass.ends = kStart + milliseconds(1);
  Next(scheduler, std::vector{pass}, {}, kStart);
  std::vector<EndedRequest> ended;
  RequestPtr late = Taking(0.2, 2, kStart + milliseconds(600));
  EXPECT_TRUE(absl::IsResourceExhausted(scheduler.Check(*late, kStart, ended)));
  EXPECT_TRUE(scheduler.Check(*late, pass.ends, ended).ok()) << "its client waits no more";
  Next(scheduler, std::vector{pass}, {}, kStart);
  EXPECT_TRUE(absl::IsResourceExhausted(scheduler.Check(*late, kStart, ended)));
  gone.request_stop();
  EXPECT_TRUE(scheduler.Check(*late, kStart, ended).ok());
}

TEST(SchedulerTest, OnlyWorkThatGoesFirstCounts) {
  Scheduler scheduler({});
  Add(scheduler, Taking(0.8, 2));
  RequestPtr urgent = Taking(0.2, 1, kStart + milliseconds(400));
  EXPECT_TRUE(Push(scheduler, urgent).ok()) << "level 2 takes a third while level 1 has work";
  RequestPtr shorter = Taking(0.1, 2, kStart + milliseconds(450));
  EXPECT_TRUE(Push(scheduler, shorter).ok()) << "it starts beside the long one";
  RequestPtr similar = Taking(0.3, 2, kStart + milliseconds(900));
  EXPECT_TRUE(absl::IsResourceExhausted(Push(scheduler, similar)));
}

TEST(SchedulerTest, WithoutADeadlineTheWaitIsBoundedButNotTheWork) {
  Scheduler scheduler({.max_delay = milliseconds(2000)});
  Add(scheduler, Taking(100.0));
  EXPECT_NE(NextOf(scheduler), nullptr) << "an idle server takes any request";
  Next(scheduler, {}, {}, kStart);
  Add(scheduler, Taking(1.5));
  Add(scheduler, Taking(1.0));
  RequestPtr third = Taking(0.5);
  const absl::Status status = Push(scheduler, third);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_EQ(status.message(),
            "the queue is full: requests that go first take about 2.5s; without a deadline the limit is 2s "
            "(--max_queue_delay)");
}

TEST(SchedulerTest, ARequestStartsBesideAPassOfFourTimesItsLength) {
  Scheduler scheduler({});
  Add(scheduler, Taking(0.11));
  const Request* shorter = Add(scheduler, Taking(0.1));
  const std::vector<RunningPass> running = {Pass(1.0), Pass(0.4)};
  const Turn turn = Next(scheduler, running, {}, kStart);
  ASSERT_EQ(turn.kind, Turn::kStart);
  const std::vector<RequestPtr> batch = scheduler.TakeBatch(turn.level, kStart);
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0].get(), shorter) << "the first waits: 0.11 s are more than a quarter";
  const Turn next = Next(scheduler, running, {}, kStart);
  EXPECT_EQ(next.kind, Turn::kStep);
  EXPECT_EQ(next.pass, 1u) << "the latest";
}

TEST(SchedulerTest, WhereNothingIsKnownOfAModelRequestsGoOneByOne) {
  Scheduler scheduler({});
  Add(scheduler, MakeRequest());
  EXPECT_EQ(Next(scheduler, std::vector{Pass(1.0)}, {}, kStart).kind, Turn::kStep);
  Add(scheduler, MakeRequest());
  EXPECT_EQ(NextBatch(scheduler).size(), 1u);
}

TEST(SchedulerTest, APassSetAsideGetsAStepEveryPatience) {
  Scheduler scheduler({});
  const Time now = kStart + Scheduler::kPatience;
  const std::vector<RunningPass> running = {Pass(1.0, kLevel, kStart), Pass(0.1, kLevel, now)};
  EXPECT_EQ(Next(scheduler, running, {}, now - milliseconds(1)).pass, 1u);
  EXPECT_EQ(Next(scheduler, running, {}, now).pass, 0u);
}

TEST(SchedulerTest, LevelsWithWorkShareTheDeviceByWeight) {
  Scheduler scheduler({});
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
int TurnsOfTheLowest(Scheduler& scheduler) {
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
  Scheduler scheduler({});
  for (int step = 0; step < 100; ++step) scheduler.Charge(Next(scheduler, std::vector{Pass(1.0, 2)}, {}, kStart), 0.1);
  EXPECT_NEAR(TurnsOfTheLowest(scheduler), 10, 2);
}

TEST(SchedulerTest, ALevelThatBeginsOnAnIdleServerIsNotOwedWhatOthersHadBefore) {
  Scheduler scheduler({});
  for (int step = 0; step < 100; ++step) scheduler.Charge(Next(scheduler, std::vector{Pass(1.0, 1)}, {}, kStart), 1.0);
  scheduler.Charge(Next(scheduler, std::vector{Pass(1.0, 2)}, {}, kStart), 0.01);
  EXPECT_NEAR(TurnsOfTheLowest(scheduler), 10, 2);
}

TEST(SchedulerTest, RequestsAndGenerationsOfALevelGetEqualTimes) {
  Scheduler scheduler({});
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
  Scheduler scheduler({});
  std::vector<const Request*> own;
  for (int i = 0; i < 12; ++i) {
    RequestPtr request = Taking(0.0006);
    request->model = of(i % 4 == 3 ? other : model);
    const Request* added = Add(scheduler, std::move(request));
    if (i % 4 != 3) own.push_back(added);
  }
  const std::vector<RequestPtr> batch = NextBatch(scheduler);
  ASSERT_EQ(batch.size(), 8u) << "0.0006 s each, at most kBatchSeconds";
  for (size_t i = 0; i < batch.size(); ++i) EXPECT_EQ(batch[i].get(), own[i]);
  EXPECT_EQ(NextBatch(scheduler).size(), 3u) << "those of the other model came before the ninth";
  EXPECT_EQ(NextBatch(scheduler).size(), 1u);
}

TEST(SchedulerTest, NobodyIsMadeLateByItsMates) {
  Scheduler scheduler({});
  const Time soon = kStart + std::chrono::microseconds(1700);
  Add(scheduler, Taking(0.001));
  Add(scheduler, Taking(0.0004, 2, soon));
  Add(scheduler, Taking(0.001));
  Add(scheduler, Taking(0.00005));
  EXPECT_EQ(NextBatch(scheduler).size(), 3u) << "the third would make the second late; the fourth does not";
}

RequestPtr Of(const std::string& principal, double predicted, Time deadline = Time::max()) {
  RequestPtr request = Taking(predicted, kDefaultPriority, deadline);
  request->principal.name = principal;
  return request;
}

RunningPass PassOf(const std::string& principal, double remaining) { return {kLevel, remaining, kStart, principal}; }

TEST(FairnessTest, PrincipalsShareALevelBySecondsWhateverTheySend) {
  Scheduler scheduler({.max_requests = 1000, .max_delay = seconds(100)});
  for (int i = 0; i < 300; ++i) Add(scheduler, Of("short", 0.01));
  for (int i = 0; i < 100; ++i) Add(scheduler, Of("long", 0.03));
  std::map<std::string, double> served;
  for (int i = 0; i < 160; ++i) {
    const Turn turn = Next(scheduler, {}, {}, kStart);
    const std::vector<RequestPtr> batch = scheduler.TakeBatch(turn.level, kStart);
    ASSERT_EQ(batch.size(), 1u);
    served[batch[0]->principal.name] += batch[0]->predicted_seconds;
    scheduler.Charge(turn, batch[0]->predicted_seconds);
  }
  EXPECT_NEAR(served["short"], served["long"], 0.031);
}

TEST(FairnessTest, MatesOfABatchAreChargedTheirOwnShare) {
  Scheduler scheduler({});
  for (int i = 0; i < 4; ++i) Add(scheduler, Of("one", 0.001));
  Add(scheduler, Of("other", 0.001));
  const Turn turn = Next(scheduler, {}, {}, kStart);
  ASSERT_EQ(scheduler.TakeBatch(turn.level, kStart).size(), 5u);
  scheduler.Charge(turn, 0.005);
  Add(scheduler, Of("one", 0.006));
  const Request* next = Add(scheduler, Of("other", 0.006));
  scheduler.SetRunning({});
  EXPECT_EQ(NextOf(scheduler), next) << "the one had four times as much";
}

TEST(FairnessTest, APassBeyondItsShareDelaysOthersByItsStepOnly) {
  Scheduler scheduler({});
  Next(scheduler, std::vector{PassOf("greedy", 1.0)}, {}, kStart);
  const Request* polite = Add(scheduler, Of("polite", 0.9));
  const Turn turn = Next(scheduler, std::vector{PassOf("greedy", 1.0)}, {}, kStart);
  ASSERT_EQ(turn.kind, Turn::kStart);
  EXPECT_EQ(scheduler.TakeBatch(turn.level, kStart)[0].get(), polite);
  Add(scheduler, Of("other", 1.1));
  EXPECT_EQ(Next(scheduler, std::vector{PassOf("greedy", 1.0)}, {}, kStart).kind, Turn::kStep) << "it ends first";
}

TEST(FairnessTest, NotEveryPrincipalHasAPassAtATime) {
  Scheduler scheduler({});
  std::vector<RunningPass> running;
  for (size_t i = 0; i < Scheduler::kMostPasses; ++i) running.push_back(PassOf(std::to_string(i), 1.0));
  Next(scheduler, running, {}, kStart);
  Add(scheduler, Of("one more", 0.01));
  EXPECT_EQ(Next(scheduler, running, {}, kStart).kind, Turn::kStep);
  running.pop_back();
  EXPECT_EQ(Next(scheduler, running, {}, kStart).kind, Turn::kStart);
}

TEST(FairnessTest, OnlyTheShareOfOthersMakesARequestLate) {
  Scheduler scheduler({});
  for (int i = 0; i < 10; ++i) Add(scheduler, Of("greedy", 0.1));
  RequestPtr greedy = Of("greedy", 0.1, kStart + milliseconds(300));
  EXPECT_TRUE(absl::IsResourceExhausted(Push(scheduler, greedy)));
  RequestPtr late = Of("polite", 0.1, kStart + milliseconds(220));
  EXPECT_TRUE(absl::IsResourceExhausted(Push(scheduler, late))) << "one of the greedy client goes first";
  RequestPtr polite = Of("polite", 0.1, kStart + milliseconds(240));
  const Request* added = polite.get();
  ASSERT_TRUE(Push(scheduler, polite).ok());
  EXPECT_NE(NextOf(scheduler), added);
  scheduler.Charge({.kind = Turn::kStart, .level = kLevel}, 0.1);
  scheduler.SetRunning({});
  EXPECT_EQ(NextOf(scheduler), added);
}

TEST(FairnessTest, TheNewestOfTheLargestPrincipalMakesRoomInAFullLine) {
  Scheduler scheduler({.max_requests = 4});
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
  Scheduler scheduler({.max_requests = 4});
  for (int i = 0; i < 4; ++i) Add(scheduler, Of("greedy", 0.1));
  RequestPtr late = Of("polite", 0.1, kStart + milliseconds(150));
  EXPECT_TRUE(absl::IsResourceExhausted(Push(scheduler, late))) << "and nobody made room for it";
  EXPECT_EQ(scheduler.size(), 4u);
}

TEST(FairnessTest, AClientHoldsHalfOfTheLineWhileOthersWait) {
  Scheduler scheduler({.max_requests = 6});
  Add(scheduler, Of("polite", 0.1));
  for (int i = 0; i < 3; ++i) Add(scheduler, Of("greedy", 0.1));
  RequestPtr more = Of("greedy", 0.1);
  EXPECT_EQ(Push(scheduler, more).message(),
            "the queue is full: 3 requests of this client wait; the limit while others wait is 3");
  RequestPtr second = Of("polite", 0.1);
  EXPECT_TRUE(Push(scheduler, second).ok());
}

TEST(FairnessTest, NewcomersDoNotStarveALongRequest) {
  Scheduler scheduler({});
  Add(scheduler, Of("long", 1.0));
  int before = 0;
  for (; before < 1000; ++before) {
    Add(scheduler, Of("short " + std::to_string(before), 0.1));
    const Turn turn = Next(scheduler, {}, {}, kStart);
    const std::vector<RequestPtr> batch = scheduler.TakeBatch(turn.level, kStart);
    scheduler.Charge(turn, batch[0]->predicted_seconds);
    if (batch[0]->predicted_seconds == 1.0) break;
  }
  EXPECT_LE(before, 20) << "after as much of others";
  EXPECT_GE(before, 9);
}

TEST(FairnessTest, GenerationsOfPrincipalsStartInTurn) {
  Scheduler scheduler({});
  const auto generation = [](const char* principal) {
    RequestPtr request = MakeGeneration();
    request->principal.name = principal;
    request->predicted_seconds = 1.0;
    return request;
  };
  for (int i = 0; i < 3; ++i) Add(scheduler, generation("greedy"));
  Add(scheduler, generation("polite"));
  std::string order;
  for (int i = 0; i < 4; ++i) order += scheduler.NextGeneration({1, 1})->principal.name[0];
  EXPECT_EQ(order, "gpgg");
}

}  // namespace
}  // namespace edgewise::server
