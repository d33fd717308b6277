// How many words of 32 bits the drawn edges of a head take, at most, known before any is drawn.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_LISTS_H_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_LISTS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/cuda/attention/call.h"
#include "kernels/draw/event_rule.h"

namespace edgewise::cuda {

// Words of the bits of some queries of a head, even.
EDGEWISE_HOST_DEVICE inline int64_t BitsWords(const DeviceProblem& problem, int32_t queries) {
  const int64_t blocks = (queries + kTileQueries - 1) / kTileQueries;
  const int64_t tiles = (problem.tokens + kTileKeys - 1) / kTileKeys;
  return blocks * tiles * kTileQueries * 2 * (problem.law == Law::kPoissonMulti ? 2 : 1);
}

// Words of an edge in a list.
EDGEWISE_HOST_DEVICE inline int64_t ListedWords(const DeviceProblem& problem) { return problem.cap >= 0 ? 2 : 1; }

// The most words of the lists of a head. The rule of events bounds the mean of its edges: kEventMostDensity of all
// pairs. Edges are drawn independently of each other, so that twelve deviations above it are not seen in the life of a
// server. Without the rule every pair has room.
inline int64_t MostListWords(const DeviceProblem& problem) {
  if (problem.event_head < 0) return 0;
  const int64_t n = problem.tokens, pairs = n * n;
  if (problem.way != DrawWay::kRule) return pairs * ListedWords(problem);
  const double mean = kEventMostDensity * static_cast<double>(pairs);
  const int64_t forced = problem.local_window > 0 ? int64_t{problem.local_window} + 1 : problem.self_loops ? 1 : 0;
  const int64_t most = static_cast<int64_t>(mean + 12.0 * std::sqrt(mean)) + 64 + forced * n;
  return std::min(pairs, most) * ListedWords(problem);
}

// A row while it is drawn by events, in shared memory: a bit for each key, another where edges may count more than
// once, and the edges before every kWordsPerSum words.
inline constexpr int kWordsPerSum = 4;
EDGEWISE_HOST_DEVICE constexpr int EventRowWords(int32_t tokens) { return (tokens + 127) / 128 * kWordsPerSum; }
EDGEWISE_HOST_DEVICE constexpr int64_t EventRowBytes(int32_t tokens, bool multi) {
  return int64_t{EventRowWords(tokens)} * (multi ? 8 : 4) + EventRowWords(tokens) / kWordsPerSum * 4;
}

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_LISTS_H_
