// What patterns that draw nothing report: the host knows it without attending.
#ifndef EDGEWISE_KERNELS_PATTERN_COUNT_H_
#define EDGEWISE_KERNELS_PATTERN_COUNT_H_

#include <cstdint>

#include "kernels/attention.h"

namespace edgewise {

// The row of `given` that belongs to token i of a problem is i minus this: given edges come with rows for all tokens or
// for the queries only.
int64_t FirstGivenRow(const AttentionProblem& problem, const HeadEdges& given);

// Attended pairs of one head, and over all heads, of a problem whose pattern is not DrawnRows.
uint64_t CountHeadEdges(const AttentionProblem& problem, int32_t head);
uint64_t CountEdges(const AttentionProblem& problem, int32_t num_heads);

// Fills the problem's report, whose pattern is not DrawnRows, but for the softmax weights of a graph.
void ReportUndrawn(const AttentionProblem& problem, int32_t num_heads);

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_PATTERN_COUNT_H_
