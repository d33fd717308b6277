// The events of one query, by a warp: the same as those of QueryEvents (event_draw.cuh), a step of 64 at a time.
// Compile with -fmad=false.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_EVENT_ROW_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_EVENT_ROW_CUH_

#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/attention/draw_pair.cuh"
#include "kernels/cuda/attention/event_draw.cuh"
#include "kernels/cuda/device/launch.h"
#include "kernels/draw/certificate.h"
#include "kernels/draw/events.h"

namespace edgewise::cuda {

// An event whose rate has to be computed.
struct OpenEvent {
  int32_t key;
  uint32_t event, age, distance;
};

// The fate of an event by its rate, never open. Out of line: few events need it.
__device__ __noinline__ inline EventFate JudgeByRate(const DeviceCall& call, const DeviceProblem& problem,
                                                     const DeviceEventHead& head, int32_t query,
                                                     const OpenEvent& event) {
  const DrawnPairs pairs(call, problem, head.head);
  const float rate = pairs.Rate(query, event.key), mean_gap = head.mean_gap[query];
  const EventFate fate = JudgeEvent(problem.law, rate, mean_gap, event.age, event.distance);
  if (fate != EventFate::kOpen) return fate;
  const uint32_t fraction = pairs.EventWords(query, kStreamEventFractions, event.event).word[0];
  return AcceptOpenEvent(problem.law, rate, mean_gap, event.age, event.distance, fraction) ? EventFate::kAccepted
                                                                                           : EventFate::kRejected;
}

// 1. A thread has two neighbouring events, which share a block of random numbers; ages come by a scan.
// 2. A place finds its key by the guide.
// 3. The parts of memberships along and across the head's direction bound the rate, which settles most events (Judge).
// 4. The others queue up in shared memory. A warp's width of them get the bounds of their whole certificates, a thread
//    each, and of the few that are left the rate itself (Settle).
// 5. Pairs of a heavy query or key are asked one by one.
class EventRow {
 public:
  static constexpr int kQueue = kWarpSize - 1 + 2 * kWarpSize;

  // `queue` [kQueue] in shared memory of the warp.
  __device__ EventRow(const DeviceCall& call, const DeviceProblem& problem, const DeviceEventHead& head,
                      const DrawnPairs& pairs, OpenEvent* queue)
      : call_(call), problem_(problem), head_(head), pairs_(pairs), queue_(queue), lane_(ThisThread() % kWarpSize) {}

  // Calls visit(key, age) for the accepted events that are younger than `limit`, and for heavy pairs that are edges; by
  // single threads, in any order.
  template <typename Visit>
  __device__ void ForAccepted(int32_t query, uint32_t limit, const Visit& visit) {
    query_ = query;
    mean_gap_ = head_.mean_gap[query];
    const bool heavy = !(mean_gap_ > 0.0f);
    if (!heavy) ForLight(limit, visit);
    const DrawnPairs pairs(call_, problem_, head_.head);  // again, so that it takes no registers before
    const QueryEvents events(problem_, head_, pairs, query);
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
    const float4 query = __ldg(reinterpret_cast<const float4*>(head_.query_certificates + query_));
    along_ = query.x;
    across_ = query.z;
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
      while (queued_ >= kWarpSize) Settle(visit);
    }
    while (queued_ > 0) Settle(visit);
  }

  // Finds the event's key and distance, and its fate as far as bounds of the rate tell.
  __device__ EventFate Judge(uint32_t place, OpenEvent& event) const {
    event.key = KeyOfPlace(problem_, head_, place);
    if (event.key >= problem_.tokens) return EventFate::kRejected;
    event.distance = __ldg(head_.places + event.key + 1) - 1 - place;
    const float4 key =
        __ldg(reinterpret_cast<const float4*>(head_.key_certificates + event.key));  // along, scale, across
    const float along = along_ * key.x, across = across_ * key.z;
    return JudgeWithin({along - across, along + across}, event);
  }

  // JudgeEvent grows with the rate.
  __device__ EventFate JudgeWithin(const ProductInterval& products, const OpenEvent& event) const {
    const float low = EdgeRate(products.low, problem_.exploration);
    if (JudgeEvent(problem_.law, low, mean_gap_, event.age, event.distance) == EventFate::kAccepted) {
      return EventFate::kAccepted;
    }
    const float high = EdgeRate(products.high, problem_.exploration);
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
    const int count = min(queued_, kWarpSize);
    queued_ -= count;
    __syncwarp(kWholeWarp);
    if (lane_ < count) {
      const OpenEvent event = queue_[queued_ + lane_];
      EventFate fate = JudgeWithin(BoundProduct(head_.query_certificates[query_], head_.key_certificates[event.key],
                                                RestsDot(event.key), call_.rank),
                                   event);
      if (fate == EventFate::kOpen) fate = JudgeByRate(call_, problem_, head_, query_, queue_[queued_ + lane_]);
      if (fate == EventFate::kAccepted) visit(event.key, event.age);
    }
    __syncwarp(kWholeWarp);
  }

  __device__ int32_t RestsDot(int32_t key) const {
    const auto* a = reinterpret_cast<const uint4*>(head_.query_rests + int64_t{query_} * (call_.rank / 4));
    const auto* b = reinterpret_cast<const uint4*>(head_.key_rests + int64_t{key} * (call_.rank / 4));
    int32_t sum = 0;
#pragma unroll 1
    for (int i = 0; i < call_.rank / 16; ++i) {
      const uint4 x = __ldg(a + i), y = __ldg(b + i);
      sum = __dp4a(static_cast<int>(x.x), static_cast<int>(y.x), sum);
      sum = __dp4a(static_cast<int>(x.y), static_cast<int>(y.y), sum);
      sum = __dp4a(static_cast<int>(x.z), static_cast<int>(y.z), sum);
      sum = __dp4a(static_cast<int>(x.w), static_cast<int>(y.w), sum);
    }
    return sum;
  }

  const DeviceCall& call_;
  const DeviceProblem& problem_;
  const DeviceEventHead& head_;
  const DrawnPairs& pairs_;
  OpenEvent* const queue_;
  const int lane_;
  int32_t query_ = 0;
  float mean_gap_ = 0.0f;
  float along_ = 0.0f, across_ = 0.0f;  // of the query's certificate
  int queued_ = 0;
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_EVENT_ROW_CUH_
