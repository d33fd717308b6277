// The events of one query (kernels/events.h), plainly: a warp draws them, a thread an event. Compile with -fmad=false.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_EVENT_DRAW_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_EVENT_DRAW_CUH_

#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/attention/draw_pair.cuh"
#include "kernels/cuda/device/launch.h"
#include "kernels/events.h"

namespace edgewise::cuda {

__device__ inline double EventAge(uint32_t age) { return static_cast<double>(age) * 0x1p-31; }

// The tables of one head; null where it is drawn pair by pair.
__device__ inline const DeviceEventHead* EventHeadOf(const DeviceCall& call, const DeviceProblem& problem,
                                                     int32_t head) {
  return IsEventHead(call, problem, head) ? call.event_heads + problem.event_head + head : nullptr;
}

// The events of one query, by one thread.
class QueryEvents {
 public:
  __device__ QueryEvents(const DeviceProblem& problem, const DeviceEventHead& head, const DrawnPairs& pairs,
                         int32_t query)
      : problem_(problem), head_(head), pairs_(pairs), query_(query), mean_gap_(head.mean_gap[query]) {}

  __device__ bool heavy() const { return !(mean_gap_ > 0.0f); }
  __device__ uint32_t Gap(uint32_t event) const {
    return EventGap(WordOf(pairs_.EventWords(query_, kStreamEvents, event / 2), event % 2 * 2), mean_gap_);
  }
  // The key that accepts an event, or -1.
  __device__ int32_t Accept(uint32_t event, uint32_t age) const {
    const uint32_t place = WordOf(pairs_.EventWords(query_, kStreamEvents, event / 2), event % 2 * 2 + 1);
    int32_t key = 0, end = problem_.tokens + 1;  // places[key] <= place < places[end]
    while (end - key > 1) {
      const int32_t middle = key + (end - key) / 2;
      if (head_.places[middle] <= place) {
        key = middle;
      } else {
        end = middle;
      }
    }
    // Keys without places begin where the next one does, so the last that begins here has the place.
    if (key >= problem_.tokens) return -1;
    const float rate = pairs_.Rate(query_, key);
    const uint32_t distance = head_.places[key + 1] - 1 - place;
    const EventFate fate = JudgeEvent(problem_.law, rate, mean_gap_, age, distance);
    if (fate == EventFate::kOpen) {
      const uint32_t fraction = WordOf(pairs_.EventWords(query_, kStreamEventFractions, event), 0);
      return AcceptOpenEvent(problem_.law, rate, mean_gap_, age, distance, fraction) ? key : -1;
    }
    return fate == EventFate::kAccepted ? key : -1;
  }
  // Whether a pair of a heavy query or key is an edge, and its age.
  __device__ bool HeavyPair(int32_t key, uint32_t* age) const {
    const float rate = pairs_.Rate(query_, key);
    const uint64_t uniform = pairs_.Uniform(query_, key);
    if (!IsBelowThreshold(Law::kBernoulli, uniform, rate)) return false;
    *age = HeavyPairAge(uniform, rate);
    return true;
  }

 private:
  const DeviceProblem& problem_;
  const DeviceEventHead& head_;
  const DrawnPairs& pairs_;
  const int32_t query_;
  const float mean_gap_;
};

// Accepted events of a pair that are younger than tau. By one thread; not cheap.
__device__ __noinline__ inline int CountEvents(const DeviceProblem& problem, const DeviceEventHead& head,
                                               const DrawnPairs& pairs, int32_t query, int32_t key, double tau) {
  const QueryEvents events(problem, head, pairs, query);
  int count = 0;
  uint32_t age = 0;
  for (uint32_t event = 0; !events.heavy(); ++event) {
    age += events.Gap(event);
    if (age >= kEventAgeOne || !(EventAge(age) < tau)) break;
    count += events.Accept(event, age) == key ? 1 : 0;
  }
  return count;
}

// Calls visit(key, age) for the accepted events of a query that are younger than `limit`, and for its heavy pairs that
// are edges; by a whole warp, in any order and by single threads.
template <typename Visit>
__device__ void ForEvents(const DeviceProblem& problem, const DeviceEventHead& head, const DrawnPairs& pairs,
                          int32_t query, uint32_t limit, const Visit& visit) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const QueryEvents events(problem, head, pairs, query);
  uint32_t base = 0;
  for (uint32_t first = 0; !events.heavy(); first += kWarpSize) {
    const uint32_t event = first + static_cast<uint32_t>(lane);
    uint32_t age = events.Gap(event);
    for (int step = 1; step < kWarpSize; step *= 2) {
      const uint32_t before = __shfl_up_sync(kWholeWarp, age, static_cast<unsigned>(step));
      if (lane >= step) age += before;
    }
    age += base;
    base = __shfl_sync(kWholeWarp, age, kWarpSize - 1);
    const uint32_t old = __ballot_sync(kWholeWarp, !(age < limit));
    const bool young = old == 0 || lane < __ffs(static_cast<int>(old)) - 1;  // ages beyond an old one may have wrapped
    const int32_t key = young ? events.Accept(event, age) : -1;
    if (key >= 0) visit(key, age);
    if (old != 0) break;
  }
  const int32_t pair_count = events.heavy() ? problem.tokens : head.heavy_keys;
  for (int32_t place = lane; place < pair_count; place += kWarpSize) {
    const int32_t key = events.heavy() ? place : head.heavy[place];
    uint32_t age = 0;
    if (events.HeavyPair(key, &age) && age < limit) visit(key, age);
  }
}

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_EVENT_DRAW_CUH_
