// The events of one query, by a warp: the same as those of QueryEvents (event_draw.cuh), a step of 64 at a time.
// Compile with -fmad=false.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_EVENT_ROW_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_EVENT_ROW_CUH_

#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/attention/draw_pair.cuh"
#include "kernels/cuda/attention/event_draw.cuh"
#include "kernels/cuda/device/launch.h"
#include "kernels/events.h"

namespace edgewise::cuda {

// An event whose rate has to be computed.
struct OpenEvent {
  int32_t key;
  uint32_t event, age, distance;
};

// 1. A thread has two neighbouring events, which share a block of random numbers; ages come by a scan.
// 2. A place finds its key by the guide.
// 3. Bounds of the rate, from the memberships' parts along and across the head's direction, settle most events (Judge).
// 4. The others queue up in shared memory. kAtOnce of them get the rate itself, 4 threads each (Settle).
// 5. Pairs of a heavy query or key are asked one by one.
class EventRow {
 public:
  static constexpr int kAtOnce = 16;
  static constexpr int kQueue = kAtOnce - 1 + 2 * kWarpSize;

  // `queue` [kQueue] in shared memory of the warp.
  __device__ EventRow(const DeviceProblem& problem, const DeviceEventHead& head, const DrawnPairs& pairs, int32_t rank,
                      OpenEvent* queue)
      : problem_(problem),
        head_(head),
        pairs_(pairs),
        rank_(rank),
        queue_(queue),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize) {}

  // Calls visit(key, age) for the accepted events that are younger than `limit`, and for heavy pairs that are edges; by
  // single threads, in any order.
  template <typename Visit>
  __device__ void ForAccepted(int32_t query, uint32_t limit, const Visit& visit) {
    query_ = query;
    mean_gap_ = head_.mean_gap[query];
    const bool heavy = !(mean_gap_ > 0.0f);
    if (!heavy) ForLight(limit, visit);
    const QueryEvents events(problem_, head_, pairs_, query);
    const int32_t pair_count = heavy ? problem_.tokens : head_.heavy_keys;
    for (int32_t place = lane_; place < pair_count; place += kWarpSize) {
      const int32_t key = heavy ? place : head_.heavy[place];
      uint32_t age = 0;
      if (events.HeavyPair(key, &age) && age < limit) visit(key, age);
    }
  }

