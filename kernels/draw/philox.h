// Philox4x32-10: a counter-based random number generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011). A pure function of key and counter: a number depends on its purpose alone.
//
// Plain C++17, compiled for the host and for the device.
#ifndef EDGEWISE_KERNELS_DRAW_PHILOX_H_
#define EDGEWISE_KERNELS_DRAW_PHILOX_H_

#include <cstdint>

#if defined(__CUDACC__)
#define EDGEWISE_HOST_DEVICE __host__ __device__
#else
#define EDGEWISE_HOST_DEVICE
#endif

namespace edgewise {

inline constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53u;
inline constexpr uint32_t kPhiloxMultiplier1 = 0xCD9E8D57u;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u;
inline constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85u;
inline constexpr int kPhiloxRounds = 10;

// Four 32-bit words: a counter on the way in, random words on the way out.
struct PhiloxBlock {
  uint32_t word[4];
};

// Ten rounds on `counter` under `key` (low word first).
EDGEWISE_HOST_DEVICE inline PhiloxBlock Philox4x32(uint64_t key, PhiloxBlock counter) {
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t product0 = static_cast<uint64_t>(kPhiloxMultiplier0) * c0;
    const uint64_t product1 = static_cast<uint64_t>(kPhiloxMultiplier1) * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(product0);
    k0 += kPhiloxWeyl0;
    k1 += kPhiloxWeyl1;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_DRAW_PHILOX_H_
