// Patterns of every kind for a sequence of n tokens, and biases for every pair.
#ifndef EDGEWISE_TESTS_KERNELS_ATTENTION_PATTERNS_H_
#define EDGEWISE_TESTS_KERNELS_ATTENTION_PATTERNS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/kernels/attention_cases.h"

namespace edgewise::testing {

struct Pattern {
  std::string name;
  std::function<AttentionPattern(int32_t n)> make;
};

// All pairs, windows, blocks and awkward groups, causal and not.
std::vector<Pattern> Patterns();

// Windows of SSA: the keys are scattered over the windows.
GroupedKeys Windows(int32_t n, int windows, bool causal);

// A case with this pattern for every sequence, and reports of everything.
std::unique_ptr<Case> MakeCase(const Shape& shape, const Pattern& pattern);

enum class BiasKind { kNone, kDistance, kValues, kBuckets, kDistanceAndBuckets };
inline constexpr BiasKind kBiasKinds[] = {BiasKind::kNone, BiasKind::kDistance, BiasKind::kValues, BiasKind::kBuckets,
                                          BiasKind::kDistanceAndBuckets};

// Owns the biases that it gives to a case: as many positions as the case has.
class Biases {
 public:
  Biases(BiasKind kind, Case& attention_case);
  Biases(const Biases&) = delete;

 private:
  std::vector<float> distance_, values_, table_;
  std::vector<uint8_t> buckets_;
  PairwiseBias pairs_;
};

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_KERNELS_ATTENTION_PATTERNS_H_
