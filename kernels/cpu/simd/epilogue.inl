// The epilogue of a matrix product: scales, bias and activation of its sums.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_EPILOGUE_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_EPILOGUE_INL_

#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/vector.h"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

typedef int32_t Int __attribute__((vector_size(4 * kLanes)));
typedef int32_t UnalignedInt __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

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

// The tanh is 2 s(2 u) - 1 with the logistic s: max(x, 0) - |x| e / (1 + e) with e = exp(-2 |u|). Within |x| * 1e-6.
EDGEWISE_INLINE F GeluTanh(F x) {
  const F size = Max(x, Zero() - x);
  const F twice_u = size * Fma(size * size, Broadcast(0.0713548163f), Broadcast(1.59576912f));
  const F e = Exp2(twice_u * Broadcast(-1.44269504f));
  return Max(Zero(), x) - size * (e / (Broadcast(1.0f) + e));
}

// Within 2e-7; NaN stays NaN.
EDGEWISE_INLINE F Tanh(F x) {
  x = Min(Broadcast(20.0f), Max(Broadcast(-20.0f), x));  // of a NaN both give their second operand
  const F size = Max(x, Zero() - x);
  const F sign = x / Max(Broadcast(1e-30f), size);
  const F e = Exp2(size * Broadcast(-2.88539008f));
  return sign * ((Broadcast(1.0f) - e) / (Broadcast(1.0f) + e));
}

// x / (1 + 2^(-slope x)) as max(x, 0) - |x| e / (1 + e) with e = 2^(-slope |x|). Within |x| * 3e-7.
EDGEWISE_INLINE F Swish(F x, float slope) {
  const F size = Max(x, Zero() - x);
  const F e = Exp2(size * Broadcast(-slope));
  return Max(Zero(), x) - size * (e / (Broadcast(1.0f) + e));
}

// tanh(ln(1 + e)) is n / (n + 2) with n = e (e + 2), and 1 to float32 from e = exp(20) on. Within |x| * 3e-7.
EDGEWISE_INLINE F Mish(F x) {
  const F e = Exp2(Min(x, Broadcast(20.0f)) * Broadcast(1.44269504f));
  const F n = e * (e + Broadcast(2.0f));
  return x * (n / (n + Broadcast(2.0f)));
}

EDGEWISE_INLINE F Activate(Activation activation, F value) {
  switch (activation) {
    case Activation::kRelu:
      return Max(Zero(), value);
    case Activation::kGelu:
      return Gelu(value);
    case Activation::kGeluTanh:
      return GeluTanh(value);
    case Activation::kTanh:
      return Tanh(value);
    case Activation::kSilu:
      return Swish(value, 1.44269504f);
    case Activation::kQuickGelu:
      return Swish(value, 1.702f * 1.44269504f);
    case Activation::kMish:
      return Mish(value);
    case Activation::kNone:
      break;
  }
  return value;
}

// Sums of `count` columns, at most a vector of them; none where it is not positive. to = activation(sum + bias), or
// to = activation(to + sum + bias) with `add`. A null bias is none.
EDGEWISE_INLINE void Finish(F sum, bool add, const float* bias, Activation activation, int count, float* to) {
  F value = sum;
  if (count >= kLanes) {
    if (add) value = Load(to) + value;
    if (bias != nullptr) value = value + Load(bias);
    Store(to, Activate(activation, value));
  } else if (count > 0) {
    if (add) value = LoadFirst(to, count) + value;
    if (bias != nullptr) value = value + LoadFirst(bias, count);
    StoreFirst(to, Activate(activation, value), count);
  }
}

// Likewise one vector of outputs of Int8Gemm, from the sums of x times w; `column` is the first.
EDGEWISE_INLINE void FinishInt8(const Int8Gemm& g, Int sum, int64_t row, int64_t column, int count) {
  if (count <= 0) return;
  const Int exact = sum - g.zero[row] * *reinterpret_cast<const UnalignedInt*>(g.sums + column);
  float* const to = g.y + row * g.y_stride + column;
  const bool whole = count >= kLanes;
  F base = Zero();
  if (g.bias != nullptr) base = whole ? Load(g.bias + column) : LoadFirst(g.bias + column, count);
  if (g.accumulate) base = base + (whole ? Load(to) : LoadFirst(to, count));
  const F product = __builtin_convertvector(exact, F) * Broadcast(g.row_scale[row]);
  const F value = Activate(g.activation, Fma(product, Load(g.scale + column), base));
  whole ? Store(to, value) : StoreFirst(to, value, count);
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_EPILOGUE_INL_
