// A scheduler and what it is given: requests, generations, passes that run.
#ifndef EDGEWISE_TESTS_SERVER_SCHEDULER_FIXTURE_H_
#define EDGEWISE_TESTS_SERVER_SCHEDULER_FIXTURE_H_

#include <gtest/gtest.h>

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
  request->cost = cost;
  request->priority = priority;
  request->deadline = deadline;
  static const auto* const kModel = new std::shared_ptr<const LoadedModel>(std::make_shared<LoadedModel>());
  request->model = *kModel;
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

inline Turn Next(Scheduler& scheduler, const std::vector<RunningPass>& running, const PerLevel<bool>& generations,
                 Time now) {
  scheduler.SetRunning(running);
  return scheduler.Next(generations, now);
}

// The requests that start next, where nothing runs.
inline std::vector<RequestPtr> NextBatch(Scheduler& scheduler) {
  const Turn turn = Next(scheduler, {}, {}, kStart);
  if (turn.kind != Turn::kStart) return {};
  return scheduler.TakeBatch(turn.level, kStart);
}

// Who starts next; null: nobody.
inline const Request* NextOf(Scheduler& scheduler) {
  const std::vector<RequestPtr> batch = NextBatch(scheduler);
  EXPECT_LE(batch.size(), 1u);
  return batch.empty() ? nullptr : batch[0].get();
}

// A request that takes so long on an idle server.
inline RequestPtr Taking(double predicted, uint32_t priority = kDefaultPriority, Time deadline = Time::max()) {
  RequestPtr request = MakeRequest(1, priority, deadline);
  request->predicted_seconds = predicted;
  return request;
}

inline constexpr uint32_t kLevel = kDefaultPriority - 1;
inline RunningPass Pass(double remaining, uint32_t level = kLevel, Time stepped = kStart) {
  return {level, remaining, stepped};
}

inline RequestPtr MakeGeneration(uint64_t cache_bytes = 1, uint32_t priority = kDefaultPriority) {
  RequestPtr request = MakeRequest(1, priority);
  request->generation = std::make_unique<GenerationWork>();
  request->generation->cache_bytes.ahead = cache_bytes;
  return request;
}

}  // namespace edgewise::server

#endif  // EDGEWISE_TESTS_SERVER_SCHEDULER_FIXTURE_H_
