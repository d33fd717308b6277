// Matrix products on AMX tiles: registers of 16 rows of 64 bytes. A product of two tiles takes 16 groups of inputs of
// 16 rows and 16 columns.
//
// Loops from the outside in: panels; pairs of tiles of rows; steps of 16 groups, over which up to six tiles of sums
// stay in registers. CpuLinear gives rows in blocks that stay in the second-level cache. A sum of bfloat16 is one chain
// over all steps, so a row's bytes do not depend on the tiles that it is in.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_AMX_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_AMX_INL_

#include <type_traits>

#include "kernels/cpu/simd/epilogue.inl"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/vector.h"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

inline constexpr int kTileHeight = 16;             // rows of a tile
inline constexpr int kTileBytes = 64;              // of a row of a tile
inline constexpr int kStepGroups = 16;             // groups of inputs of a tile
inline constexpr int64_t kSumsWidth = 3 * kLanes;  // columns of the widest panel
inline constexpr int64_t kLeastInt8Rows = 4;       // fewer rows are faster without tiles

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles 0 to 2 are sums of the upper rows, 3 to 5 of the lower ones, 6 is x, 7 weights.
EDGEWISE_INLINE void ConfigureTiles(int64_t height) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = kTileBytes;
    config.rows[tile] = static_cast<uint8_t>(tile == 7 ? kTileHeight : height);
  }
  asm volatile("" : : "r"(&config) : "memory");  // GCC's _tile_loadconfig names the first bytes alone
  _tile_loadconfig(&config);
}

// The operands of a tile of sums: 16 groups of 4 bytes, or of 2 bfloat16.
struct TileOperands {
  const uint32_t* upper;  // rows of x, `stride` bytes apart
  const uint32_t* lower;
  int64_t stride;
  const char* weights;  // [groups, kVectors * kLanes] of 4 bytes
  int64_t steps;
  const char* ahead;  // weights that come next; each step fetches `lines` cache lines of them
  int64_t lines;
};

#define EDGEWISE_TILE_PRODUCT(sums, x, w) \
  if constexpr (kInt8) {                  \
    _tile_dpbusd(sums, x, w);             \
  } else {                                \
    _tile_dpbf16ps(sums, x, w);           \
  }

// sums [2 * kTileHeight, kSumsWidth] of 32 bits, the upper rows first.
template <bool kInt8, bool kLower, int kVectors>
static void TileSums(const TileOperands& o, uint32_t* sums) {
  constexpr int64_t kStride = kVectors * kTileBytes, kSumsStride = kSumsWidth * 4;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  const char* upper = reinterpret_cast<const char*>(o.upper);
  const char* lower = reinterpret_cast<const char*>(o.lower);
  const char* weights = o.weights;
  const char* ahead = o.ahead;
  for (int64_t step = 0; step < o.steps; ++step) {
    for (int64_t line = 0; line < o.lines; ++line, ahead += kTileBytes) __builtin_prefetch(ahead, 0, 2);
    _tile_loadd(6, upper, o.stride);
    _tile_loadd(7, weights, kStride);
    EDGEWISE_TILE_PRODUCT(0, 6, 7)
    if constexpr (kVectors > 1) {
      _tile_loadd(7, weights + kTileBytes, kStride);
      EDGEWISE_TILE_PRODUCT(1, 6, 7)
    }
    if constexpr (kVectors > 2) {
      _tile_loadd(7, weights + 2 * kTileBytes, kStride);
      EDGEWISE_TILE_PRODUCT(2, 6, 7)
    }
    if constexpr (kLower) {  // with the weights that are there first
      _tile_loadd(6, lower, o.stride);
      if constexpr (kVectors > 2) {
        EDGEWISE_TILE_PRODUCT(5, 6, 7)
        _tile_loadd(7, weights + kTileBytes, kStride);
      }
      if constexpr (kVectors > 1) {
        EDGEWISE_TILE_PRODUCT(4, 6, 7)
        _tile_loadd(7, weights, kStride);
      }
      EDGEWISE_TILE_PRODUCT(3, 6, 7)
    }
    upper += kTileBytes;
    lower += kTileBytes;
    weights += kStepGroups * kStride;
  }
  _tile_stored(0, sums, kSumsStride);
  if constexpr (kVectors > 1) _tile_stored(1, sums + kLanes, kSumsStride);
  if constexpr (kVectors > 2) _tile_stored(2, sums + 2 * kLanes, kSumsStride);
  if constexpr (kLower) {
    sums += kTileHeight * kSumsWidth;
    _tile_stored(3, sums, kSumsStride);
    if constexpr (kVectors > 1) _tile_stored(4, sums + kLanes, kSumsStride);
    if constexpr (kVectors > 2) _tile_stored(5, sums + 2 * kLanes, kSumsStride);
  }
}

#undef EDGEWISE_TILE_PRODUCT

