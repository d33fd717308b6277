// Matrix products of 8-bit integers, and the rounding of rows to them.
//
// Loops from the outside in: rows in blocks that stay in the second-level cache; panels; tiles of rows, whose sums stay
// in registers over all inputs. The sums are exact, so their order is free.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_GEMM_INT8_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_GEMM_INT8_INL_

#include "kernels/cpu/simd/gemm.inl"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/vector.h"
#include "kernels/cpu/simd/whole_rows.inl"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

#if defined(__AVX512VNNI__)
inline constexpr int kInt8Group = 4;  // bytes, as VPDPBUSD takes them
#else
inline constexpr int kInt8Group = 2;  // 16-bit numbers, as VPMADDWD takes them: VPMADDUBSW would saturate
#endif

// The weights of kLanes columns and one group of inputs, as AddProducts wants them.
#if defined(__AVX512VNNI__)
typedef __m512i Int8Weights;
EDGEWISE_INLINE Int8Weights LoadInt8(const int8_t* p) { return _mm512_loadu_si512(p); }
EDGEWISE_INLINE Int AddProducts(Int sum, uint32_t x, Int8Weights w) {
  return reinterpret_cast<Int>(
      _mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum), _mm512_set1_epi32(static_cast<int>(x)), w));
}
#elif defined(__AVX2__)
typedef __m256i Int8Weights;
EDGEWISE_INLINE Int8Weights LoadInt8(const int8_t* p) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
EDGEWISE_INLINE Int AddProducts(Int sum, uint32_t x, Int8Weights w) {
  return sum + reinterpret_cast<Int>(_mm256_madd_epi16(_mm256_set1_epi32(static_cast<int>(x)), w));
}
#else
struct Int8Weights {
  Int even, odd;
};
EDGEWISE_INLINE Int8Weights LoadInt8(const int8_t* p) {
  Int8Weights w;
  for (int l = 0; l < kLanes; ++l) {
    w.even[l] = p[2 * l];
    w.odd[l] = p[2 * l + 1];
  }
  return w;
}
EDGEWISE_INLINE Int AddProducts(Int sum, uint32_t x, Int8Weights w) {
  return sum + static_cast<int32_t>(x & 0xFFFF) * w.even + static_cast<int32_t>(x >> 16) * w.odd;
}
#endif

// One panel.
struct Int8Panel {
  const int8_t* weights;  // [groups, kVectors * kLanes, kInt8Group]
  int64_t column;         // its first
  int columns;            // that exist, at most kVectors * kLanes
  bool fetch;             // the weights may come from memory
};

template <int kRows, int kVectors>
EDGEWISE_INLINE void Int8Tile(const Int8Gemm& g, const Int8Panel& panel, int64_t row) {
  Int sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) sum[r][v] = Int{};
  }
  const uint32_t* x = g.x + row * g.x_stride;
  const uint32_t* x_upper = x + 4 * g.x_stride;
  const int8_t* weights = panel.weights;
  for (int64_t t = 0; t < g.groups; ++t, weights += kVectors * kLanes * kInt8Group) {
    if (panel.fetch) {
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) __builtin_prefetch(weights + kGemmAhead + v * kLanes * kInt8Group);
    }
    Int8Weights w[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) w[v] = LoadInt8(weights + v * kLanes * kInt8Group);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const uint32_t value = r < 4 ? x[r * g.x_stride + t] : x_upper[(r - 4) * g.x_stride + t];
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) sum[r][v] = AddProducts(sum[r][v], value, w[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      FinishInt8(g, sum[r][v], row + r, panel.column + v * kLanes, panel.columns - v * kLanes);
    }
  }
}

// Int8Tile of `rows` rows, 1 <= rows <= kRows.
template <int kRows, int kVectors>
EDGEWISE_INLINE void Int8TileOf(int64_t rows, const Int8Gemm& g, const Int8Panel& panel, int64_t row) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return Int8TileOf<kRows - 1, kVectors>(rows, g, panel, row);
  }
  Int8Tile<kRows, kVectors>(g, panel, row);
}

// Tiles of equal height, give or take one row.
template <int kVectors>
static void Int8Rows(const Int8Gemm& g, Int8Panel panel, int64_t first, int64_t rows) {
  const int64_t tiles = (rows + kGemmTileRows - 1) / kGemmTileRows;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t row = rows * tile / tiles;
    Int8TileOf<kGemmTileRows, kVectors>(rows * (tile + 1) / tiles - row, g, panel, first + row);
    panel.fetch = false;
  }
}

