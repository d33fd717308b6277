// Operations on whole rows: norms, rotation, gates.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_WHOLE_ROWS_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_WHOLE_ROWS_INL_

#include "kernels/cpu/simd/epilogue.inl"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/vector.h"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

// Calls visit(vector of x, count of its elements, column, slot) for all columns of a row; slots take turns, 0 to 3.
template <typename Visit>
EDGEWISE_INLINE void ForVectors(const float* x, int64_t columns, const Visit& visit) {
  int64_t c = 0;
  for (; c + 4 * kLanes <= columns; c += 4 * kLanes) {
    for (int slot = 0; slot < 4; ++slot) visit(Load(x + c + slot * kLanes), kLanes, c + slot * kLanes, slot);
  }
  for (; c + kLanes <= columns; c += kLanes) visit(Load(x + c), kLanes, c, 0);
  const int count = static_cast<int>(columns - c);
  if (count > 0) visit(LoadFirst(x + c, count), count, c, 1);
}

EDGEWISE_INLINE F FirstOf(F a, int count) {
  float lane[kLanes];
  Store(lane, a);
  return LoadFirst(lane, count);
}

// 1. The mean. 2. The variance about the mean. 3. The row.
static void LayerNorm(const float* x, const float* weight, const float* bias, float epsilon, int64_t columns,
                      float* y) {
  F sum[4] = {Zero(), Zero(), Zero(), Zero()};
  ForVectors(x, columns, [&](F value, int, int64_t, int slot) { sum[slot] = sum[slot] + value; });
  const float count = static_cast<float>(columns);
  const F mean = Broadcast(ReduceAdd((sum[0] + sum[1]) + (sum[2] + sum[3])) / count);
  F squares[4] = {Zero(), Zero(), Zero(), Zero()};
  ForVectors(x, columns, [&](F value, int present, int64_t, int slot) {
    const F difference = present == kLanes ? value - mean : FirstOf(value - mean, present);
    squares[slot] = Fma(difference, difference, squares[slot]);
  });
  const float variance = ReduceAdd((squares[0] + squares[1]) + (squares[2] + squares[3])) / count;
  const F scale = Broadcast(1.0f / __builtin_sqrtf(variance + epsilon));
  ForVectors(x, columns, [&](F value, int present, int64_t c, int) {
    const F norm = (value - mean) * scale;
    if (present == kLanes) return Store(y + c, Fma(norm, Load(weight + c), Load(bias + c)));
    StoreFirst(y + c, Fma(norm, LoadFirst(weight + c, present), LoadFirst(bias + c, present)), present);
  });
}

static void RmsNorm(const float* x, const float* weight, float epsilon, int64_t columns, float* y) {
  F squares[4] = {Zero(), Zero(), Zero(), Zero()};
  ForVectors(x, columns, [&](F value, int, int64_t, int slot) { squares[slot] = Fma(value, value, squares[slot]); });
  const float mean = ReduceAdd((squares[0] + squares[1]) + (squares[2] + squares[3])) / static_cast<float>(columns);
  const F scale = Broadcast(1.0f / __builtin_sqrtf(mean + epsilon));
  ForVectors(x, columns, [&](F value, int present, int64_t c, int) {
    if (present == kLanes) return Store(y + c, value * scale * Load(weight + c));
    StoreFirst(y + c, value * scale * LoadFirst(weight + c, present), present);
  });
}

static void Rotate(const float* cosines_and_sines, int64_t half, float* x) {
  const float* const sines = cosines_and_sines + half;
  ForVectors(cosines_and_sines, half, [&](F cosine, int present, int64_t c, int) {
    float* const first = x + c;
    float* const second = x + half + c;
    if (present == kLanes) {
      const F sine = Load(sines + c), a = Load(first), b = Load(second);
      Store(first, a * cosine - b * sine);
      return Store(second, b * cosine + a * sine);
    }
    const F sine = LoadFirst(sines + c, present), a = LoadFirst(first, present), b = LoadFirst(second, present);
    StoreFirst(first, a * cosine - b * sine, present);
    StoreFirst(second, b * cosine + a * sine, present);
  });
}

static void Gate(Activation activation, int64_t columns, float* row) {
  const float* const second = row + columns;
  ForVectors(row, columns, [&](F value, int present, int64_t c, int) {
    if (present == kLanes) return Store(row + c, Activate(activation, value) * Load(second + c));
    StoreFirst(row + c, Activate(activation, value) * LoadFirst(second + c, present), present);
  });
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_WHOLE_ROWS_INL_
