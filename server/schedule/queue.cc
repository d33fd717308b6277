#include "server/schedule/queue.h"

#include <utility>

#include "server/status_details.h"

namespace edgewise::server {
namespace {

constexpr auto kAWhile = std::chrono::milliseconds(20);

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
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return ShuttingDown();
    status = batcher_.Add(task, now);
    if (absl::IsResourceExhausted(status)) {  // ended tasks make room
      ended = batcher_.TakeEnded(now);
      if (!ended.empty()) status = batcher_.Add(task, now);
    }
  }
  if (status.ok()) changed_.notify_one();
  AnswerAll(std::move(ended), now);
  return status;
}

void TaskQueue::Post(std::function<void()> job) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return;
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

Work TaskQueue::Next(Wait wait, const GenerationRoom& room) {
  while (true) {
    Work work;
    std::vector<EndedTask> ended;
    bool closed = false;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      auto waits = [&] { return !jobs_.empty() || batcher_.HasBatch() || batcher_.HasGeneration(room); };
      if (wait == Wait::kForWork) changed_.wait(lock, [&] { return closed_ || waits(); });
      if (wait == Wait::kAWhile) changed_.wait_for(lock, kAWhile, [&] { return woken_ || cancelled() || waits(); });
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
  std::lock_guard<std::mutex> lock(mutex_);
  return batcher_.NextGeneration(room);
}

void TaskQueue::Wake() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    woken_ = true;
  }
  changed_.notify_one();
}

void TaskQueue::AnswerEnded() {
  std::vector<EndedTask> ended;
  const Time now = clock_();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ended = batcher_.TakeEnded(now);
  }
  AnswerAll(std::move(ended), now);
}

void TaskQueue::RecordBatch(size_t requests, double seconds) {
  std::lock_guard<std::mutex> lock(mutex_);
  batcher_.RecordBatch(requests, seconds);
}

void TaskQueue::Close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    jobs_.clear();
  }
  changed_.notify_all();
}

void TaskQueue::CancelAll() {
  cancelled_.store(true, std::memory_order_relaxed);
  Close();
  std::vector<TaskPtr> waiting;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting = batcher_.TakeAll();
  }
  const Time now = clock_();
  for (TaskPtr& task : waiting) AnswerUncomputed(std::move(task), ShuttingDown(), now);
}

size_t TaskQueue::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return batcher_.size();
}

}  // namespace edgewise::server
