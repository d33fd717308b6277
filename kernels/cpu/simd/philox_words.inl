// One block of Philox4x32-10, for the few numbers that are drawn one at a time.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_PHILOX_WORDS_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_PHILOX_WORDS_INL_

#include "kernels/cpu/simd/vector.h"
#include "kernels/draw/philox.h"  // constants only

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

// Turns a counter into random words.
EDGEWISE_INLINE void MixWords(const uint32_t* seed, uint32_t* words) {
  uint32_t k0 = seed[0], k1 = seed[1];
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t product0 = static_cast<uint64_t>(kPhiloxMultiplier0) * words[0];
    const uint64_t product1 = static_cast<uint64_t>(kPhiloxMultiplier1) * words[2];
    words[0] = static_cast<uint32_t>(product1 >> 32) ^ words[1] ^ k0;
    words[1] = static_cast<uint32_t>(product1);
    words[2] = static_cast<uint32_t>(product0 >> 32) ^ words[3] ^ k1;
    words[3] = static_cast<uint32_t>(product0);
    k0 += kPhiloxWeyl0;
    k1 += kPhiloxWeyl1;
  }
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_PHILOX_WORDS_INL_
