// Matrix products.
//
// Loops of a product from the outside in: rows in blocks whose part of x stays in the second-level cache; segments of
// `in`; panels, whose part of a segment stays in the first-level cache; tiles of rows, whose sums stay in registers.
// Where all of x stays in the second-level cache, panels come before segments: so the weights are read in the order in
// which they lie, as fast as memory gives them.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_GEMM_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_GEMM_INL_

#include "kernels/cpu/simd/epilogue.inl"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/vector.h"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

inline constexpr int kGemmTileRows = kLanes == 16 ? 8 : 4;  // sums, weights and one broadcast fill the registers
inline constexpr int64_t kGemmBlockRows = 96, kGemmWidenedRows = 192;
inline constexpr int kGemmLine = 64;                      // bytes of a cache line
inline constexpr int64_t kGemmSteps = 64 / kLanes;        // of a tile between two fetches, of 12 lines at most
inline constexpr int64_t kGemmAhead = 4096;               // bytes from weights that are read to those that are fetched
inline constexpr int64_t kGemmCached = int64_t{1} << 20;  // bytes of weights that may be in the second-level cache
inline constexpr int64_t kGemmInOrder = 1 << 18;          // bytes of x that stay there beside weights that pass

// kLanes weights, float32 or the upper halves of float32.
EDGEWISE_INLINE F LoadWeights(const float* p) { return Load(p); }
EDGEWISE_INLINE F LoadWeights(const uint16_t* p) {
  typedef uint16_t Halves __attribute__((vector_size(2 * kLanes), aligned(2), may_alias));
  typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
  return reinterpret_cast<F>(__builtin_convertvector(*reinterpret_cast<const Halves*>(p), Words) << 16);
}

// One segment of one panel.
template <typename W>
struct GemmPart {
  const W* weights;  // [depth, kVectors * kLanes]
  int64_t depth;
  int columns;        // that exist, at most kVectors * kLanes
  const float* bias;  // with the last segment; null: none
  bool add;           // to y
  bool last;
  const char *ahead, *ahead_end;  // weights that come next, or none
  int64_t lines;                  // cache lines of them that kGemmSteps steps of a tile fetch
};

template <int kRows, int kVectors, typename W>
EDGEWISE_INLINE void GemmTile(const Gemm& g, const GemmPart<W>& part, const float* x, float* y) {
  F sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) sum[r][v] = Zero();
  }
  const int64_t stride = g.x_stride;
  const float* x_upper = x + 4 * stride;  // rows are reached from two pointers by the multiples an address can hold
  const W* weights = part.weights;
  const char* ahead = part.ahead;
  for (int64_t t = 0; t < part.depth;) {
    for (int64_t line = 0; line < part.lines && ahead < part.ahead_end; ++line, ahead += kGemmLine) {
      __builtin_prefetch(ahead);
    }
    const int64_t end = t + kGemmSteps < part.depth ? t + kGemmSteps : part.depth;
    for (; t < end; ++t, weights += kVectors * kLanes) {
      F w[kVectors];
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) w[v] = LoadWeights(weights + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const F value = Broadcast(r < 4 ? x[r * stride + t] : x_upper[(r - 4) * stride + t]);
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) sum[r][v] = Fma(value, w[v], sum[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r, y += g.y_stride) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      const float* const bias = part.bias == nullptr ? nullptr : part.bias + v * kLanes;
      const Activation activation = part.last ? g.activation : Activation::kNone;
      Finish(sum[r][v], part.add, bias, activation, part.columns - v * kLanes, y + v * kLanes);
    }
  }
}

// GemmTile of `rows` rows, 1 <= rows <= kRows.
template <int kRows, int kVectors, typename W>
EDGEWISE_INLINE void GemmTileOf(int64_t rows, const Gemm& g, const GemmPart<W>& part, const float* x, float* y) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return GemmTileOf<kRows - 1, kVectors, W>(rows, g, part, x, y);
  }
  GemmTile<kRows, kVectors, W>(g, part, x, y);
}

// Tiles of equal height, give or take one row. Together they fetch the weights that come next: the first tile would
// wait for memory otherwise, while the others do not read it.
template <int kVectors, typename W>
void GemmRows(const Gemm& g, GemmPart<W> part, const float* x, float* y, int64_t rows) {
  const int64_t tiles = (rows + kGemmTileRows - 1) / kGemmTileRows;
  const int64_t fetches = tiles * ((part.depth + kGemmSteps - 1) / kGemmSteps);  // not 0: there are rows
  part.lines = ((part.ahead_end - part.ahead) / kGemmLine + fetches - 1) / fetches;
  for (int64_t tile = 0, row = 0; tile < tiles; ++tile) {
    const int64_t end = rows * (tile + 1) / tiles;
    GemmTileOf<kGemmTileRows, kVectors, W>(end - row, g, part, x + row * g.x_stride, y + row * g.y_stride);
    part.ahead += part.lines * kGemmLine * (fetches / tiles);
    row = end;
  }
}

