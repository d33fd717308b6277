// Biases of scores, by the positions of query and key.
//
// A score and its bias meet in one operation everywhere, bias * log2(e) + score, so no bit depends on whether the
// positions of the keys follow each other.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_BIAS_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_BIAS_INL_

#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/vector.h"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

// base[places[l]] in lane l.
EDGEWISE_INLINE F GatherFloats(const float* base, const int32_t* places) {
#if defined(__AVX512F__)
  return _mm512_i32gather_ps(_mm512_loadu_si512(places), base, 4);
#elif defined(__AVX2__)
  return _mm256_i32gather_ps(base, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(places)), 4);
#else
  F a = {};
  for (int l = 0; l < kLanes; ++l) a[l] = base[places[l]];
  return a;
#endif
}

// Adds the biases to scores[0..kLanes) of a query at `query` and keys at places[0..kLanes). `run`: no gaps.
EDGEWISE_INLINE F AddBias(const BiasView& bias, int64_t query, const int32_t* places, bool run, F scores) {
  const F unit = Broadcast(1.44269504088896340736f);
  if (bias.distance != nullptr) {
    const float* row = bias.distance - query;
    scores = Fma(run ? Load(row + places[0]) : GatherFloats(row, places), unit, scores);
  }
  if (bias.values != nullptr) {
    const float* row = bias.values + query * bias.length;
    scores = Fma(run ? Load(row + places[0]) : GatherFloats(row, places), unit, scores);
  } else if (bias.buckets != nullptr) {
    const uint8_t* row = bias.buckets + query * bias.length;
    alignas(64) int32_t bucket[kLanes];
    for (int l = 0; l < kLanes; ++l) bucket[l] = row[places[l]];
    scores = Fma(GatherFloats(bias.table, bucket), unit, scores);
  }
  return scores;
}

// Adds the biases of one query to the scores of `count` keys, rounded up to whole batches of 16; pads are keys too.
static void AddEdgeBias(const AttendBlock& block, int row, const int32_t* keys, int64_t count, float* scores) {
  const BiasView& bias = *block.bias;
  for (int64_t e = 0; e < count; e += kLanes) {
    alignas(64) int32_t places[kLanes];
    for (int l = 0; l < kLanes; ++l) {
      places[l] = bias.key_positions == nullptr ? keys[e + l] : bias.key_positions[keys[e + l]];
    }
    Store(scores + e, AddBias(bias, block.query_positions[row], places, false, Load(scores + e)));
  }
}

// Positions of the keys of a dense tile.
struct TilePositions {
  alignas(64) int32_t at[kTileKeys];
  uint32_t runs = 0;  // bit per vector of keys: they follow each other
};

// Positions of the keys first_place.. of a block. Places beyond `count` repeat the last, so that they can be read.
static void FindPositions(const AttendBlock& block, int64_t first_place, int count, TilePositions* positions) {
  for (int c = 0; c < kTileKeys; ++c) {
    const int64_t place = first_place + (c < count ? c : count - 1);
    const int64_t key = block.list == nullptr ? place : block.list[place];
    positions->at[c] =
        block.bias->key_positions == nullptr ? static_cast<int32_t>(key) : block.bias->key_positions[key];
  }
  positions->runs = 0;
  for (int v = 0; v < count / kLanes; ++v) {  // vectors without repeats, which ascend strictly
    if (positions->at[(v + 1) * kLanes - 1] - positions->at[v * kLanes] == kLanes - 1) positions->runs |= 1u << v;
  }
}

static void AddTileBias(const AttendBlock& block, int row, const TilePositions& positions, int vectors, float* scores) {
  for (int v = 0; v < vectors; ++v) {
    float* s = scores + v * kLanes;
    Store(s, AddBias(*block.bias, block.query_positions[row], positions.at + v * kLanes, (positions.runs >> v & 1) != 0,
                     Load(s)));
  }
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_BIAS_INL_
