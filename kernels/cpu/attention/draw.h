// The drawn edges of one block of query rows, also at a tau that is known only roughly (docs/maths.md).
#ifndef EDGEWISE_KERNELS_CPU_ATTENTION_DRAW_H_
#define EDGEWISE_KERNELS_CPU_ATTENTION_DRAW_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cpu/attention/work.h"

namespace edgewise::cpu_attention {

// `span` of a law with tau in [low, high].
DrawSpan SpanOf(Law law, float low, float high);
// Fills worker.drawn.
void DrawBlock(const Call& call, const HeadPlan& head, int64_t row0, int rows, const DrawSpan& span, Worker& worker);

// Adds open pairs that are edges at `tau` to the block's edges, which are `bits` or, where that is null, the lists of
// `offsets` and `keys`, with room for them; forced ones are there already. Appends those of multiplicity above 1 to
// `parallel`. `added` is scratch.
void AddOpenPairs(const HeadPlan& head, int rows, std::span<const OpenPair> edges, double tau, uint64_t* bits,
                  int64_t* offsets, int32_t* keys, std::vector<ParallelEdge>& parallel,
                  std::vector<ParallelEdge>& added);
// Adds edges, ascending by row and key, to such edges as above that do not hold them.
void AddEdges(const HeadPlan& head, int rows, std::span<const ParallelEdge> added, uint64_t* bits, int64_t* offsets,
              int32_t* keys);
// The same to lists, which have room for them.
void InsertEdges(std::span<const ParallelEdge> added, int rows, int64_t* offsets, int32_t* keys);
// Turns lists into bits [rows, words], and bits into lists.
void MarkBits(const int64_t* offsets, const int32_t* keys, int rows, int64_t words, uint64_t* bits);
void ListBits(const Call& call, const HeadPlan& head, int rows, const uint64_t* bits, EdgeLists& lists);
// multiplicity [offsets[rows]]: 1 for every edge but those of `parallel`. `bits`: the same edges, or null.
void SetMultiplicity(const HeadPlan& head, int rows, std::span<const ParallelEdge> parallel, const uint64_t* bits,
                     const int64_t* offsets, const int32_t* keys, float* multiplicity);

// Whether u is below the probability of an edge.
bool IsEdge(Law law, uint64_t uniform, float rate);
float RateOf(const HeadPlan& head, int64_t row, int64_t key);
DrawRow RowOf(const HeadPlan& head, int64_t row);
// The largest norm of rows of `rank` elements, rounded up.
float LargestNorm(const float* rows, int64_t count, int rank);

// Forced edges.
bool HasForced(const HeadPlan& head);
uint64_t CountForced(const HeadPlan& head, int64_t row0, int64_t rows);
// The first of a row and the one after the last: tokens within reach follow each other.
std::pair<int64_t, int64_t> ForcedKeys(const HeadPlan& head, int64_t row);
// Adds those of a row to its bits, which are by position.
void AddForced(const HeadPlan& head, int64_t row, uint64_t* bits);
// Bits by position to bits by token index. [words] both; may be the same memory.
void PackBits(const HeadPlan& head, const uint64_t* by_position, uint64_t* by_index);

}  // namespace edgewise::cpu_attention

#endif  // EDGEWISE_KERNELS_CPU_ATTENTION_DRAW_H_
