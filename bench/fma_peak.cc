#include "bench/fma_peak.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace edgewise::bench {
namespace {

// Twelve chains, all different lest they be computed once: enough to cover four cycles of latency on two pipes, few
// enough for 16 registers. Returns what depends on every step, so that nothing is left out.
#define EDGEWISE_FMA_CHAINS(type, set1, fma, first)                                                                  \
  type a0 = set1(1.0f), a1 = set1(2.0f), a2 = set1(3.0f), a3 = set1(4.0f), a4 = set1(5.0f), a5 = set1(6.0f),         \
       a6 = set1(7.0f), a7 = set1(8.0f), a8 = set1(9.0f), a9 = set1(10.0f), a10 = set1(11.0f), a11 = set1(12.0f);    \
  const type b = set1(0.5f), c = set1(0.25f);                                                                        \
  for (int64_t i = 0; i < steps; ++i) {                                                                              \
    a0 = fma(a0, b, c), a1 = fma(a1, b, c), a2 = fma(a2, b, c), a3 = fma(a3, b, c);                                  \
    a4 = fma(a4, b, c), a5 = fma(a5, b, c), a6 = fma(a6, b, c), a7 = fma(a7, b, c);                                  \
    a8 = fma(a8, b, c), a9 = fma(a9, b, c), a10 = fma(a10, b, c), a11 = fma(a11, b, c);                              \
  }                                                                                                                  \
  return first(a0) + first(a1) + first(a2) + first(a3) + first(a4) + first(a5) + first(a6) + first(a7) + first(a8) + \
         first(a9) + first(a10) + first(a11);

#if defined(__x86_64__)
__attribute__((target("avx512f"))) float Chains512(int64_t steps) {
  EDGEWISE_FMA_CHAINS(__m512, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_cvtss_f32)
}
__attribute__((target("avx2,fma"))) float Chains256(int64_t steps) {
  EDGEWISE_FMA_CHAINS(__m256, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_cvtss_f32)
}
#endif

typedef float Float4 __attribute__((vector_size(16)));
Float4 Set4(float a) { return Float4{a, a, a, a}; }
Float4 MultiplyAdd4(Float4 a, Float4 b, Float4 c) { return a * b + c; }
float First4(Float4 a) { return a[0]; }
float ChainsGeneric(int64_t steps) { EDGEWISE_FMA_CHAINS(Float4, Set4, MultiplyAdd4, First4) }

}  // namespace

double FmaPeak(Isa isa, int threads) {
  float (*chains)(int64_t) = ChainsGeneric;
  int lanes = 4;
#if defined(__x86_64__)
  if (isa == Isa::kAvx2) chains = Chains256, lanes = 8;
  if (isa == Isa::kAvx512 || isa == Isa::kAmx) chains = Chains512, lanes = 16;
#endif
  constexpr int64_t kSteps = 400000;
  constexpr int kRepeats = 15;
  std::vector<double> best(static_cast<size_t>(threads), 1e9);
  std::atomic<float> sink = 0.0f;
  std::vector<std::thread> runners;
  for (int t = 0; t < threads; ++t) {
    runners.emplace_back([&, t] {
      for (int repeat = 0; repeat < kRepeats; ++repeat) {
        const auto start = std::chrono::steady_clock::now();
        sink = chains(kSteps);
        best[t] = std::min(best[t], std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      }
    });
  }
  double rate = 0.0;
  for (int t = 0; t < threads; ++t) {
    runners[t].join();
    rate += 12.0 * 2.0 * lanes * static_cast<double>(kSteps) / best[t];
  }
  return rate;
}

}  // namespace edgewise::bench
