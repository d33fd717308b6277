#include "server/schedule/queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "server/status_details.h"
#include "tests/server/retry_delay.h"

namespace edgewise::server {
namespace {

// A clock that moves when told.
struct FakeClock {
  std::atomic<int64_t> milliseconds{1000};
  std::function<Time()> read() {
    return [this] { return Time() + std::chrono::milliseconds(milliseconds.load()); };
  }
  Time at(int64_t when) { return Time() + std::chrono::milliseconds(when); }
};

// Counts how often a task was answered, and keeps the last answer.
struct Answers {
  std::atomic<int> count = 0;
  absl::Status last;
  double queue_seconds = 0.0;

  TaskPtr MakeTask(Time deadline = Time::max()) {
    auto task = std::make_unique<Task>();
    task->cost = 1;
    task->deadline = deadline;
    task->done = [this](TaskResult result) {
      last = result.status;
      queue_seconds = result.queue_seconds;
      ++count;
    };
    return task;
  }
};

TEST(TaskQueueTest, JobsGoBeforeTasks) {
  TaskQueue queue({});
  Answers answers;
  ASSERT_TRUE(queue.Push(answers.MakeTask()).ok());
  int ran = 0;
  queue.Post([&ran] { ++ran; });
  Work work = queue.Next();
  ASSERT_TRUE(work.job);
  work.job();
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(queue.Next().batch.size(), 1u);
}

TEST(TaskQueueTest, TaskThatExpiresWaitingIsAnsweredOnceAndNeverComputed) {
  FakeClock clock;
  TaskQueue queue({}, clock.read());
  Answers late, live;
  ASSERT_TRUE(queue.Push(late.MakeTask(clock.at(1500))).ok());
  ASSERT_TRUE(queue.Push(live.MakeTask()).ok());
  clock.milliseconds = 1500;
  Work work = queue.Next();
  ASSERT_EQ(work.batch.size(), 1u);
  work.batch[0]->done({});
  EXPECT_EQ(live.count, 1);
  EXPECT_EQ(late.count, 1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.last));
  EXPECT_DOUBLE_EQ(late.queue_seconds, 0.5);
  EXPECT_EQ(queue.size(), 0u);
}

TEST(TaskQueueTest, DeadTasksMakeRoomForALiveOne) {
  FakeClock clock;
  TaskQueue queue({.max_requests = 1}, clock.read());
  Answers late, live, refused;
  ASSERT_TRUE(queue.Push(late.MakeTask(clock.at(1100))).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(queue.Push(refused.MakeTask())));
  EXPECT_EQ(refused.count, 0);  // a refused task is answered by who pushed it
  clock.milliseconds = 1100;
  EXPECT_TRUE(queue.Push(live.MakeTask()).ok());
  EXPECT_EQ(late.count, 1);
  EXPECT_EQ(queue.size(), 1u);
}

TEST(TaskQueueTest, AnswerDeadWorksWhileTheEngineIsBusy) {
  FakeClock clock;
  TaskQueue queue({}, clock.read());
  Answers late;
  ASSERT_TRUE(queue.Push(late.MakeTask(clock.at(1100))).ok());
  queue.AnswerEnded();
  EXPECT_EQ(late.count, 0);
  clock.milliseconds = 1101;
  queue.AnswerEnded();
  EXPECT_EQ(late.count, 1);
}

TEST(TaskQueueTest, CloseServesWhatWaitsAndRefusesTheRest) {
  TaskQueue queue({});
  Answers waiting, refused;
  ASSERT_TRUE(queue.Push(waiting.MakeTask()).ok());
  queue.Close();
  EXPECT_TRUE(absl::IsUnavailable(queue.Push(refused.MakeTask())));
  EXPECT_EQ(queue.Next().batch.size(), 1u);
  EXPECT_TRUE(queue.Next().end());
}

TEST(TaskQueueTest, AbortAnswersWhatWaits) {
  TaskQueue queue({});
  Answers waiting;
  ASSERT_TRUE(queue.Push(waiting.MakeTask()).ok());
  queue.CancelAll();
  EXPECT_EQ(waiting.count, 1);
  EXPECT_TRUE(absl::IsUnavailable(waiting.last));
  EXPECT_GT(RetryDelay(waiting.last), 0.0);
  EXPECT_TRUE(queue.cancelled());
  EXPECT_TRUE(queue.Next().end());
}

TEST(TaskQueueTest, EveryTaskOfManyThreadsIsAnsweredExactlyOnce) {
  constexpr int kThreads = 4, kTasks = 500;
  TaskQueue queue({.max_requests = 64});
  std::atomic<int> accepted = 0, refused = 0, answered = 0;
  std::thread engine([&] {
    for (Work work = queue.Next(); !work.end(); work = queue.Next()) {
      for (TaskPtr& task : work.batch) task->done({});
    }
  });
  std::vector<std::thread> clients;
  for (int t = 0; t < kThreads; ++t) {
    clients.emplace_back([&, t] {
      for (int i = 0; i < kTasks; ++i) {
        auto task = std::make_unique<Task>();
        task->cost = 1;
        std::stop_source client;
        task->stopping = client.get_token();
        task->done = [&answered](TaskResult) { ++answered; };
        if (queue.Push(std::move(task)).ok()) {
          ++accepted;
          if ((i + t) % 3 == 0) client.request_stop();
        } else {
          ++refused;
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  queue.Close();
  engine.join();
  EXPECT_EQ(accepted + refused, kThreads * kTasks);
  EXPECT_EQ(answered, accepted);
}

TEST(TaskQueueTest, NextGivesAGenerationOnlyWhereThereIsRoom) {
  TaskQueue queue({});
  Answers request, generation;
  TaskPtr task = generation.MakeTask();
  task->generation = std::make_unique<GenerationWork>();
  ASSERT_TRUE(queue.Push(std::move(task)).ok());
  EXPECT_TRUE(queue.Next(Wait::kNot, {0, 100}).none());
  EXPECT_EQ(queue.NextGeneration({0, 100}), nullptr);
  ASSERT_TRUE(queue.Push(request.MakeTask()).ok());
  const Work work = queue.Next(Wait::kForWork, {1, 100});
  EXPECT_NE(work.generation, nullptr);
  EXPECT_EQ(work.batch.size(), 1u);
  EXPECT_FALSE(work.end());
}

TEST(TaskQueueTest, WaitForAClientEndsByItselfOrWhenItIsWoken) {
  TaskQueue queue({});
  EXPECT_TRUE(queue.Next(Wait::kAWhile).none());
  std::atomic<bool> over = false;
  std::thread waker([&] {
    while (!over) queue.Wake();
  });
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(queue.Next(Wait::kAWhile).none());
  over = true;
  waker.join();
}

TEST(TaskQueueTest, ClosedQueueWaitsForGenerationsThatRun) {
  TaskQueue queue({});
  queue.Close();
  const Work work = queue.Next(Wait::kNot, {1, 1});
  EXPECT_TRUE(work.none());
  EXPECT_TRUE(work.closed);
  EXPECT_TRUE(queue.Next(Wait::kAWhile, {1, 1}).end());
}

}  // namespace
}  // namespace edgewise::server
