// Shared by the tests of edge caps: the edges that a cap had to choose from, and those that it must have chosen.
#ifndef EDGEWISE_TESTS_CUDA_ATTENTION_CAPS_CASE_H_
#define EDGEWISE_TESTS_CUDA_ATTENTION_CAPS_CASE_H_

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "tests/cuda/device_case.h"
#include "tests/kernels/attention_cases.h"

namespace edgewise::cuda::testing {

// A drawn edge in the order in which caps keep them.
using Key = std::tuple<double, int32_t, int32_t, int32_t, int32_t>;  // age, problem, head, query, key

// The edges drawn under one cap, before the cap drops any.
struct Drawn {
  uint64_t forced = 0;
  std::vector<Key> edges;  // ascending
};

Drawn DrawnUnder(const edgewise::testing::Case& host, int32_t cap);

// `cap` is what a cap that may keep `allowed` of `drawn` must be.
void ExpectCap(const DeviceCap& cap, const Drawn& drawn, uint64_t allowed, int num_heads, const std::string& what);

// Runs caps of `max_edges` on the device and compares the kept edges with the reference's.
void ExpectAsReference(const edgewise::testing::Case& host, const std::vector<uint64_t>& max_edges,
                       const std::string& what);

}  // namespace edgewise::cuda::testing

#endif  // EDGEWISE_TESTS_CUDA_ATTENTION_CAPS_CASE_H_
