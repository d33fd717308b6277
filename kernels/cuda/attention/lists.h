// How much memory the drawn edges of a head take, known before any is drawn. Host code, but for EventRowBytes.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_LISTS_H_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_LISTS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/cuda/attention/call.h"
#include "kernels/event_rule.h"

namespace edgewise::cuda {

// Edges that the lists of `queries` queries of a head have room for; 0: the head is not drawn by events. Of whole heads
// the rule of events bounds the mean of drawn edges: kEventMostDensity of all pairs. Edges are drawn independently of
// each other, so that twelve deviations above it are not seen in the life of a server. Otherwise every pair has room.
inline int64_t ListRoom(const DeviceProblem& problem, int32_t queries) {
  if (problem.event_head < 0) return 0;
  const int64_t n = problem.tokens, pairs = queries * n, most = std::min<int64_t>(pairs, 0x7FFFFFFF);
  if (queries < n || problem.way != DrawWay::kRule) return most;
  const double mean = kEventMostDensity * static_cast<double>(pairs);
  const int64_t forced = problem.local_window > 0 ? int64_t{problem.local_window} + 1 : problem.self_loops ? 1 : 0;
  return std::min(most, static_cast<int64_t>(mean + 12.0 * std::sqrt(mean)) + 64 + forced * n);
}

// Bytes of a slot's lists before the keys: EdgeList in lists.cuh.
inline int64_t ListHeadBytes(int32_t queries) { return kSlotAlignment + 2 * ((queries + 3) / 4 * 16); }

// Bytes of a slot, a multiple of kSlotAlignment.
inline int64_t SlotBytes(const DeviceProblem& problem, int32_t queries) {
  const auto blocks = [](int64_t count) { return (count + kTileKeys - 1) / kTileKeys; };
  const int64_t bits = blocks(queries) * blocks(problem.tokens) * kTileQueries * 8;
  const int64_t room = (ListRoom(problem, queries) + 3) / 4 * 4;
  const int64_t lists = room == 0 ? 0 : ListHeadBytes(queries) + room * 4 * (problem.cap >= 0 ? 2 : 1);
  return std::max(lists, bits * (problem.law == Law::kPoissonMulti ? 2 : 1));
}

// Of a row while it is drawn by events, in shared memory: a bit for each key, another where edges may count more than
// once, and the edges before every kWordsPerSum words.
inline constexpr int kWordsPerSum = 4;
EDGEWISE_HOST_DEVICE constexpr int EventRowWords(int32_t tokens) { return (tokens + 127) / 128 * kWordsPerSum; }
EDGEWISE_HOST_DEVICE constexpr int64_t EventRowBytes(int32_t tokens, bool multi) {
  return int64_t{EventRowWords(tokens)} * (multi ? 8 : 4) + EventRowWords(tokens) / kWordsPerSum * 4;
}

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_LISTS_H_
