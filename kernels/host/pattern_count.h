// Edge counts and reports of patterns that draw nothing: the host computes them without attention.
#ifndef EDGEWISE_KERNELS_HOST_PATTERN_COUNT_H_
#define EDGEWISE_KERNELS_HOST_PATTERN_COUNT_H_

#include <cstdint>

#include "kernels/attention.h"

namespace edgewise {

// The tokens that a query attends to under AllPairs: begin..end - 1. `positions` [tokens] ascending; null: 0..tokens-1.
struct KeyRun {
  int32_t begin = 0, end = 0;

  int32_t size() const { return end - begin; }
};
KeyRun KeysOf(const AllPairs& pairs, const int32_t* positions, int32_t tokens, int32_t query);

// The first keys of a list that follow each other.
int64_t RunLength(const int32_t* keys, int64_t count);

// Token of the first row of `given`: given edges have rows for all tokens of the problem, or for its queries only.
int64_t FirstGivenRow(const AttentionProblem& problem, const HeadEdges& given);

// Attended pairs of one head, and over all heads, of a problem whose pattern is not DrawnRows.
uint64_t CountHeadEdges(const AttentionProblem& problem, int32_t head);
uint64_t CountEdges(const AttentionProblem& problem, int32_t num_heads);

// Fills the report of a problem whose pattern is not DrawnRows, except the softmax weights of a graph.
void ReportUndrawn(const AttentionProblem& problem, int32_t num_heads);

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_HOST_PATTERN_COUNT_H_
