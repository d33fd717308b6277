// A scheduler and what it is given: requests, generations, passes that run.
#ifndef EDGEWISE_TESTS_SERVER_SCHEDULER_FIXTURE_H_
#define EDGEWISE_TESTS_SERVER_SCHEDULER_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "server/models/repository.h"
#include "server/schedule/scheduler.h"

namespace edgewise::server {

inline const Time kStart = Time() + std::chrono::seconds(100);

// Of a model that was never measured.
inline RequestPtr MakeRequest(uint64_t cost = 1, uint32_t priority = kDefaultPriority, Time deadline = Time::max()) {
  auto request = std::make_unique<Request>();
  request->work.cost = cost;
  request->ticket.priority = priority;
  request->ticket.deadline = deadline;
  static const auto* const kModel = new std::shared_ptr<const LoadedModel>(std::make_shared<LoadedModel>());
  request->ticket.model = *kModel;
  return request;
}

// Nothing leaves the lines: nothing that waits has ended.
inline absl::Status Push(Scheduler& scheduler, RequestPtr& request) {
  std::vector<EndedRequest> ended;
  absl::Status status = scheduler.Add(request, kStart, ended);
  EXPECT_TRUE(ended.empty());
  return status;
}

// Adds and returns the request's address, which is its identity.
inline const Request* Add(Scheduler& scheduler, RequestPtr request) {
  const Request* address = request.get();
  EXPECT_TRUE(Push(scheduler, request).ok());
  EXPECT_EQ(request, nullptr);
  return address;
}

// Tests say what runs.
class TestScheduler : public Scheduler {
 public:
  explicit TestScheduler(QueueLimits limits = {}) : Scheduler(limits) {}

  // From now on these passes run and no others.
  void Run(const std::vector<RunningPass>& passes) {
    const std::vector<RunningPass> before = std::exchange(running_, passes);
    for (RunningPass& pass : running_) pass.number = Started(pass);
    for (const RunningPass& pass : before) Ended(pass.number);
    CloseIdle();
  }
  std::vector<RequestPtr> TakeBatch(Turn& turn, Time now) {
    std::vector<RequestPtr> batch = Scheduler::TakeBatch(turn, now);
    running_.push_back({.number = turn.pass});
    return batch;
  }
  // The turn took so long.
  void Charge(const Turn& turn, double seconds) {
    if (turn.kind == Turn::kGeneration) return Generated(turn.level, seconds);
    Stepped(turn.pass, running_[IndexOf(turn)].progress, seconds);
  }
  // Where its pass is in the list of Run.
  size_t IndexOf(const Turn& turn) const {
    const auto is = [&turn](const RunningPass& pass) { return pass.number == turn.pass; };
    return static_cast<size_t>(std::find_if(running_.begin(), running_.end(), is) - running_.begin());
  }

 private:
  std::vector<RunningPass> running_;
};

inline Turn Next(TestScheduler& scheduler, const std::vector<RunningPass>& running, const PerLevel<bool>& generations,
                 Time now) {
  scheduler.Run(running);
  return scheduler.Next(generations, now);
}

// The requests that start next, where nothing runs.
inline std::vector<RequestPtr> NextBatch(TestScheduler& scheduler) {
  Turn turn = Next(scheduler, {}, {}, kStart);
  if (turn.kind != Turn::kStart) return {};
  return scheduler.TakeBatch(turn, kStart);
}

// Who starts next; null: nobody.
inline const Request* NextOf(TestScheduler& scheduler) {
  const std::vector<RequestPtr> batch = NextBatch(scheduler);
  EXPECT_LE(batch.size(), 1u);
  return batch.empty() ? nullptr : batch[0].get();
}

// A request that takes so long on an idle server.
inline RequestPtr Taking(double predicted, uint32_t priority = kDefaultPriority, Time deadline = Time::max()) {
  RequestPtr request = MakeRequest(1, priority, deadline);
  request->forecast.seconds = predicted;
  return request;
}

inline constexpr uint32_t kLevel = kDefaultPriority - 1;
inline RunningPass Pass(double remaining, uint32_t level = kLevel, Time stepped = kStart) {
  return {.level = level, .progress = {.remaining = remaining, .stepped = stepped}};
}

inline RequestPtr MakeGeneration(uint64_t cache_bytes = 1, uint32_t priority = kDefaultPriority) {
  RequestPtr request = MakeRequest(1, priority);
  request->work.generation.emplace();
  request->work.generation->cache_bytes.ahead = cache_bytes;
  return request;
}

}  // namespace edgewise::server

#endif  // EDGEWISE_TESTS_SERVER_SCHEDULER_FIXTURE_H_
