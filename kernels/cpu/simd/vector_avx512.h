// The vector operations of the CPU kernels, for AVX-512; vector_portable.h has the same names. Included by vector.h,
// with EDGEWISE_SIMD_NAMESPACE defined.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_VECTOR_AVX512_H_
#define EDGEWISE_KERNELS_CPU_SIMD_VECTOR_AVX512_H_

#include <immintrin.h>

#include <cstdint>

#define EDGEWISE_INLINE static inline __attribute__((always_inline))

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

using F = __m512;  // kLanes floats
inline constexpr int kLanes = 16;
inline constexpr int kScoreVectors = 4;  // a register tile of scores: 6 rows x 4 vectors
inline constexpr int kScoreRows = 6;

EDGEWISE_INLINE F Zero() { return _mm512_setzero_ps(); }
EDGEWISE_INLINE F Load(const float* p) { return _mm512_loadu_ps(p); }
EDGEWISE_INLINE void Store(float* p, F a) { _mm512_storeu_ps(p, a); }
EDGEWISE_INLINE F Broadcast(float a) { return _mm512_set1_ps(a); }
EDGEWISE_INLINE F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
EDGEWISE_INLINE F Max(F a, F b) { return _mm512_max_ps(a, b); }
EDGEWISE_INLINE F Min(F a, F b) { return _mm512_min_ps(a, b); }
EDGEWISE_INLINE float ReduceAdd(F a) { return _mm512_reduce_add_ps(a); }
EDGEWISE_INLINE float ReduceMax(F a) { return _mm512_reduce_max_ps(a); }
EDGEWISE_INLINE bool AnyGreater(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
// Lane l of a where bit l is set, else of b.
EDGEWISE_INLINE F Select(uint32_t bits, F a, F b) { return _mm512_mask_blend_ps(static_cast<__mmask16>(bits), b, a); }
EDGEWISE_INLINE F LoadFirst(const float* p, int count) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), p);
}
EDGEWISE_INLINE void StoreFirst(float* p, F a, int count) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << count) - 1), a);
}

// 2^a for a <= 0, -inf included; error below 1.5 ulp; exactly 1 at 0. Never below 2^-100, which vanishes in a sum with
// a 1: subnormal results would cost a hundred cycles each. Degree-5 minimax polynomial on [-1/2, 1/2].
EDGEWISE_INLINE F Exp2(F a) {
  const F magic = Broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to integers
  a = Max(a, Broadcast(-100.0f));
  const F whole = (a + magic) - magic;
  const F f = a - whole;
  F p = Broadcast(1.32647285e-3f);
  p = Fma(p, f, Broadcast(9.67151299e-3f));
  p = Fma(p, f, Broadcast(5.55073358e-2f));
  p = Fma(p, f, Broadcast(2.40222424e-1f));
  p = Fma(p, f, Broadcast(6.93147004e-1f));
  p = Fma(p, f, Broadcast(1.0f));
  return _mm512_scalef_ps(p, whole);
}

// rows[i][j] -> rows[j][i], kLanes of both.
EDGEWISE_INLINE void Transpose(F* rows) {
  F pairs[16], quads[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    for (int half = 0; half < 2; ++half) {
      const __m512d a = _mm512_castps_pd(pairs[i + half]), b = _mm512_castps_pd(pairs[i + half + 2]);
      quads[i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      quads[i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  }
  // quads[4g + c] holds column c of each 4-column group, rows 4g..4g+3.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const F low01 = _mm512_shuffle_f32x4(quads[c], quads[4 + c], 0x44),
            high01 = _mm512_shuffle_f32x4(quads[c], quads[4 + c], 0xEE);
    const F low23 = _mm512_shuffle_f32x4(quads[8 + c], quads[12 + c], 0x44),
            high23 = _mm512_shuffle_f32x4(quads[8 + c], quads[12 + c], 0xEE);
    rows[c] = _mm512_shuffle_f32x4(low01, low23, 0x88);
    rows[4 + c] = _mm512_shuffle_f32x4(low01, low23, 0xDD);
    rows[8 + c] = _mm512_shuffle_f32x4(high01, high23, 0x88);
    rows[12 + c] = _mm512_shuffle_f32x4(high01, high23, 0xDD);
  }
}

// Steps of a transposing sum of 16 vectors in the order of MembershipDot: lanes l + 8, l + 4, l + 2, l + 1 of each.
EDGEWISE_INLINE F Halve8(F a, F b) { return _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xEE); }
EDGEWISE_INLINE F Halve4(F a, F b) { return _mm512_shuffle_f32x4(a, b, 0x88) + _mm512_shuffle_f32x4(a, b, 0xDD); }
EDGEWISE_INLINE F Halve2(F a, F b) {
  const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
  return _mm512_castpd_ps(_mm512_unpacklo_pd(x, y)) + _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
}
EDGEWISE_INLINE F Halve1(F a, F b) { return _mm512_shuffle_ps(a, b, 0x88) + _mm512_shuffle_ps(a, b, 0xDD); }

// <x, row k> for 16 rows, row k at base + keys[k] * stride. x and rows have 16 * kVectors elements, or 16 * vectors
// where kVectors is 0. Keys are read again for every four rows: GCC would keep 16 pointers in vector registers.
template <int kVectors>
EDGEWISE_INLINE F DotRows4(const F* x, const float* x_rest, int vectors, const float* base, int64_t stride,
                           const int32_t* keys) {
  const float* r0 = base + keys[0] * stride;
  const float* r1 = base + keys[4] * stride;
  const float* r2 = base + keys[8] * stride;
  const float* r3 = base + keys[12] * stride;
  F a = x[0] * Load(r0), b = x[0] * Load(r1), c = x[0] * Load(r2), d = x[0] * Load(r3);
  for (int t = 1; t < (kVectors > 0 ? kVectors : vectors); ++t) {
    const F part = kVectors > 0 ? x[t] : Load(x_rest + 16 * t);
    a = Fma(part, Load(r0 + 16 * t), a);
    b = Fma(part, Load(r1 + 16 * t), b);
    c = Fma(part, Load(r2 + 16 * t), c);
    d = Fma(part, Load(r3 + 16 * t), d);
  }
  return Halve4(Halve8(a, b), Halve8(c, d));
}

template <int kVectors>
struct DotOperand {
  F part[kVectors > 0 ? kVectors : 1];
  const float* all;
};
template <int kVectors>
EDGEWISE_INLINE DotOperand<kVectors> LoadOperand(const float* x) {
  DotOperand<kVectors> operand;
  for (int t = 0; t < (kVectors > 0 ? kVectors : 1); ++t) operand.part[t] = Load(x + 16 * t);
  operand.all = x;
  return operand;
}

template <int kVectors>
EDGEWISE_INLINE F DotRows16(const DotOperand<kVectors>& x, int vectors, const float* base, int64_t stride,
                            const int32_t* keys) {
  // Lane group g of the result of Halve4 belongs to its g-th row; Halve2 and Halve1 interleave the four results, so
  // that lane 4g + s comes from row g of result s.
  const F s0 = DotRows4<kVectors>(x.part, x.all, vectors, base, stride, keys);
  const F s1 = DotRows4<kVectors>(x.part, x.all, vectors, base, stride, keys + 1);
  const F s01 = Halve2(s0, s1);
  const F s2 = DotRows4<kVectors>(x.part, x.all, vectors, base, stride, keys + 2);
  const F s3 = DotRows4<kVectors>(x.part, x.all, vectors, base, stride, keys + 3);
  return Halve1(s01, Halve2(s2, s3));
}

template <int kVectors>
EDGEWISE_INLINE void StoreDots16(const DotOperand<kVectors>& x, int vectors, const float* base, int64_t stride,
                                 const int32_t* keys, float* out) {
  Store(out, DotRows16<kVectors>(x, vectors, base, stride, keys));
}

EDGEWISE_INLINE void StoreIf(bool condition, float* p, F a) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>(-static_cast<int>(condition)), a);
}

