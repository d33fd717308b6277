#include "server/schedule/queue.h"

#include <utility>

#include "server/status_details.h"

namespace edgewise::server {
namespace {

constexpr absl::Duration kAWhile = absl::Milliseconds(20);

void AnswerAll(std::vector<EndedTask> ended, Time now) {
  for (EndedTask& entry : ended) AnswerUncomputed(std::move(entry.task), std::move(entry.reason), now);
}

}  // namespace

void AnswerUncomputed(TaskPtr task, absl::Status reason, Time now) {
  TaskResult result;
  result.status = std::move(reason);
  result.queue_seconds = Seconds(now - task->queued);
  result.gauge = std::move(task->gauge);
  task->done(std::move(result));
}

TaskQueue::TaskQueue(QueueLimits limits, std::function<Time()> clock) : clock_(std::move(clock)), batcher_(limits) {}

absl::Status TaskQueue::Push(TaskPtr task) {
  const Time now = clock_();
  task->queued = now;
  std::vector<EndedTask> ended;
  absl::Status status;
  {
    const absl::MutexLock lock(&mutex_);
    if (closed_) return ShuttingDown();
    status = batcher_.Add(task, now);
    if (absl::IsResourceExhausted(status)) {  // ended tasks make room
      ended = batcher_.TakeEnded(now);
      if (!ended.empty()) status = batcher_.Add(task, now);
    }
  }
  AnswerAll(std::move(ended), now);
  return status;
}

void TaskQueue::Post(std::function<void()> job) {
  const absl::MutexLock lock(&mutex_);
  if (!closed_) jobs_.push_back(std::move(job));
}

Work TaskQueue::Next(Wait wait, const GenerationRoom& room) {
  while (true) {
    Work work;
    std::vector<EndedTask> ended;
    bool closed = false;
    {
      const auto due = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        if (wait == Wait::kForWork ? closed_ : woken_ || cancelled()) return true;
        return !jobs_.empty() || batcher_.HasBatch() || batcher_.HasGeneration(room);
      };
      const absl::MutexLock lock(&mutex_);
      if (wait == Wait::kForWork) mutex_.Await(absl::Condition(&due));
      if (wait == Wait::kAWhile) mutex_.AwaitWithTimeout(absl::Condition(&due), kAWhile);
      woken_ = false;
      ended = batcher_.TakeEnded(clock_());
      if (!jobs_.empty()) {
        work.job = std::move(jobs_.front());
        jobs_.pop_front();
      } else {
        work.generation = batcher_.NextGeneration(room);
        work.batch = batcher_.NextBatch();
      }
      closed = closed_;
      work.closed = closed_ && batcher_.size() == 0;
    }
    AnswerAll(std::move(ended), clock_());
    if (wait != Wait::kForWork || !work.none() || closed) return work;
  }
}

TaskPtr TaskQueue::NextGeneration(const GenerationRoom& room) {
  const absl::MutexLock lock(&mutex_);
  return batcher_.NextGeneration(room);
}

void TaskQueue::Wake() {
  const absl::MutexLock lock(&mutex_);
  woken_ = true;
}

void TaskQueue::AnswerEnded() {
  std::vector<EndedTask> ended;
  const Time now = clock_();
  {
    const absl::MutexLock lock(&mutex_);
    ended = batcher_.TakeEnded(now);
  }
  AnswerAll(std::move(ended), now);
}

void TaskQueue::RecordBatch(size_t requests, double seconds) {
  const absl::MutexLock lock(&mutex_);
  batcher_.RecordBatch(requests, seconds);
}

void TaskQueue::Close() {
  const absl::MutexLock lock(&mutex_);
  closed_ = true;
  jobs_.clear();
}

void TaskQueue::CancelAll() {
  cancelled_.store(true, std::memory_order_relaxed);
  Close();
  std::vector<TaskPtr> waiting;
  {
    const absl::MutexLock lock(&mutex_);
    waiting = batcher_.TakeAll();
  }
  const Time now = clock_();
  for (TaskPtr& task : waiting) AnswerUncomputed(std::move(task), ShuttingDown(), now);
}

size_t TaskQueue::size() const {
  const absl::MutexLock lock(&mutex_);
  return batcher_.size();
}

}  // namespace edgewise::server
