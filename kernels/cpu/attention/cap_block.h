// One block of query rows under a cap of CapRule::kRandom: its edges while the age of the first dropped edge is known
// roughly, and the edges that are kept once it is known.
#ifndef EDGEWISE_KERNELS_CPU_ATTENTION_CAP_BLOCK_H_
#define EDGEWISE_KERNELS_CPU_ATTENTION_CAP_BLOCK_H_

#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "kernels/cpu/attention/work.h"

namespace edgewise::cpu_attention {

// The ages between which the first dropped edge is looked for.
struct AgeSpan {
  float low = 0.0f, high = 1.0f;
};

// A drawn edge in the order in which edges are kept.
using AgedEdge = std::tuple<double, size_t, int32_t, int32_t>;  // age, block, row, key

// Arrays are in Worker::kept.
struct CapBlock {
  const HeadPlan* head = nullptr;
  int64_t row0 = 0;
  int rows = 0;
  // Edges younger than the span, forced ones included, as bits or as lists with room for the open edges.
  uint64_t certain = 0;
  uint64_t* bits = nullptr;    // [rows, words], or
  int64_t* offsets = nullptr;  // [rows + 1] into
  int32_t* keys = nullptr;
  std::span<OpenPair> open;  // pairs that are edges, and
  double* ages = nullptr;    // as open; -1: forced. Or
  std::span<OpenEvent> events;
  std::vector<ParallelEdge> parallel;
};

// Ages of events are multiples of 2^-31.
inline double AgeOf(const OpenEvent& event) { return static_cast<double>(event.age) * 0x1p-31; }

// Draws the edges of a block; those with an age in the span are open.
void DrawCapBlock(const Call& call, const AgeSpan& span, Worker& worker, CapBlock& block);

// Adds the open edges before `first_dropped` to the certain ones. `index`: of the block in the call. Returns all, in
// Worker::kept.
BlockEdges FinishCapBlock(const Call& call, const AgedEdge& first_dropped, size_t index, Worker& worker,
                          CapBlock& block);

// Calls use(age) for each open edge that is not forced.
template <typename Use>
void ForOpenAges(const CapBlock& block, const Use& use) {
  for (size_t i = 0; i < block.open.size(); ++i) {
    if (block.ages[i] >= 0.0) use(block.ages[i]);
  }
  for (const OpenEvent& event : block.events) {
    if (!event.known) use(AgeOf(event));
  }
}
// Calls use(edge) for each of them that is `age` old.
template <typename Use>
void ForOpenEdges(const CapBlock& block, size_t index, double age, const Use& use) {
  for (size_t i = 0; i < block.open.size(); ++i) {
    if (block.ages[i] == age) use(AgedEdge(age, index, block.open[i].row, block.open[i].key));
  }
  for (const OpenEvent& event : block.events) {
    if (!event.known && AgeOf(event) == age) use(AgedEdge(age, index, event.row, event.key));
  }
}

}  // namespace edgewise::cpu_attention

#endif  // EDGEWISE_KERNELS_CPU_ATTENTION_CAP_BLOCK_H_