// Copies those of `count` ascending keys that are below `end`, padded with end - 1 to a multiple of 16 or 32. Returns
// their number. Branches only for more than 32.
EDGEWISE_INLINE int64_t TakeKeys(const int32_t* keys, int64_t count, int32_t end, int32_t* out) {
  const __m512i limit = _mm512_set1_epi32(end);
  const __m512i last = _mm512_set1_epi32(end - 1);
  int64_t taken = 0;
  for (;; keys += 32, count -= 32, out += 32) {
    const uint32_t present = count >= 32 ? 0xFFFFFFFFu : (1u << count) - 1;
    const __m512i first = _mm512_mask_loadu_epi32(limit, static_cast<__mmask16>(present), keys);
    const __m512i second = _mm512_mask_loadu_epi32(limit, static_cast<__mmask16>(present >> 16), keys + 16);
    _mm512_storeu_si512(out, _mm512_min_epi32(first, last));
    _mm512_storeu_si512(out + 16, _mm512_min_epi32(second, last));
    const uint32_t below =
        _mm512_cmplt_epi32_mask(first, limit) | static_cast<uint32_t>(_mm512_cmplt_epi32_mask(second, limit)) << 16;
    taken += __builtin_popcount(below);
    if (__builtin_expect(below != 0xFFFFFFFFu, 1)) return taken;
  }
}

EDGEWISE_INLINE void FillKeys(int32_t* out, int32_t key) { _mm512_storeu_si512(out, _mm512_set1_epi32(key)); }

alignas(64) static const uint8_t kIota[64] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                              16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
                                              32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
                                              48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

[[maybe_unused]] static int64_t CountBits(const uint64_t* bits, int64_t words) {
  int64_t count = 0;
  for (int64_t word = 0; word < words; ++word) count += _mm_popcnt_u64(bits[word]);
  return count;
}

// Set bits as ascending numbers from `first` on. Needs room for 64 more.
[[maybe_unused]] static int64_t ListBits(const uint64_t* bits, int64_t words, int32_t first, int32_t* out) {
  int64_t size = 0;
  for (int64_t word = 0; word < words; ++word) {
    const uint64_t mask = bits[word];
    const int count = static_cast<int>(_mm_popcnt_u64(mask));
    const __m512i ids = _mm512_maskz_compress_epi8(mask, _mm512_load_si512(kIota));
    const __m512i from = _mm512_set1_epi32(first + static_cast<int>(word * 64));
    _mm512_storeu_si512(out + size, _mm512_add_epi32(from, _mm512_cvtepu8_epi32(_mm512_castsi512_si128(ids))));
    if (count > 16) {
      _mm512_storeu_si512(out + size + 16,
                          _mm512_add_epi32(from, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(ids, 1))));
      if (count > 32) {
        _mm512_storeu_si512(out + size + 32,
                            _mm512_add_epi32(from, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(ids, 2))));
        _mm512_storeu_si512(out + size + 48,
                            _mm512_add_epi32(from, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(ids, 3))));
      }
    }
    size += count;
  }
  return size;
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_VECTOR_AVX512_H_
