// The events of one query (kernels/draw/events.h), plainly and by one thread. Compile with -fmad=false.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_EVENT_DRAW_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_EVENT_DRAW_CUH_

#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/attention/draw_pair.cuh"
#include "kernels/cuda/device/launch.h"
#include "kernels/draw/events.h"

namespace edgewise::cuda {

__device__ inline double EventAge(uint32_t age) { return static_cast<double>(age) * 0x1p-31; }

// The tables of one head; null where it is drawn pair by pair.
__device__ inline const DeviceEventHead* EventHeadOf(const DeviceCall& call, const DeviceProblem& problem,
                                                     int32_t head) {
  return IsEventHead(call, problem, head) ? call.event_heads + problem.event_head + head : nullptr;
}

// The key that has a place, at least the number of tokens where none has.
__device__ inline int32_t KeyOfPlace(const DeviceProblem& problem, const DeviceEventHead& head, uint32_t place) {
  int32_t key = __ldg(head.guide + (place >> (32 - head.guide_bits)));
  // Keys without places begin where the next one does, so the last that begins here has the place.
  while (key < problem.tokens && __ldg(head.places + key + 1) <= place) ++key;
  return key;
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
    const int32_t key = KeyOfPlace(problem_, head_, place);
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

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_EVENT_DRAW_CUH_
