// Random attention calls for tests: operands, memberships with true bounds, sequences with and without interior pads.
#ifndef EDGEWISE_TESTS_KERNELS_ATTENTION_CASES_H_
#define EDGEWISE_TESTS_KERNELS_ATTENTION_CASES_H_

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "kernels/attention.h"

namespace edgewise::testing {

inline constexpr Law kLaws[] = {Law::kBernoulli, Law::kPoissonSet, Law::kPoissonMulti};

// The shape of a case's inputs.
struct Shape {
  std::vector<int> lengths = {40};  // tokens of each sequence
  int heads = 2;
  int key_value_heads = 0;  // 0: heads
  int head_dim = 16;
  int value_dim = 0;  // 0: head_dim
  int rank = 32;
  double mean_rate = 0.1;   // of p_ij before exploration
  double spread = 0.5;      // how far p_ij varies: 0 gives equal memberships
  double gap_share = 0.0;   // chance of a pad before a token
  bool one_matrix = false;  // q, k, v side by side in one matrix, as a fused projection leaves them
  uint32_t seed = 1;
};

// Owns everything that its AttentionInputs and problems point to.
struct Case {
  explicit Case(const Shape& shape);
  Case(const Case&) = delete;

  // One problem per sequence with this pattern and cap; samples after each other write to rows of their own.
  void AddProblems(const AttentionPattern& pattern, int32_t cap = -1);
  // The rows of q are these, [rows, heads * head_dim], and no longer those of `data`.
  void TakeQueries(const std::vector<float>& rows);
  // Reports ask for the graph, key degrees and expected edges.
  void AskForAll();
  int64_t out_columns() const { return inputs.v.columns / inputs.key_value_heads() * inputs.num_heads; }

  std::vector<float> data, x, y, query_bound, key_bound;
  std::vector<std::vector<int32_t>> positions;
  std::vector<std::unique_ptr<AttentionReport>> reports;
  std::vector<int64_t> first_rows;
  std::vector<int> lengths;
  AttentionInputs inputs;
  std::vector<AttentionProblem> problems;
  int64_t out_rows = 0;
};

struct Outcome {
  std::vector<float> out;
  std::vector<AttentionReport> reports;  // by problem
  std::vector<EdgeCap> caps;
};

Outcome RunReference(const Case& attention_case, std::vector<EdgeCap> caps = {});

// Rows of the output that are a problem's.
std::span<const float> RowsOf(const Case& attention_case, const Outcome& outcome, size_t problem);

// Graphs that went through a call, by problem and head: patterns for another.
std::vector<std::vector<HeadEdges>> GraphsOf(const Outcome& outcome);

// The edges of the problems under a cap, and those of them that it never drops.
uint64_t EdgesUnder(const Case& attention_case, const Outcome& outcome, int32_t cap);
uint64_t ForcedUnder(const Case& attention_case, int32_t cap);

double LargestDifference(std::span<const float> a, std::span<const float> b);
bool SameBytes(std::span<const float> a, std::span<const float> b);

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_KERNELS_ATTENTION_CASES_H_
