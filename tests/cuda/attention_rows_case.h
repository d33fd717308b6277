// Shared by the tests of the row kernel: cases run on the device, in both precisions, and the edges that it kept.
#ifndef EDGEWISE_TESTS_CUDA_ATTENTION_ROWS_CASE_H_
#define EDGEWISE_TESTS_CUDA_ATTENTION_ROWS_CASE_H_

#include <cstdint>
#include <ostream>
#include <vector>

#include "kernels/attention.h"
#include "tests/cuda/device_case.h"
#include "tests/kernels/attention_cases.h"

namespace edgewise::cuda::testing {

DrawnRows Drawn(Law law, uint64_t seed = 7);

// An edge that the device kept. Edges of a graph ascend.
struct KeptEdge {
  int32_t query, key;
  int multiplicity;
  bool operator==(const KeptEdge&) const = default;
};
using Graph = std::vector<KeptEdge>;
void PrintTo(const KeptEdge& edge, std::ostream* out);

// By problem and head.
std::vector<std::vector<Graph>> GraphsOf(const DeviceCase& device);

// Keys and values rounded as precision bf16 has them.
void RoundOperands(const edgewise::testing::Case& from, DeviceCase& device);

std::vector<float> AttendCase(const edgewise::testing::Case& from, bool bf16);

// Graphs, outputs and counts.
void ExpectReference(const edgewise::testing::Case& from, bool graphs = true);

}  // namespace edgewise::cuda::testing

#endif  // EDGEWISE_TESTS_CUDA_ATTENTION_ROWS_CASE_H_
