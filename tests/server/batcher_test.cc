#include "server/schedule/batcher.h"

#include <gtest/gtest.h>

#include "server/status_details.h"
#include "tests/server/retry_delay.h"

namespace edgewise::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Time kStart = Time() + seconds(100);

TaskPtr MakeTask(uint64_t cost = 1, uint32_t priority = kDefaultPriority, Time deadline = Time::max()) {
  auto task = std::make_unique<Task>();
  task->cost = cost;
  task->priority = priority;
  task->deadline = deadline;
  return task;
}

// Adds and returns the task's address, which is its identity.
const Task* Add(Batcher& batcher, TaskPtr task) {
  const Task* address = task.get();
  EXPECT_TRUE(batcher.Add(task, kStart).ok());
  EXPECT_EQ(task, nullptr);
  return address;
}

// The task of the next batch; null: there is none.
const Task* NextOf(Batcher& batcher) {
  const std::vector<TaskPtr> batch = batcher.NextBatch();
  return batch.empty() ? nullptr : batch[0].get();
}

TEST(BatcherTest, OneRequestIsOneBatchInOrderOfArrival) {
  Batcher batcher({});
  const Task* first = Add(batcher, MakeTask());
  const Task* second = Add(batcher, MakeTask());
  std::vector<TaskPtr> batch = batcher.NextBatch();
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0].get(), first);
  EXPECT_EQ(NextOf(batcher), second);
  EXPECT_TRUE(batcher.NextBatch().empty());
}

TEST(BatcherTest, PriorityOneGoesFirstAndThreeLast) {
  Batcher batcher({});
  const Task* last = Add(batcher, MakeTask(1, 3));
  const Task* middle = Add(batcher, MakeTask(1, 2));
  const Task* first = Add(batcher, MakeTask(1, 1));
  EXPECT_EQ(NextOf(batcher), first);
  EXPECT_EQ(NextOf(batcher), middle);
  EXPECT_EQ(NextOf(batcher), last);
}

TEST(BatcherTest, FullQueueRefusesWithRetryInfoAndLeavesTheTask) {
  Batcher batcher({.max_requests = 2});
  Add(batcher, MakeTask());
  Add(batcher, MakeTask());
  TaskPtr third = MakeTask();
  const absl::Status status = batcher.Add(third, kStart);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "the queue is full: 2 requests wait; the limit is 2");
  EXPECT_GE(RetryDelay(status), 0.05);
  EXPECT_LE(RetryDelay(status), 5.0);
  ASSERT_NE(third, nullptr);
  EXPECT_EQ(batcher.size(), 2u);
  batcher.NextBatch();
  EXPECT_TRUE(batcher.Add(third, kStart).ok());
}

TEST(BatcherTest, TokensBoundTheQueueToo) {
  Batcher batcher({.max_requests = 100, .max_tokens = 10});
  Add(batcher, MakeTask(6));
  Add(batcher, MakeTask(4));
  TaskPtr more = MakeTask(1);
  ASSERT_TRUE(absl::IsResourceExhausted(batcher.Add(more, kStart)));
  ASSERT_NE(more, nullptr);
  batcher.NextBatch();
  EXPECT_EQ(batcher.cost(), 4u);
  EXPECT_TRUE(batcher.Add(more, kStart).ok());
  EXPECT_EQ(batcher.cost(), 5u);
}

TEST(BatcherTest, EmptyQueueTakesARequestOfAnySize) {
  Batcher batcher({.max_requests = 1, .max_tokens = 10});
  Add(batcher, MakeTask(1000000));
  EXPECT_EQ(batcher.NextBatch().size(), 1u);
  EXPECT_EQ(batcher.cost(), 0u);
}

// A client whose deadline passes cancels as well, perhaps a moment before our clock says so.
TEST(BatcherTest, CancelledByItsOwnDeadlineIsLateAndNotCancelled) {
  std::stop_source client;
  Task task;
  task.stopping = client.get_token();
  task.deadline = kStart + std::chrono::seconds(1);
  EXPECT_TRUE(CancelledOrExpired(task, task.deadline - std::chrono::milliseconds(1)).ok());
  client.request_stop();
  EXPECT_TRUE(absl::IsDeadlineExceeded(CancelledOrExpired(task, task.deadline + std::chrono::seconds(1))));
  EXPECT_TRUE(absl::IsDeadlineExceeded(CancelledOrExpired(task, task.deadline - std::chrono::milliseconds(1))));
  EXPECT_TRUE(absl::IsCancelled(CancelledOrExpired(task, kStart)));
}

TEST(BatcherTest, LateOrCancelledTasksAreRefusedAtTheDoor) {
  Batcher batcher({});
  TaskPtr late = MakeTask(1, 2, kStart);
  EXPECT_TRUE(absl::IsDeadlineExceeded(batcher.Add(late, kStart)));
  std::stop_source client;
  client.request_stop();
  TaskPtr cancelled = MakeTask();
  cancelled->stopping = client.get_token();
  EXPECT_TRUE(absl::IsCancelled(batcher.Add(cancelled, kStart)));
  EXPECT_EQ(batcher.size(), 0u);
}

