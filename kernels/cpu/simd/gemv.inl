// Products of few rows, which are bound by reading the weights.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_GEMV_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_GEMV_INL_

#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/vector.h"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

// x (1 + erf(x / sqrt 2)) / 2 by formula 7.1.26 of Abramowitz and Stegun: max(x, 0) - |x| P(t) exp(-x^2 / 2) / 2 with
// t = 1 / (1 + p |x| / sqrt 2). Within |x| * 1e-7.
EDGEWISE_INLINE F Gelu(F x) {
  const F size = Max(x, Zero() - x);
  const F z = size * Broadcast(0.70710678f);
  const F t = Broadcast(1.0f) / Fma(Broadcast(0.3275911f), z, Broadcast(1.0f));
  F p = Broadcast(1.061405429f);
  p = Fma(p, t, Broadcast(-1.453152027f));
  p = Fma(p, t, Broadcast(1.421413741f));
  p = Fma(p, t, Broadcast(-0.284496736f));
  p = Fma(p, t, Broadcast(0.254829592f));
  const F tail = p * t * Exp2(x * x * Broadcast(-0.72134752f));
  return Max(Zero(), x) - size * tail * Broadcast(0.5f);
}

// Bias, addition to y, activation, for the first min(count, kLanes) of a vector of columns.
EDGEWISE_INLINE void FinishGemv(const Gemv& f, float* y, int column, int count, F value) {
  const bool whole = count >= kLanes;
  const auto load = [&](const float* p) { return whole ? Load(p) : LoadFirst(p, count); };
  if (f.bias != nullptr) value = value + load(f.bias + column);
  if (f.accumulate) value = load(y) + value;
  if (f.activation == Activation::kRelu) value = Max(Zero(), value);
  if (f.activation == Activation::kGelu) value = Gelu(value);
  if (whole) return Store(y, value);
  alignas(64) float part[kLanes];
  Store(part, value);
  for (int l = 0; l < count; ++l) y[l] = part[l];
}

// kVectors vectors of columns of kRows rows; the first `count` columns are kept.
template <int kRows, int kVectors>
EDGEWISE_INLINE void GemvTile(const Gemv& f, int64_t row, int column, int count) {
  F sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kVectors; ++c) sum[r][c] = Zero();
  }
  const float* x = f.x + row * f.x_stride;
  const float* weight = f.weight + column;
  for (int64_t t = 0; t < f.in; ++t, weight += f.weight_stride) {
    F w[kVectors];
    for (int c = 0; c < kVectors; ++c) w[c] = Load(weight + c * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const F value = Broadcast(x[r * f.x_stride + t]);
      for (int c = 0; c < kVectors; ++c) sum[r][c] = Fma(value, w[c], sum[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float* y = f.y + (row + r) * f.y_stride + column;
    for (int c = 0; c < kVectors && c * kLanes < count; ++c) {
      FinishGemv(f, y + c * kLanes, column + c * kLanes, count - c * kLanes, sum[r][c]);
    }
  }
}

// The last columns of a matrix whose memory ends with them, so that whole vectors cannot be read.
static void GemvTail(const Gemv& f, int column) {
  const int count = f.columns - column;
  for (int64_t row = 0; row < f.rows; ++row) {
    F total = Zero();
    for (int64_t t = 0; t < f.in; ++t) {
      const F weight = LoadFirst(f.weight + t * f.weight_stride + column, count);
      total = Fma(Broadcast(f.x[row * f.x_stride + t]), weight, total);
    }
    FinishGemv(f, f.y + row * f.y_stride + column, column, count, total);
  }
}

template <int kVectors>
EDGEWISE_INLINE void GemvColumns(const Gemv& f, int column, int count) {
  int64_t row = 0;
  for (; row + 6 <= f.rows; row += 6) GemvTile<6, kVectors>(f, row, column, count);
  for (; row + 2 <= f.rows; row += 2) GemvTile<2, kVectors>(f, row, column, count);
  if (row < f.rows) GemvTile<1, kVectors>(f, row, column, count);
}

static void MultiplyFewRows(const Gemv& f) {
  constexpr int kWide = kScoreVectors;  // 6 rows of them fit into the registers
  int column = 0;
  for (; column + kWide * kLanes <= f.columns; column += kWide * kLanes) GemvColumns<kWide>(f, column, kWide * kLanes);
  if constexpr (kWide > 2) {
    for (; column + 2 * kLanes <= f.columns; column += 2 * kLanes) GemvColumns<2>(f, column, 2 * kLanes);
  }
  for (; column < f.columns && column + kLanes <= f.readable; column += kLanes)
    GemvColumns<1>(f, column, f.columns - column);
  if (column < f.columns) GemvTail(f, column);
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_GEMV_INL_