static void MultiplyInt8(const Int8Gemm& g) {
  const int64_t blocks = (g.rows + kGemmBlockRows - 1) / kGemmBlockRows;
  const int64_t vectors = (g.columns + kLanes - 1) / kLanes;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t row = g.rows * block / blocks, rows = g.rows * (block + 1) / blocks - row;
    for (int64_t vector = 0; vector < vectors;) {
      const int wide = GemmPanelVectors(vectors - vector);
      Int8Panel panel;
      panel.column = vector * kLanes;
      panel.weights = g.panels + panel.column * g.groups * kInt8Group;
      const int64_t left = g.columns - panel.column;
      panel.columns = static_cast<int>(left < wide * kLanes ? left : wide * kLanes);
      panel.fetch = true;
      if (wide == 3) Int8Rows<3>(g, panel, row, rows);
      if (wide == 2) Int8Rows<2>(g, panel, row, rows);
      if (wide == 1) Int8Rows<1>(g, panel, row, rows);
      vector += wide;
    }
  }
}

#if defined(__AVX512VNNI__)
typedef uint8_t Int8Input;  // as AddProducts takes it
EDGEWISE_INLINE Int Nearest(F a) { return reinterpret_cast<Int>(_mm512_cvtps_epi32(a)); }
#elif defined(__AVX2__)
typedef uint16_t Int8Input;
EDGEWISE_INLINE Int Nearest(F a) { return reinterpret_cast<Int>(_mm256_cvtps_epi32(a)); }
#else
typedef uint16_t Int8Input;
EDGEWISE_INLINE Int Nearest(F a) {
  Int nearest = {};
  for (int l = 0; l < kLanes; ++l) nearest[l] = static_cast<int32_t>(__builtin_rintf(a[l]));
  return nearest;
}
#endif
static_assert(sizeof(Int8Input) * kInt8Group == sizeof(uint32_t));

// 1. The range. 2. The row. No product is added to, so that no compiler makes other numbers of it.
static void QuantizeRow(const float* x, int64_t columns, uint32_t* out, float* scale, int32_t* zero) {
  typedef Int8Input Inputs __attribute__((vector_size(sizeof(Int8Input) * kLanes)));
  F low[4] = {Zero(), Zero(), Zero(), Zero()}, high[4] = {Zero(), Zero(), Zero(), Zero()};
  F odd[4] = {Zero(), Zero(), Zero(), Zero()};
  ForVectors(x, columns, [&](F value, int, int64_t, int slot) {
    low[slot] = Min(value, low[slot]);
    high[slot] = Max(value, high[slot]);
    odd[slot] = odd[slot] + (value - value);  // NaN of a number that is not finite, else 0
  });
  const float highest = ReduceMax(Max(Max(high[0], high[1]), Max(high[2], high[3])));
  const float lowest = -ReduceMax(Zero() - Min(Min(low[0], low[1]), Min(low[2], low[3])));
  const float unfit = ReduceAdd((odd[0] + odd[1]) + (odd[2] + odd[3]));
  const int64_t groups = (columns + kInt8Group - 1) / kInt8Group;
  if (unfit != 0.0f) {  // NaN
    for (int64_t g = 0; g < groups; ++g) out[g] = 0;
    *scale = unfit;
    *zero = 0;
    return;
  }
  float step = highest / 255.0f - lowest / 255.0f;  // of which the difference may not fit
  if (step < kLeastInt8Step) step = kLeastInt8Step;
  const F per_step = Broadcast(1.0f / step);
  *scale = step;
  *zero = Nearest(Broadcast(-lowest) * per_step)[0];
  const Int shift = *zero - Int{};
  auto* const inputs = reinterpret_cast<char*>(out);
  ForVectors(x, columns, [&](F value, int count, int64_t c, int) {
    Int level = Nearest(value * per_step) + shift;
    level = level < 0 ? Int{} : level;
    level = level > 255 ? 255 - Int{} : level;
    const Inputs packed = __builtin_convertvector(level, Inputs);
    const int whole = (count + kInt8Group - 1) / kInt8Group * kInt8Group;  // the weights of the others are 0
    __builtin_memcpy(inputs + c * sizeof(Int8Input), &packed, static_cast<size_t>(whole) * sizeof(Int8Input));
  });
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_GEMM_INT8_INL_