TEST(BatcherTest, TakeDeadRemovesExactlyTheDeadAndKeepsTheOrder) {
  Batcher batcher({});
  std::stop_source client;
  const Task* first = Add(batcher, MakeTask(1));
  const Task* late = Add(batcher, MakeTask(2, 2, kStart + seconds(1)));
  TaskPtr cancellable = MakeTask(4);
  cancellable->stopping = client.get_token();
  const Task* cancelled = Add(batcher, std::move(cancellable));
  const Task* last = Add(batcher, MakeTask(8));
  EXPECT_TRUE(batcher.TakeEnded(kStart + milliseconds(999)).empty());
  client.request_stop();
  std::vector<EndedTask> dead = batcher.TakeEnded(kStart + seconds(1));
  ASSERT_EQ(dead.size(), 2u);
  EXPECT_EQ(dead[0].task.get(), late);
  EXPECT_TRUE(absl::IsDeadlineExceeded(dead[0].reason));
  EXPECT_EQ(dead[1].task.get(), cancelled);
  EXPECT_TRUE(absl::IsCancelled(dead[1].reason));
  EXPECT_EQ(batcher.cost(), 9u);
  EXPECT_EQ(NextOf(batcher), first);
  EXPECT_EQ(NextOf(batcher), last);
}

TEST(BatcherTest, RetryAdviceGrowsWithTheQueueAndTheServiceTime) {
  Batcher batcher({});
  for (int i = 0; i < 50; ++i) batcher.RecordBatch(1, 0.1);
  EXPECT_NEAR(batcher.RetryDelaySeconds(), 0.05, 1e-9);
  for (int i = 0; i < 10; ++i) Add(batcher, MakeTask());
  EXPECT_NEAR(batcher.RetryDelaySeconds(), 1.0, 0.02);
  for (int i = 0; i < 90; ++i) Add(batcher, MakeTask());
  EXPECT_EQ(batcher.RetryDelaySeconds(), 5.0);
}

TaskPtr MakeGeneration(uint64_t cache_bytes = 1, uint32_t priority = kDefaultPriority) {
  TaskPtr task = MakeTask(1, priority);
  task->generation = std::make_unique<GenerationWork>();
  task->generation->cache_bytes = cache_bytes;
  return task;
}

TEST(BatcherTest, GenerationsAndRequestsWaitInLinesOfTheirOwn) {
  Batcher batcher({.max_requests = 2});
  const Task* generation = Add(batcher, MakeGeneration());
  Add(batcher, MakeGeneration());
  TaskPtr third = MakeGeneration();
  const absl::Status full = batcher.Add(third, kStart);
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_NE(std::string(full.message()).find("2 generations wait; the limit is 2"), std::string::npos);
  const Task* request = Add(batcher, MakeTask());
  EXPECT_EQ(batcher.size(), 3u);
  EXPECT_EQ(batcher.cost(), 3u);
  EXPECT_EQ(NextOf(batcher), request);
  EXPECT_TRUE(batcher.NextBatch().empty());
  EXPECT_EQ(batcher.NextGeneration({1, 1}).get(), generation);
  EXPECT_EQ(batcher.cost(), 1u);
  EXPECT_EQ(batcher.TakeAll().size(), 1u);
}

TEST(BatcherTest, GenerationStartsWhenThereIsRoomAndNoneOvertakesItButByPriority) {
  Batcher batcher({});
  const Task* large = Add(batcher, MakeGeneration(100));
  const Task* small = Add(batcher, MakeGeneration(1));
  EXPECT_EQ(batcher.NextGeneration({0, 1000}), nullptr);
  EXPECT_EQ(batcher.NextGeneration({1, 99}), nullptr) << "the small one would fit, but has to wait";
  EXPECT_FALSE(batcher.HasGeneration({1, 99}));
  EXPECT_TRUE(batcher.HasGeneration({1, 100}));
  const Task* urgent = Add(batcher, MakeGeneration(2, 1));
  EXPECT_EQ(batcher.NextGeneration({1, 99}).get(), urgent);
  EXPECT_EQ(batcher.NextGeneration({1, 100}).get(), large);
  EXPECT_EQ(batcher.NextGeneration({1, 100}).get(), small);
  EXPECT_EQ(batcher.NextGeneration({1, 100}), nullptr);
}

TEST(BatcherTest, CancelledGenerationsAreTakenOut) {
  Batcher batcher({});
  TaskPtr task = MakeGeneration();
  std::stop_source client;
  task->stopping = client.get_token();
  Add(batcher, std::move(task));
  client.request_stop();
  const std::vector<EndedTask> dead = batcher.TakeEnded(kStart);
  ASSERT_EQ(dead.size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(dead[0].reason));
  EXPECT_FALSE(batcher.HasGeneration({1, 1}));
}

}  // namespace
}  // namespace edgewise::server
