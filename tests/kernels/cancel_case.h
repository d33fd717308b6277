// A case of three problems of which the second has a cancel flag.
#ifndef EDGEWISE_TESTS_KERNELS_CANCEL_CASE_H_
#define EDGEWISE_TESTS_KERNELS_CANCEL_CASE_H_

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>

#include "tests/kernels/attention_patterns.h"

namespace edgewise::testing {

inline constexpr size_t kCancelled = 1;  // of the problems of a case

// Three sequences of this pattern. Reports ask for all but graphs, for which a problem is computed in spite of its
// flag.
inline std::unique_ptr<Case> ThreeSequences(const Pattern& pattern, int length) {
  Shape shape;
  shape.lengths = {40, length, 33};
  auto attention_case = MakeCase(shape, pattern);
  for (const auto& report : attention_case->reports) report->wanted.graph = false;
  return attention_case;
}

// All but the dropped problem is as if there were no flag.
inline void ExpectSameMates(const Case& attention_case, const Outcome& got, const Outcome& want) {
  for (size_t p = 0; p < attention_case.problems.size(); ++p) {
    if (p == kCancelled) continue;
    EXPECT_TRUE(SameBytes(RowsOf(attention_case, got, p), RowsOf(attention_case, want, p))) << p;
    for (size_t h = 0; h < want.reports[p].heads.size(); ++h) {
      const HeadReport &a = got.reports[p].heads[h], &b = want.reports[p].heads[h];
      EXPECT_EQ(a.edges, b.edges) << p;
      EXPECT_EQ(a.isolated, b.isolated) << p;
      EXPECT_EQ(a.expected, b.expected) << p;
      EXPECT_EQ(a.key_degrees, b.key_degrees) << p;
      EXPECT_EQ(a.graph.keys, b.graph.keys) << p;
    }
  }
}

// How many values of the dropped problem were not written. The others have to be right.
inline size_t Untouched(const Case& attention_case, const Outcome& got, const Outcome& want) {
  const std::span<const float> a = RowsOf(attention_case, got, kCancelled),
                               b = RowsOf(attention_case, want, kCancelled);
  size_t untouched = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    untouched += std::isnan(a[i]) ? 1 : 0;
    EXPECT_TRUE(std::isnan(a[i]) || std::bit_cast<uint32_t>(a[i]) == std::bit_cast<uint32_t>(b[i]));
  }
  return untouched;
}

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_KERNELS_CANCEL_CASE_H_
