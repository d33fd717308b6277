// Drawing events in plain C++: the edges of kernels/draw/events.h, bit for bit, in the steps of events_avx512.inl.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_EVENTS_PORTABLE_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_EVENTS_PORTABLE_INL_

#include "kernels/cpu/simd/draw_portable.inl"
#include "kernels/cpu/simd/events_shared.inl"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

inline constexpr int kEventStep = 32;  // events of 16 blocks of random numbers

// Ages and places of a row's events younger than `limit`. Returns their number, or -1 without room for them.
EDGEWISE_INLINE int64_t RowEvents(const EventDraw& draw, uint32_t query, float mean_gap, uint32_t limit,
                                  const EventScratch& scratch) {
  uint32_t age = 0;
  for (int64_t at = 0;; at += kEventStep) {
    if (at + kEventStep > scratch.capacity) return -1;
    PhiloxLanes c;
    for (int l = 0; l < 16; ++l) {
      c.c0[l] = static_cast<uint32_t>(at / 2 + l);
      c.c1[l] = query;
      c.c2[l] = draw.events_word;
      c.c3[l] = draw.sample;
    }
    MixLanes(draw.seed, c);
    uint32_t gap[kEventStep];
    for (int l = 0; l < 16; ++l) {
      gap[2 * l] = EventGap(c.c0[l], mean_gap);
      gap[2 * l + 1] = EventGap(c.c2[l], mean_gap);
    }
    for (int i = 0; i < kEventStep; ++i) {
      age += gap[i];
      if (age >= limit) return at + i;
      scratch.age[at + i] = age;
      scratch.place[at + i] = i % 2 == 0 ? c.c1[i / 2] : c.c3[i / 2];
    }
  }
}

EDGEWISE_INLINE void FindKey(const EventDraw& draw, uint32_t* place, int32_t* key) {
  const uint64_t run = draw.guide[*place >> draw.guide_shift];
  int64_t found = static_cast<int64_t>(run >> 32);
  while (found < draw.tokens && draw.places[found + 1] <= *place) ++found;
  *key = static_cast<int32_t>(found);
  *place = draw.places[found + 1] - 1 - *place;
}

// One row.
static int DrawEvents(const EventDraw& draw, int64_t first, int, uint32_t limit, const EventScratch& scratch,
                      int64_t* ends) {
  const float mean_gap = draw.mean_gap[first];
  const uint32_t query = PositionOf(draw, first);
  const int64_t events = mean_gap > 0.0f ? RowEvents(draw, query, mean_gap, limit, scratch) : 0;
  if (events < 0) return 0;
  int64_t edges = 0;
  for (int64_t e = 0; e < events; e += 16) {
    int32_t list[16] = {};
    float rates[16];
    const int count = events - e < 16 ? static_cast<int>(events - e) : 16;
    for (int k = 0; k < count; ++k) {
      FindKey(draw, scratch.place + e + k, scratch.key + e + k);
      list[k] = scratch.key[e + k] < draw.tokens ? scratch.key[e + k] : 0;
    }
    StoreDots16<0>(LoadOperand<0>(draw.x + first * draw.rank), draw.rank / 16, draw.y, draw.rank, list, rates);
    TakeRates(draw, rates);
    for (int k = 0; k < count; ++k) {
      const int64_t at = e + k;
      if (scratch.key[at] >= draw.tokens ||
          !Accepts(draw, query, mean_gap, static_cast<uint32_t>(at), rates[k], scratch.age[at], scratch.place[at])) {
        continue;
      }
      scratch.edge_key[edges] = scratch.key[at];
      scratch.edge_age[edges++] = scratch.age[at];
    }
  }
  ends[0] = edges;
  return 1;
}

static void SquareNorms(const float* rows, int64_t count, int rank, float* out) {
  for (int64_t r = 0; r < count; ++r, rows += rank) {
    float lane[16] = {};
    for (int t = 0; t < rank; t += 16) {
      for (int l = 0; l < 16; ++l) lane[l] = __builtin_fmaf(rows[t + l], rows[t + l], lane[l]);
    }
    for (int step = 8; step > 0; step /= 2) {
      for (int l = 0; l < step; ++l) lane[l] += lane[l + step];
    }
    out[r] = lane[0];
  }
}

static int64_t SortKeys(const int32_t* keys, int64_t count, int64_t n, uint64_t* bits, int32_t* out) {
  return SortByBits(keys, count, n, bits, out);
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_EVENTS_PORTABLE_INL_
