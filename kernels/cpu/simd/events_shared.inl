// Shared by the two ways to draw events.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_EVENTS_SHARED_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_EVENTS_SHARED_INL_

#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/philox_words.inl"
#include "kernels/cpu/simd/vector.h"
#include "kernels/draw/events.h"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

EDGEWISE_INLINE uint32_t PositionOf(const EventDraw& draw, int64_t token) {
  return static_cast<uint32_t>(draw.positions == nullptr ? token : draw.positions[token]);
}

// EdgeRate of 16 inner products.
EDGEWISE_INLINE void TakeRates(const EventDraw& draw, float* dots) {
  for (int k = 0; k < 16; ++k) {
    const float p = (dots[k] > 0.0f ? dots[k] : 0.0f) + draw.exploration;
    dots[k] = p < 1.0f ? p : 1.0f;
  }
}

// Event `index` of a query; its age and distance are known.
EDGEWISE_INLINE bool Accepts(const EventDraw& draw, uint32_t query, float mean_gap, uint32_t index, float rate,
                             uint32_t age, uint32_t distance) {
  const EventFate fate = JudgeEvent(draw.law, rate, mean_gap, age, distance);
  if (fate != EventFate::kOpen) return fate == EventFate::kAccepted;
  uint32_t words[4] = {index, query, draw.fractions_word, draw.sample};
  MixWords(draw.seed, words);
  return AcceptOpenEvent(draw.law, rate, mean_gap, age, distance, words[0]);
}

static int64_t DrawHeavyPairs(const EventDraw& draw, int64_t query, const int32_t* keys, int64_t count, uint32_t limit,
                              int32_t* edge_key, uint32_t* edge_age) {
  const DotOperand<0> x = LoadOperand<0>(draw.x + query * draw.rank);
  const uint32_t query_position = PositionOf(draw, query);
  int64_t edges = 0;
  for (int64_t first = 0; first < count; first += 16) {
    int32_t list[16];
    float rates[16];
    for (int k = 0; k < 16; ++k) {
      const int64_t place = first + k < count ? first + k : count - 1;
      list[k] = keys == nullptr ? static_cast<int32_t>(place) : keys[place];
    }
    StoreDots16<0>(x, draw.rank / 16, draw.y, draw.rank, list, rates);
    TakeRates(draw, rates);
    for (int k = 0; k < 16 && first + k < count; ++k) {
      const uint32_t position = PositionOf(draw, list[k]), column = position & 63u;
      const uint32_t byte_index = (column >> 3) * 2 + (column & 1u);
      uint32_t words[4] = {(position >> 6) * 4 + (column >> 1 & 3u), query_position, draw.bytes_word, draw.sample};
      MixWords(draw.seed, words);
      const uint32_t byte = words[byte_index >> 2] >> (8 * (byte_index & 3u)) & 0xFFu;
      if (static_cast<float>(byte) > 256.0f * rates[k]) continue;
      uint32_t low[4] = {position >> 2, query_position, draw.low_word, draw.sample};
      MixWords(draw.seed, low);
      const uint64_t uniform = static_cast<uint64_t>(byte) << 32 | low[position & 3u];
      if (!(static_cast<double>(uniform) < static_cast<double>(rates[k]) * 1099511627776.0)) continue;
      edge_key[edges] = list[k];
      edge_age[edges] = HeavyPairAge(uniform, rates[k]);
      edges += edge_age[edges] < limit ? 1 : 0;
    }
  }
  return edges;
}

static void SumRows(const float* rows, int64_t count, int rank, float* sums) {
  for (int t = 0; t < rank; t += kLanes) {
    F sum = Zero();
    for (int64_t r = 0; r < count; ++r) sum = sum + Load(rows + r * rank + t);
    Store(sums + t, sum);
  }
}

// By one bit a key.
EDGEWISE_INLINE int64_t SortByBits(const int32_t* keys, int64_t count, int64_t n, uint64_t* bits, int32_t* out) {
  const int64_t words = (n + 63) / 64;
  for (int64_t e = 0; e < count; ++e) bits[keys[e] >> 6] |= uint64_t{1} << (keys[e] & 63);
  const int64_t size = ListBits(bits, words, 0, out);
  for (int64_t word = 0; word < words; ++word) bits[word] = 0;
  return size;
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_EVENTS_SHARED_INL_
