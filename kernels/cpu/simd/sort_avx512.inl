// Sorting the keys of a row with AVX-512, as 16-bit numbers in registers: bitonic networks of up to 256 keys.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_SORT_AVX512_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_SORT_AVX512_INL_

#include "kernels/cpu/simd/events_shared.inl"
#include "kernels/cpu/simd/philox_avx512.inl"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

inline constexpr int kSortVectors = 8;  // most, of 32 keys each

// Lane numbers that a step exchanges: i with i ^ (2^(level + 1) - 1).
#define EDGEWISE_FLIP8(from, mask)                                                                             \
  (from) ^ (mask), ((from) + 1) ^ (mask), ((from) + 2) ^ (mask), ((from) + 3) ^ (mask), ((from) + 4) ^ (mask), \
      ((from) + 5) ^ (mask), ((from) + 6) ^ (mask), ((from) + 7) ^ (mask)
#define EDGEWISE_FLIP(mask) \
  { EDGEWISE_FLIP8(0, mask), EDGEWISE_FLIP8(8, mask), EDGEWISE_FLIP8(16, mask), EDGEWISE_FLIP8(24, mask) }
alignas(64) static const uint16_t kFlip[5][32] = {EDGEWISE_FLIP(1), EDGEWISE_FLIP(3), EDGEWISE_FLIP(7),
                                                  EDGEWISE_FLIP(15), EDGEWISE_FLIP(31)};
#undef EDGEWISE_FLIP
#undef EDGEWISE_FLIP8

// In lanes that `mask` has, the larger of a and b, in the others the smaller.
EDGEWISE_INLINE V Exchange(uint32_t mask, V a, V b) {
  return _mm512_mask_max_epu16(_mm512_min_epu16(a, b), mask, a, b);
}
// Lanes whose bit kBit is set.
template <int kBit>
inline constexpr uint32_t kUpper = kBit == 0   ? 0xAAAAAAAAu
                                   : kBit == 1 ? 0xCCCCCCCCu
                                   : kBit == 2 ? 0xF0F0F0F0u
                                   : kBit == 3 ? 0xFF00FF00u
                                               : 0xFFFF0000u;

// Exchanges lanes 2^kBit apart.
template <int kBit>
EDGEWISE_INLINE V Clean(V v) {
  V other;
  if constexpr (kBit == 0) {
    other = _mm512_rol_epi32(v, 16);
  } else if constexpr (kBit == 1) {
    other = _mm512_shuffle_epi32(v, static_cast<_MM_PERM_ENUM>(0xB1));
  } else if constexpr (kBit == 2) {
    other = _mm512_shuffle_epi32(v, static_cast<_MM_PERM_ENUM>(0x4E));
  } else {
    other = _mm512_shuffle_i32x4(v, v, kBit == 3 ? 0xB1 : 0x4E);
  }
  return Exchange(kUpper<kBit>, v, other);
}
// Exchanges the lanes that kFlip names.
template <int kLevel>
EDGEWISE_INLINE V Flip(V v) {
  return Exchange(kUpper<kLevel>, v, _mm512_permutexvar_epi16(_mm512_load_si512(kFlip[kLevel]), v));
}
EDGEWISE_INLINE V SortBitonic32(V v) { return Clean<0>(Clean<1>(Clean<2>(Clean<3>(Clean<4>(v))))); }
// Sorts runs of kRun lanes: 8, 16 or 32.
template <int kRun>
EDGEWISE_INLINE V SortRuns(V v) {
  v = Flip<0>(v);
  v = Clean<0>(Flip<1>(v));
  v = Clean<0>(Clean<1>(Flip<2>(v)));
  if constexpr (kRun >= 16) v = Clean<0>(Clean<1>(Clean<2>(Flip<3>(v))));
  if constexpr (kRun >= 32) v = Clean<0>(Clean<1>(Clean<2>(Clean<3>(Flip<4>(v)))));
  return v;
}
EDGEWISE_INLINE V Reverse32(V v) { return _mm512_permutexvar_epi16(_mm512_load_si512(kFlip[4]), v); }

EDGEWISE_INLINE uint32_t FirstLanes(int64_t count) {
  return count >= 32 ? 0xFFFFFFFFu : count <= 0 ? 0 : (1u << count) - 1;
}