// gemm.cc has these, for products of bfloat16 too.
extern template void GemmRows<1>(const Gemm&, GemmPart<float>, const float*, float*, int64_t);
extern template void GemmRows<2>(const Gemm&, GemmPart<float>, const float*, float*, int64_t);
extern template void GemmRows<3>(const Gemm&, GemmPart<float>, const float*, float*, int64_t);

// Tiles that read the weights again and again read them widened. A sum is made of the same float32 numbers as in a tile
// that widens them on the way.
template <int kVectors>
static void GemmRows(const Gemm& g, const GemmPart<uint16_t>& part, const float* x, float* y, int64_t rows) {
  alignas(64) float wide[kGemmSegment * kVectors * kLanes];
  for (int64_t t = 0; t < part.depth * kVectors; ++t) Store(wide + t * kLanes, LoadWeights(part.weights + t * kLanes));
  const GemmPart<float> widened = {wide,      part.depth, part.columns,   part.bias, part.add,
                                   part.last, part.ahead, part.ahead_end, 0};
  GemmRows<kVectors, float>(g, widened, x, y, rows);
}

template <typename W>
static void MultiplyRows(const Gemm& g) {
  if (g.rows == 0) return;
  constexpr auto kBytes = static_cast<int64_t>(sizeof(W));
  const int64_t vectors = (g.columns + kLanes - 1) / kLanes;
  const bool fetch = g.rows > kGemmTileRows || g.in * g.columns * kBytes > kGemmCached;
  const auto weights = [&](int64_t vector, int64_t first) {
    return static_cast<const W*>(g.panels) + (vector * g.in + first * GemmPanelVectors(vectors - vector)) * kLanes;
  };
  const bool one_tile = g.rows <= kGemmTileRows;
  const bool in_order = one_tile || g.rows * g.in * static_cast<int64_t>(sizeof(float)) <= kGemmInOrder;
  // The segment from input `first` on of the panel that begins at `vector`; returns the next panel.
  const auto run = [&](int64_t row, int64_t rows, int64_t first, int64_t vector) {
    const int wide = GemmPanelVectors(vectors - vector);
    const int64_t column = vector * kLanes, next = vector + wide;
    GemmPart<W> part;
    part.weights = weights(vector, first);
    part.depth = kGemmSegment < g.in - first ? kGemmSegment : g.in - first;
    part.last = first + part.depth == g.in;
    part.add = first > 0 || g.accumulate;
    part.columns = static_cast<int>(g.columns - column < wide * kLanes ? g.columns - column : wide * kLanes);
    part.bias = part.last && g.bias != nullptr ? g.bias + column : nullptr;
    const int64_t bytes = part.depth * wide * kLanes * kBytes;
    const auto* const here = reinterpret_cast<const char*>(part.weights);
    const W* const same_segment = next < vectors ? weights(next, first) : weights(0, first + part.depth);
    part.ahead = one_tile ? here + kGemmAhead : in_order ? here + bytes : reinterpret_cast<const char*>(same_segment);
    part.ahead_end = part.ahead + (fetch ? bytes : 0);
    const float* x = g.x + row * g.x_stride + first;
    float* y = g.y + row * g.y_stride + column;
    if (wide == 3) one_tile ? GemmRows<3, W>(g, part, x, y, rows) : GemmRows<3>(g, part, x, y, rows);
    if (wide == 2) one_tile ? GemmRows<2, W>(g, part, x, y, rows) : GemmRows<2>(g, part, x, y, rows);
    if (wide == 1) one_tile ? GemmRows<1, W>(g, part, x, y, rows) : GemmRows<1>(g, part, x, y, rows);
    return next;
  };
  if (in_order) {
    for (int64_t vector = 0, next = 0; vector < vectors; vector = next) {
      for (int64_t first = 0; first < g.in; first += kGemmSegment) next = run(0, g.rows, first, vector);
    }
    return;
  }
  constexpr int64_t kRows = sizeof(W) == sizeof(float) ? kGemmBlockRows : kGemmWidenedRows;
  const int64_t blocks = (g.rows + kRows - 1) / kRows;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t row = g.rows * block / blocks, rows = g.rows * (block + 1) / blocks - row;
    for (int64_t first = 0; first < g.in; first += kGemmSegment) {
      for (int64_t vector = 0; vector < vectors;) vector = run(row, rows, first, vector);
    }
  }
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_GEMM_INL_
