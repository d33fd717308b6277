#include "server/schedule/scheduler.h"

#include <gtest/gtest.h>

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

// Who comes next; null: nobody.
const Request* NextOf(Scheduler& scheduler) { return scheduler.NextPredict().get(); }

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
  scheduler.NextPredict();
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
  scheduler.NextPredict();
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

TEST(SchedulerTest, RetryAdviceGrowsWithTheQueueAndTheServiceTime) {
  Scheduler scheduler({});
  for (int i = 0; i < 50; ++i) scheduler.RecordPredict(0.1);
  EXPECT_NEAR(scheduler.RetryDelaySeconds(), 0.05, 1e-9);
  for (int i = 0; i < 10; ++i) Add(scheduler, MakeRequest());
  EXPECT_NEAR(scheduler.RetryDelaySeconds(), 1.0, 0.02);
  for (int i = 0; i < 90; ++i) Add(scheduler, MakeRequest());
  EXPECT_EQ(scheduler.RetryDelaySeconds(), 5.0);
}

RequestPtr MakeGeneration(uint64_t cache_bytes = 1, uint32_t priority = kDefaultPriority) {
  RequestPtr request = MakeRequest(1, priority);
  request->generation = std::make_unique<GenerationWork>();
  request->generation->cache_bytes = cache_bytes;
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

}  // namespace
}  // namespace edgewise::server
