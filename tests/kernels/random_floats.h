// Normal random numbers, the same for a seed on every run.
#ifndef EDGEWISE_TESTS_KERNELS_RANDOM_FLOATS_H_
#define EDGEWISE_TESTS_KERNELS_RANDOM_FLOATS_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace edgewise::testing {

inline std::vector<float> Random(size_t size, uint64_t seed, float scale = 1.0f) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (float& value : values) value = scale * normal(random);
  return values;
}

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_KERNELS_RANDOM_FLOATS_H_