template <bool kInt8, bool kLower>
EDGEWISE_INLINE void PanelSums(int vectors, const TileOperands& o, uint32_t* sums) {
  if (vectors == 3) TileSums<kInt8, kLower, 3>(o, sums);
  if (vectors == 2) TileSums<kInt8, kLower, 2>(o, sums);
  if (vectors == 1) TileSums<kInt8, kLower, 1>(o, sums);
}

EDGEWISE_INLINE void FinishVector(const Int8Gemm& g, const uint32_t* sums, int64_t row, int64_t column, int count) {
  FinishInt8(g, *reinterpret_cast<const UnalignedInt*>(sums), row, column, count);
}
EDGEWISE_INLINE void FinishVector(const Gemm& g, const uint32_t* sums, int64_t row, int64_t column, int count) {
  const float* const bias = g.bias == nullptr ? nullptr : g.bias + column;
  Finish(Load(reinterpret_cast<const float*>(sums)), g.accumulate, bias, g.activation, count,
         g.y + row * g.y_stride + column);
}

// G: Int8Gemm, or Gemm of pairs. Tiles have the rows that there are, or 16; the last of several begins 16 rows before
// the end, and what it shares with the one before is computed twice.
template <typename G>
static void MultiplyTiles(const G& g, const uint32_t* x, int64_t groups) {
  constexpr bool kInt8 = std::is_same_v<G, Int8Gemm>;
  if (g.rows == 0) return;
  alignas(64) uint32_t sums[2 * kTileHeight * kSumsWidth];
  const int64_t height = g.rows < kTileHeight ? g.rows : kTileHeight;
  const int64_t tiles = (g.rows + kTileHeight - 1) / kTileHeight, pairs = (tiles + 1) / 2;
  const auto first_row = [&](int64_t tile) {
    return tile * kTileHeight < g.rows - height ? tile * kTileHeight : g.rows - height;
  };
  const int64_t vectors = (g.columns + kLanes - 1) / kLanes;
  const int64_t vector_bytes = groups * kTileBytes;
  const auto* const panels = reinterpret_cast<const char*>(g.panels);
  ConfigureTiles(height);
  for (int64_t vector = 0; vector < vectors;) {
    const int wide = GemmPanelVectors(vectors - vector);
    TileOperands o;
    o.stride = g.x_stride * 4;
    o.weights = panels + vector * vector_bytes;
    o.steps = groups / kStepGroups;
    // The pairs of tiles fetch the next panel together. A single one reads weights as fast as they come.
    const char* const next = o.weights + wide * vector_bytes;
    const int64_t step_lines = pairs == 1 ? 0 : kStepGroups * wide;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const int64_t row = 2 * kTileHeight * pair, end = row + 2 * kTileHeight < g.rows ? row + 2 * kTileHeight : g.rows;
      const int64_t starts[2] = {first_row(2 * pair), first_row(2 * pair + 1)};
      const int64_t line = step_lines * pair / pairs;
      o.upper = x + starts[0] * g.x_stride;
      o.lower = x + starts[1] * g.x_stride;
      o.lines = step_lines * (pair + 1) / pairs - line;
      o.ahead = next + line * o.steps * kTileBytes;
      2 * pair + 1 < tiles ? PanelSums<kInt8, true>(wide, o, sums) : PanelSums<kInt8, false>(wide, o, sums);
      for (int64_t r = row; r < end; ++r) {
        const int64_t lower = (r - row) / kTileHeight;
        const uint32_t* const from = sums + (lower * kTileHeight + r - starts[lower]) * kSumsWidth;
        for (int v = 0; v < wide; ++v) {
          const int64_t column = (vector + v) * kLanes, left = g.columns - column;
          FinishVector(g, from + v * kLanes, r, column, static_cast<int>(left < kLanes ? left : kLanes));
        }
      }
    }
    vector += wide;
  }
  _tile_release();
}

static void MultiplyPairs(const Gemm& g) {
  constexpr int64_t kInputs = 2 * kStepGroups;
  MultiplyTiles(g, g.pairs, (g.in + kInputs - 1) / kInputs * kStepGroups);
}

static void MultiplyInt8(const Int8Gemm& g) {
  g.rows < kLeastInt8Rows ? avx512::Table().gemm_int8(g) : MultiplyTiles(g, g.x, g.groups);
}

// Half to even, as VCVTNE2PS2BF16 rounds: numbers below 2^-126 become 0, which the products would make of them too.
static void RoundRow(const float* x, int64_t columns, uint32_t* pairs) {
  for (int64_t c = 0; c < columns; c += 2 * kLanes, pairs += kLanes) {
    const int64_t left = columns - c;
    F low, high = Zero();
    if (left >= 2 * kLanes) {
      low = Load(x + c), high = Load(x + c + kLanes);
    } else if (left > kLanes) {
      low = Load(x + c), high = LoadFirst(x + c + kLanes, static_cast<int>(left - kLanes));
    } else {
      low = LoadFirst(x + c, static_cast<int>(left));
    }
    const __m512bh rounded = _mm512_cvtne2ps_pbh(high, low);
    __builtin_memcpy(pairs, &rounded, sizeof rounded);
  }
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_AMX_INL_
