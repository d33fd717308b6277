// Edges of one block of query rows at a tau that is known only roughly (docs/maths.md), and how the pairs that are left
// open are decided. Internal to attention*.cc.
#ifndef EDGEWISE_KERNELS_CPU_ATTENTION_SPLIT_H_
#define EDGEWISE_KERNELS_CPU_ATTENTION_SPLIT_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/attention/work.h"

namespace edgewise::cpu_attention {

// Rows and keys as packed indices. Forced edges are settled; their multiplicity may be open.
struct SplitEdges {
  uint64_t* bits = nullptr;  // [rows, words] in the worker; null: worker.offsets and worker.keys
  uint64_t count = 0;        // settled
  std::vector<ParallelEdge> parallel;
  std::vector<OpenPair> open;
};

// Blocks whose bounds allow many edges at this tau are kept as bits and, where they can be, drawn by tiles; the graph
// is the same.
bool HasManyEdges(const HeadWork& head, int64_t row0, int rows, float tau);
bool CanDrawTiles(const HeadWork& head, int64_t row0, int rows);

DrawSpan SpanOf(Law law, float low, float high);

SplitEdges SplitBlock(const Call& call, const HeadWork& head, int64_t row0, int rows, const DrawSpan& span,
                      Worker& worker);

// Turns bits into lists in the worker.
void ListBits(const Call& call, const HeadWork& head, int rows, const uint64_t* bits, Worker& worker);

// Multiplicity of an open pair that is an edge at rate tau * p.
int OpenMultiplicity(Law law, const OpenPair& pair, double tau);

// Adds edges, ascending by row and key, to lists that do not hold them.
void InsertEdges(std::span<const ParallelEdge> added, int rows, int64_t* offsets, std::vector<int32_t>& keys);
void InsertEdges(std::span<const ParallelEdge> added, int64_t words, uint64_t* bits);

// multiplicity of each listed edge: 1, but for those of `parallel`. With `bits`, the same edges, where they are many.
void SetMultiplicity(std::span<const ParallelEdge> parallel, const int64_t* offsets, const int32_t* keys,
                     const uint64_t* bits, int64_t words, float* multiplicity);

}  // namespace edgewise::cpu_attention

#endif  // EDGEWISE_KERNELS_CPU_ATTENTION_SPLIT_H_
