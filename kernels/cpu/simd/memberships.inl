// A tile of tokens through the membership network. Its rows between the products stay in the first-level cache.
//
// Every output is one chain of fused multiply-adds in ascending order of the inputs, so a row's bytes do not depend on
// the other rows of its tile. (Without FMA each step rounds twice.)
#ifndef EDGEWISE_KERNELS_CPU_SIMD_MEMBERSHIPS_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_MEMBERSHIPS_INL_

#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/vector.h"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

inline constexpr int kMembershipStep = kLanes == 16 ? 8 : 6;  // rows whose sums, of two vectors, stay in registers

// 1 / (1 + exp(-x)) as e / (1 + exp(-|x|)), where e is 1 for x >= 0 and exp(-|x|) below. NaN stays NaN.
EDGEWISE_INLINE F Sigmoid(F x) {
  const F power = Exp2(Max(x, Zero() - x) * Broadcast(-1.44269504f));
  const F step = Min(Broadcast(1.0f), Max(Zero(), x * Broadcast(1e38f)));
  return Max(power, step) / (Broadcast(1.0f) + power);
}

// y = max(floor, bias + x W) of kRows rows and one panel of kVectors vectors.
template <int kRows, int kVectors>
EDGEWISE_INLINE void MultiplyPanel(const MembershipPanel& panel, float floor, const float* x, int64_t x_stride,
                                   float* y, int64_t y_stride) {
  F sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[r][v] = Load(panel.bias + v * kLanes);
  }
  const float* weights = panel.weights;
  const float* upper = x + 4 * x_stride;  // rows are reached from two pointers by the multiples an address can hold
  for (int64_t t = panel.begin; t < panel.end; ++t, weights += kVectors * kLanes) {
    F w[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) w[v] = Load(weights + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F value = Broadcast(r < 4 ? x[r * x_stride + t] : upper[(r - 4) * x_stride + t]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Fma(value, w[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) Store(y + r * y_stride + v * kLanes, Max(Broadcast(floor), sum[r][v]));
  }
}

// MultiplyPanel of `rows` rows, 1 <= rows <= kRows.
template <int kRows, int kVectors>
EDGEWISE_INLINE void MultiplyPanelOf(int64_t rows, const MembershipPanel& panel, float floor, const float* x,
                                     int64_t x_stride, float* y, int64_t y_stride) {
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      return MultiplyPanelOf<kRows - 1, kVectors>(rows, panel, floor, x, x_stride, y, y_stride);
    }
  }
  MultiplyPanel<kRows, kVectors>(panel, floor, x, x_stride, y, y_stride);
}

template <int kVectors>
static void MultiplySteps(const MembershipPanel& panel, float floor, int64_t rows, const float* x, int64_t x_stride,
                          float* y, int64_t y_stride) {
  const int64_t steps = (rows + kMembershipStep - 1) / kMembershipStep;
  for (int64_t step = 0, row = 0; step < steps; ++step) {
    const int64_t end = rows * (step + 1) / steps;
    MultiplyPanelOf<kMembershipStep, kVectors>(end - row, panel, floor, x + row * x_stride, x_stride,
                                               y + row * y_stride, y_stride);
    row = end;
  }
}

static void MultiplyPanels(const MembershipProduct& product, float floor, int64_t rows, const float* x,
                           int64_t x_stride, float* y) {
  constexpr int kWide = 2 * kLanes;
  for (int column = 0; column < product.columns; column += kWide) {
    const MembershipPanel& panel = product.panels[column / kWide];
    const auto multiply = product.columns - column >= kWide ? MultiplySteps<2> : MultiplySteps<1>;
    multiply(panel, floor, rows, x, x_stride, y + column, product.columns);
  }
}

// squares[r] = <x_r, x_r> in the order of MembershipDot.
static void Squares(const float* x, int64_t rows, int64_t columns, float* squares) {
  constexpr int kParts = 16 / kLanes;  // vectors that hold the 16 partial sums
  for (int64_t r = 0; r < rows; ++r, x += columns) {
    F sum[kParts];
    for (int p = 0; p < kParts; ++p) sum[p] = Zero();
    for (int64_t t = 0; t < columns; t += 16) {
      for (int p = 0; p < kParts; ++p) {
        const F part = Load(x + t + p * kLanes);
        sum[p] = Fma(part, part, sum[p]);
      }
    }
    if constexpr (kParts == 1) {
      squares[r] = ReduceAdd(sum[0]);
      continue;
    }
    float lane[16];
    for (int p = 0; p < kParts; ++p) Store(lane + p * kLanes, sum[p]);
    for (int step = 8; step > 0; step /= 2) {
      for (int l = 0; l < step; ++l) lane[l] += lane[l + step];
    }
    squares[r] = lane[0];
  }
}

static void ComputeMemberships(const MembershipTile& tile) {
  const int64_t rows = tile.rows, clusters = tile.clusters.columns;
  float* hidden = tile.scratch;
  float* memberships = hidden + rows * tile.hidden.columns;
  constexpr float kNoFloor = -__builtin_inff();
  MultiplyPanels(tile.hidden, 0.0f, rows, tile.z, tile.z_stride, hidden);
  MultiplyPanels(tile.clusters, kNoFloor, rows, hidden, tile.hidden.columns, memberships);
  for (int64_t i = 0; i < rows * clusters; i += kLanes) Store(memberships + i, Sigmoid(Load(memberships + i)));
  MultiplyPanels(tile.factor, kNoFloor, rows, memberships, clusters, tile.out);
  Squares(tile.out, rows, tile.factor.columns, tile.squares);
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_MEMBERSHIPS_INL_
