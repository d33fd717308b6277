// The rates and chances of edges.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_RATES_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_RATES_INL_

#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/vector.h"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

// (1 - exp(-r)) / r on [0, 1], interpolated: a polynomial, the highest power first. Error below 2e-7.
static constexpr float kChanceSeries[] = {0.00012907631f, -0.00130077496f, 0.00827550484f, -0.0416468493f,
                                          0.166663403f,   -0.499999797f,   0.999999998f};

// P(at least one edge) at these rates, under a Poisson law.
EDGEWISE_INLINE F PoissonChance(F rate) {
  F p = Broadcast(kChanceSeries[0]);
#pragma GCC unroll 6
  for (int term = 1; term < 7; ++term) p = Fma(p, rate, Broadcast(kChanceSeries[term]));
  return rate * p;
}

static void EdgeRates(const DrawTables& tables, const float* x, const int32_t* keys, int64_t count, float* rates) {
  const DotOperand<0> query = LoadOperand<0>(x);
  for (int64_t first = 0; first < count; first += 16) {
    int32_t list[16];
    for (int k = 0; k < 16; ++k) list[k] = keys[first + k < count ? first + k : count - 1];
    float* dots = rates + first;
    StoreDots16<0>(query, tables.rank / 16, tables.y, tables.rank, list, dots);
    for (int k = 0; k < 16; ++k) {
      const float p = (dots[k] > 0.0f ? dots[k] : 0.0f) + tables.exploration;
      dots[k] = p < 1.0f ? p : 1.0f;
    }
  }
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_RATES_INL_