 private:
  template <typename Visit>
  __device__ void ForLight(uint32_t limit, const Visit& visit) {
    parts_ = head_.query_parts[query_];
    queued_ = 0;
    uint32_t base = 0;
    bool last = false;
    for (uint32_t block = 0; !last; block += kWarpSize) {
      const PhiloxBlock words = pairs_.EventWords(query_, kStreamEvents, block + static_cast<uint32_t>(lane_));
      const uint32_t second = EventGap(words.word[2], mean_gap_);
      uint32_t through = EventGap(words.word[0], mean_gap_) + second;
      for (int step = 1; step < kWarpSize; step *= 2) {
        const uint32_t before = __shfl_up_sync(kWholeWarp, through, static_cast<unsigned>(step));
        if (lane_ >= step) through += before;
      }
      const uint32_t ages[2] = {base + through - second, base + through};
      base += __shfl_sync(kWholeWarp, through, kWarpSize - 1);
      const uint32_t old = __ballot_sync(kWholeWarp, !(ages[0] < limit) || !(ages[1] < limit));
      const int end =
          old == 0 ? kWarpSize : __ffs(static_cast<int>(old)) - 1;  // ages beyond an old one may have wrapped
      const bool young[2] = {lane_ < end || (lane_ == end && ages[0] < limit), lane_ < end};
      last = old != 0;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        OpenEvent event = {-1, 2 * (block + static_cast<uint32_t>(lane_)) + static_cast<uint32_t>(e), ages[e], 0};
        EventFate fate = EventFate::kRejected;
        if (young[e]) fate = Judge(words.word[2 * e + 1], event);
        if (fate == EventFate::kAccepted) visit(event.key, event.age);
        Queue(fate == EventFate::kOpen, event);
      }
      while (queued_ >= kAtOnce) Settle(visit);
    }
    while (queued_ > 0) Settle(visit);
  }

  // Finds the event's key and distance, and its fate as far as bounds of the rate tell.
  __device__ EventFate Judge(uint32_t place, OpenEvent& event) const {
    event.key = KeyOfPlace(problem_, head_, place);
    if (event.key >= problem_.tokens) return EventFate::kRejected;
    event.distance = __ldg(head_.places + event.key + 1) - 1 - place;
    const float2 key = __ldg(reinterpret_cast<const float2*>(head_.key_parts + event.key));
    const float along = parts_.along * key.x, across = parts_.across * key.y;
    // JudgeEvent grows with the rate.
    const float low = EdgeRate(along - across, problem_.exploration);
    if (JudgeEvent(problem_.law, low, mean_gap_, event.age, event.distance) == EventFate::kAccepted) {
      return EventFate::kAccepted;
    }
    const float high = EdgeRate(along + across, problem_.exploration);
    const EventFate fate = JudgeEvent(problem_.law, high, mean_gap_, event.age, event.distance);
    return fate == EventFate::kRejected ? fate : EventFate::kOpen;
  }

  __device__ void Queue(bool open, const OpenEvent& event) {
    const uint32_t them = __ballot_sync(kWholeWarp, open);
    if (open) queue_[queued_ + __popc(them & ((1u << lane_) - 1))] = event;
    queued_ += __popc(them);
  }

  // The last of the queue.
  template <typename Visit>
  __device__ void Settle(const Visit& visit) {
    const int count = min(queued_, kAtOnce);
    queued_ -= count;
    __syncwarp(kWholeWarp);
    const int part = lane_ % 4;
    const auto* query = reinterpret_cast<const float4*>(pairs_.Query(query_)) + part;
    float4 sums[2] = {make_float4(0.0f, 0.0f, 0.0f, 0.0f), make_float4(0.0f, 0.0f, 0.0f, 0.0f)};
    const float4* keys[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t key = queue_[queued_ + min(lane_ / 4 + 8 * i, count - 1)].key;
      keys[i] = reinterpret_cast<const float4*>(pairs_.Key(key)) + part;
    }
#pragma unroll 1
    for (int column = 0; column < rank_; column += kDotLanes) {
      const float4 x = __ldg(query + column / 4);
#pragma unroll
      for (int i = 0; i < 2; ++i) AddProducts(x, __ldg(keys[i] + column / 4), sums[i]);
    }
    const float dots[2] = {SumOfFour(sums[0]), SumOfFour(sums[1])};
    // Threads 0 and 1 of four take an event each.
    const int slot = lane_ / 4 + 8 * part;
    if (part < 2 && slot < count) {
      const OpenEvent event = queue_[queued_ + slot];
      const float rate = EdgeRate(dots[part == 0 ? 0 : 1], problem_.exploration);
      const EventFate fate = JudgeEvent(problem_.law, rate, mean_gap_, event.age, event.distance);
      bool accepted = fate == EventFate::kAccepted;
      if (fate == EventFate::kOpen) {
        const uint32_t fraction = pairs_.EventWords(query_, kStreamEventFractions, event.event).word[0];
        accepted = AcceptOpenEvent(problem_.law, rate, mean_gap_, event.age, event.distance, fraction);
      }
      if (accepted) visit(event.key, event.age);
    }
    __syncwarp(kWholeWarp);
  }

  const DeviceProblem& problem_;
  const DeviceEventHead& head_;
  const DrawnPairs& pairs_;
  const int32_t rank_;
  OpenEvent* const queue_;
  const int lane_;
  int32_t query_ = 0;
  float mean_gap_ = 0.0f;
  MembershipParts parts_ = {0.0f, 0.0f};
  int queued_ = 0;
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_EVENT_ROW_CUH_
