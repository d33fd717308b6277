// The vector operations of the CPU kernels for every other instruction set, as GCC vector types of its width. Included
// by vector.h, with EDGEWISE_SIMD_NAMESPACE defined.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_VECTOR_PORTABLE_H_
#define EDGEWISE_KERNELS_CPU_SIMD_VECTOR_PORTABLE_H_

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <utility>

#define EDGEWISE_INLINE static inline __attribute__((always_inline))

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

#if defined(__AVX2__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif
typedef float F __attribute__((vector_size(4 * kLanes)));
typedef float UnalignedF __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef int32_t I __attribute__((vector_size(4 * kLanes)));
typedef uint32_t U __attribute__((vector_size(4 * kLanes)));
inline constexpr int kScoreVectors = 2;  // a register tile of scores: 6 rows x 2 vectors
inline constexpr int kScoreRows = 6;

EDGEWISE_INLINE F Broadcast(float a) { return a - F{}; }
EDGEWISE_INLINE F Zero() { return F{}; }
EDGEWISE_INLINE F Load(const float* p) { return *reinterpret_cast<const UnalignedF*>(p); }
EDGEWISE_INLINE void Store(float* p, F a) { *reinterpret_cast<UnalignedF*>(p) = a; }
EDGEWISE_INLINE F Fma(F a, F b, F c) {
#if defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}
EDGEWISE_INLINE F Max(F a, F b) { return a > b ? a : b; }
EDGEWISE_INLINE F Min(F a, F b) { return a < b ? a : b; }
EDGEWISE_INLINE float ReduceAdd(F a) {
  float sum = a[0];
  for (int l = 1; l < kLanes; ++l) sum += a[l];
  return sum;
}
EDGEWISE_INLINE float ReduceMax(F a) {
  float max = a[0];
  for (int l = 1; l < kLanes; ++l) max = a[l] > max ? a[l] : max;
  return max;
}
// Bit l: whether a is greater in lane l.
EDGEWISE_INLINE uint32_t GreaterBits(F a, F b) {
  const I greater = a > b;
#if defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps(reinterpret_cast<F>(greater)));
#else
  uint32_t bits = 0;
  for (int l = 0; l < kLanes; ++l) bits |= static_cast<uint32_t>(greater[l] & 1) << l;
  return bits;
#endif
}
EDGEWISE_INLINE bool AnyGreater(F a, F b) { return GreaterBits(a, b) != 0; }
// kLanes whole numbers. (GCC widens vectors of bytes one by one.)
#if defined(__AVX2__)
EDGEWISE_INLINE F LoadWhole(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
EDGEWISE_INLINE F LoadWhole(const uint16_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
#else
template <typename Whole>
EDGEWISE_INLINE F LoadWhole(const Whole* p) {
  F numbers = {};
  for (int l = 0; l < kLanes; ++l) numbers[l] = static_cast<float>(p[l]);
  return numbers;
}
#endif
EDGEWISE_INLINE I LaneNumbers() {
  I lanes = {};
  for (int l = 0; l < kLanes; ++l) lanes[l] = l;
  return lanes;
}
// Lane l of a where bit l is set, else of b.
EDGEWISE_INLINE F Select(uint32_t bits, F a, F b) {
  const I mask = (static_cast<int32_t>(bits) & (1 << LaneNumbers())) != 0;
  return mask ? a : b;
}
EDGEWISE_INLINE F LoadFirst(const float* p, int count) {
  F a = {};
  for (int l = 0; l < kLanes; ++l) {
    if (l < count) a[l] = p[l];
  }
  return a;
}
EDGEWISE_INLINE void StoreFirst(float* p, F a, int count) {
  for (int l = 0; l < kLanes; ++l) {
    if (l < count) p[l] = a[l];
  }
}

// 2^a for a <= 0, -inf included; never below 2^-100; error below 1.5 ulp; exactly 1 at 0.
EDGEWISE_INLINE F Exp2(F a) {
  const F magic = Broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to integers, which lie in the low bits
  a = Max(a, Broadcast(-100.0f));
  const F shifted = a + magic;
  const F f = a - (shifted - magic);
  F p = Broadcast(1.32647285e-3f);
  p = Fma(p, f, Broadcast(9.67151299e-3f));
  p = Fma(p, f, Broadcast(5.55073358e-2f));
  p = Fma(p, f, Broadcast(2.40222424e-1f));
  p = Fma(p, f, Broadcast(6.93147004e-1f));
  p = Fma(p, f, Broadcast(1.0f));
  const U bits = reinterpret_cast<U>(p) + (reinterpret_cast<U>(shifted) << 23);  // wraps
  return reinterpret_cast<F>(bits);
}

// Lanes with bit kStep of a change places with those without it of b.
template <int kStep, int... kLane>
EDGEWISE_INLINE void SwapLanes(F& a, F& b, std::integer_sequence<int, kLane...>) {
  const F first = __builtin_shufflevector(a, b, ((kLane & kStep) != 0 ? kLanes + kLane - kStep : kLane)...);
  b = __builtin_shufflevector(a, b, ((kLane & kStep) != 0 ? kLanes + kLane : kLane + kStep)...);
  a = first;
}

// Transposes squares of 2 * kStep rows and lanes: their quarters, and then what lies in each.
template <int kStep>
EDGEWISE_INLINE void TransposeSquares(F* rows) {
#pragma GCC unroll 8
  for (int i = 0; i < kLanes; ++i) {
    if ((i & kStep) == 0) SwapLanes<kStep>(rows[i], rows[i + kStep], std::make_integer_sequence<int, kLanes>());
  }
  if constexpr (kStep > 1) TransposeSquares<kStep / 2>(rows);
}

// rows[i][j] -> rows[j][i], kLanes of both.
EDGEWISE_INLINE void Transpose(F* rows) { TransposeSquares<kLanes / 2>(rows); }

template <int kVectors>
struct DotOperand {
  const float* all;
};
template <int kVectors>
EDGEWISE_INLINE DotOperand<kVectors> LoadOperand(const float* x) {
  return {x};
}

// Fma that rounds once, everywhere.
EDGEWISE_INLINE F FusedFma(F a, F b, F c) {
#if defined(__AVX2__)
  return Fma(a, b, c);
#else
  for (int l = 0; l < kLanes; ++l) c[l] = __builtin_fmaf(a[l], b[l], c[l]);
  return c;
#endif
}

// out[k] = <x, base + keys[k] * stride>, k = 0..15, of 16 * vectors elements, in the order of MembershipDot.
template <int kVectors>
EDGEWISE_INLINE void StoreDots16(const DotOperand<kVectors>& x, int vectors, const float* base, int64_t stride,
                                 const int32_t* keys, float* out) {
  constexpr int kParts = 16 / kLanes;
  for (int k = 0; k < 16; k += kLanes) {
    F sums[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kLanes; ++i) {
      const float* const row = base + keys[k + i] * stride;
      F part[kParts];
      for (F& sum : part) sum = Zero();
      for (int t = 0; t < 16 * vectors; t += 16) {
        for (int p = 0; p < kParts; ++p) {
          const int at = t + p * kLanes;
          part[p] = FusedFma(Load(x.all + at), Load(row + at), part[p]);
        }
      }
      for (int step = kParts / 2; step > 0; step /= 2) {
        for (int p = 0; p < step; ++p) part[p] = part[p] + part[p + step];
      }
      sums[i] = part[0];
    }
    Transpose(sums);
    for (int step = kLanes / 2; step > 0; step /= 2) {
      for (int l = 0; l < step; ++l) sums[l] = sums[l] + sums[l + step];
    }
    Store(out + k, sums[0]);
  }
}

EDGEWISE_INLINE void StoreIf(bool condition, float* p, F a) {
  if (condition) Store(p, a);
}

// Copies those of `count` ascending keys that are below `end`, padded with end - 1 to a multiple of 16. Returns the
// count.
EDGEWISE_INLINE int64_t TakeKeys(const int32_t* keys, int64_t count, int32_t end, int32_t* out) {
  int64_t taken = 0;
  while (taken < count && keys[taken] < end) {
    out[taken] = keys[taken];
    ++taken;
  }
  for (int64_t e = taken; e % 16 != 0; ++e) out[e] = end - 1;
  return taken;
}

EDGEWISE_INLINE void FillKeys(int32_t* out, int32_t key) {
  for (int i = 0; i < 16; ++i) out[i] = key;
}

[[maybe_unused]] static int64_t CountBits(const uint64_t* bits, int64_t words) {
  int64_t count = 0;
  for (int64_t word = 0; word < words; ++word) count += __builtin_popcountll(bits[word]);
  return count;
}

// Set bits as ascending numbers from `first` on. Needs room for 64 more.
[[maybe_unused]] static int64_t ListBits(const uint64_t* bits, int64_t words, int32_t first, int32_t* out) {
  int64_t size = 0;
  for (int64_t word = 0; word < words; ++word) {
    for (uint64_t mask = bits[word]; mask != 0; mask &= mask - 1) {
      out[size++] = first + static_cast<int32_t>(word * 64) + __builtin_ctzll(mask);
    }
  }
  return size;
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_VECTOR_PORTABLE_H_