// Merges runs of `size` / 2 sorted vectors to runs of `size`.
template <int kVectors>
EDGEWISE_INLINE void MergeRuns(V* v, int size) {
#pragma GCC unroll 8
  for (int base = 0; base < kVectors; base += size) {
#pragma GCC unroll 8
    for (int i = 0; i < size / 2; ++i) {
      const V a = v[base + i], b = Reverse32(v[base + size - 1 - i]);
      v[base + i] = _mm512_min_epu16(a, b);
      v[base + size - 1 - i] = size == 2 ? _mm512_max_epu16(a, b) : Reverse32(_mm512_max_epu16(a, b));
    }
#pragma GCC unroll 4
    for (int step = size / 4; step >= 1; step /= 2) {
#pragma GCC unroll 8
      for (int i = base; i < base + size; ++i) {
        if (((i - base) & step) != 0) continue;
        const V a = v[i], b = v[i + step];
        v[i] = _mm512_min_epu16(a, b);
        v[i + step] = _mm512_max_epu16(a, b);
      }
    }
#pragma GCC unroll 8
    for (int i = base; i < base + size; ++i) v[i] = SortBitonic32(v[i]);
  }
}

// A single vector: kRun lanes hold all keys.
template <int kVectors, int kRun = 32>
static int64_t SortInRegisters(const int32_t* keys, int64_t count, int32_t* out) {
  static_assert(kVectors == 1 || kRun == 32);
  V v[kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) {
    const uint32_t lanes = FirstLanes(count - 32 * i);
    const V none = _mm512_set1_epi32(0xFFFF);
    const V low = _mm512_mask_loadu_epi32(none, static_cast<__mmask16>(lanes), keys + 32 * i);
    const V high = _mm512_mask_loadu_epi32(none, static_cast<__mmask16>(lanes >> 16), keys + 32 * i + 16);
    v[i] = SortRuns<kRun>(
        _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(low)), _mm512_cvtepi32_epi16(high), 1));
  }
  if constexpr (kVectors >= 2) MergeRuns<kVectors>(v, 2);
  if constexpr (kVectors >= 4) MergeRuns<kVectors>(v, 4);
  if constexpr (kVectors >= 8) MergeRuns<kVectors>(v, 8);
  // Each key beside the one before it; the first beside another.
  V before = _mm512_xor_si512(_mm512_broadcastw_epi16(_mm512_castsi512_si128(v[0])), _mm512_set1_epi16(-1));
  int64_t size = 0;
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) {
    const V carried = _mm512_alignr_epi32(v[i], before, 15);  // 32-bit lanes moved up by one
    const V previous = _mm512_or_si512(_mm512_slli_epi32(v[i], 16), _mm512_srli_epi32(carried, 16));
    const uint32_t distinct = _mm512_mask_cmpneq_epu16_mask(FirstLanes(count - 32 * i), v[i], previous);
    const V packed = _mm512_maskz_compress_epi16(distinct, v[i]);
    _mm512_storeu_si512(out + size, _mm512_cvtepu16_epi32(_mm512_castsi512_si256(packed)));
    _mm512_storeu_si512(out + size + 16, _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(packed, 1)));
    size += _mm_popcnt_u32(distinct);
    before = v[i];
  }
  return size;
}

static int64_t SortKeys(const int32_t* keys, int64_t count, int64_t n, uint64_t* bits, int32_t* out) {
  constexpr int64_t kFewPerWord = 4;
  const bool few = count <= 32 * kSortVectors && count <= (n + 63) / 64 * kFewPerWord;
  if (n > 65536 || !few) return SortByBits(keys, count, n, bits, out);
  if (count <= 8) return SortInRegisters<1, 8>(keys, count, out);
  if (count <= 16) return SortInRegisters<1, 16>(keys, count, out);
  if (count <= 32) return SortInRegisters<1>(keys, count, out);
  if (count <= 64) return SortInRegisters<2>(keys, count, out);
  if (count <= 128) return SortInRegisters<4>(keys, count, out);
  return SortInRegisters<8>(keys, count, out);
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_SORT_AVX512_INL_
