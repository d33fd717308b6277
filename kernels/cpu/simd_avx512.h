// The few vector operations that the attention kernels need, for AVX-512. Included only by files compiled for it, inside
// namespace EDGEWISE_SIMD_NAMESPACE; simd_portable.h has the same names.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_AVX512_H_
#define EDGEWISE_KERNELS_CPU_SIMD_AVX512_H_

#include <immintrin.h>

#include <cstdint>

#define EDGEWISE_INLINE static inline __attribute__((always_inline))

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

using F = __m512;                         // kLanes floats
inline constexpr int kLanes = 16;
inline constexpr int kScoreVectors = 4;   // a register tile of scores: 6 rows x 4 vectors
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
EDGEWISE_INLINE F Select(uint32_t bits, F a, F b) {
  return _mm512_mask_blend_ps(static_cast<__mmask16>(bits), b, a);
}
EDGEWISE_INLINE F LoadFirst(const float* p, int count) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), p);
}

// 2^a for a <= 0, -inf included; error below 1.5 ulp; exactly 1 at 0. Degree-5 minimax polynomial on [-1/2, 1/2].
EDGEWISE_INLINE F Exp2(F a) {
  const F magic = Broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to integers
  a = Max(a, Broadcast(-200.0f));
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

// Steps of a transposing sum of 16 vectors in the order of MembershipDot: lanes l + 8, l + 4, l + 2, l + 1 of each.
EDGEWISE_INLINE F Halve8(F a, F b) { return _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xEE); }
EDGEWISE_INLINE F Halve4(F a, F b) { return _mm512_shuffle_f32x4(a, b, 0x88) + _mm512_shuffle_f32x4(a, b, 0xDD); }
EDGEWISE_INLINE F Halve2(F a, F b) {
  const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
  return _mm512_castpd_ps(_mm512_unpacklo_pd(x, y)) + _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
}
EDGEWISE_INLINE F Halve1(F a, F b) { return _mm512_shuffle_ps(a, b, 0x88) + _mm512_shuffle_ps(a, b, 0xDD); }

// Sums of lanes of the 16 products <x, rows[k]>, k = 0..15. `vectors`: row length / 16. Rows may repeat.
template <int kVectors>
EDGEWISE_INLINE F DotRows16(const float* x, const float* const* rows, int vectors) {
  const int count = kVectors > 0 ? kVectors : vectors;
#define EDGEWISE_DOT4(name, r0, r1, r2, r3)                                                       \
  F name;                                                                                         \
  {                                                                                               \
    F x0 = Load(x);                                                                               \
    F a = x0 * Load(rows[r0]), b = x0 * Load(rows[r1]), c = x0 * Load(rows[r2]), d = x0 * Load(rows[r3]); \
    for (int t = 1; t < count; ++t) {                                                             \
      x0 = Load(x + 16 * t);                                                                      \
      a = Fma(x0, Load(rows[r0] + 16 * t), a);                                                    \
      b = Fma(x0, Load(rows[r1] + 16 * t), b);                                                    \
      c = Fma(x0, Load(rows[r2] + 16 * t), c);                                                    \
      d = Fma(x0, Load(rows[r3] + 16 * t), d);                                                    \
    }                                                                                             \
    name = Halve4(Halve8(a, b), Halve8(c, d));                                                    \
  }
  // Lane group g of the result of Halve4 belongs to its g-th row; Halve2 and Halve1 interleave the four results, so that
  // lane 4g + s comes from row g of result s.
  EDGEWISE_DOT4(s0, 0, 4, 8, 12)
  EDGEWISE_DOT4(s2, 2, 6, 10, 14)
  EDGEWISE_DOT4(s1, 1, 5, 9, 13)
  EDGEWISE_DOT4(s3, 3, 7, 11, 15)
#undef EDGEWISE_DOT4
  return Halve1(Halve2(s0, s1), Halve2(s2, s3));
}

template <int kVectors>
EDGEWISE_INLINE void StoreDots16(const float* x, const float* const* rows, int vectors, float* out) {
  Store(out, DotRows16<kVectors>(x, rows, vectors));
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_AVX512_H_
