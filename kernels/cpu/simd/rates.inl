// The rates of edges that are known.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_RATES_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_RATES_INL_

#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/vector.h"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

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
