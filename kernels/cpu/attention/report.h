// What a call of CpuAttend reports of its heads. Internal to attention*.cc.
#ifndef EDGEWISE_KERNELS_CPU_ATTENTION_REPORT_H_
#define EDGEWISE_KERNELS_CPU_ATTENTION_REPORT_H_

#include <cstdint>

#include "kernels/cpu/attention/work.h"

namespace edgewise::cpu_attention {

// Calls visit(keys, count, multiplicity or null) for one row.
template <typename Visit>
void VisitRow(const Call& call, const HeadWork&, const BlockEdges& edges, int row, Worker& worker, const Visit& visit) {
  if (edges.offsets != nullptr) {
    const int64_t begin = edges.offsets[row];
    visit(edges.keys + begin, edges.offsets[row + 1] - begin,
          edges.multiplicity == nullptr ? nullptr : edges.multiplicity + begin);
  } else {
    const int64_t count =
        call.kernels->list_bits(edges.bits + row * edges.bit_words, edges.bit_words, 0, worker.row_keys);
    visit(worker.row_keys, count, static_cast<const float*>(nullptr));
  }
}

// Keeps the edges of row r of a block, and their softmax weights, for the report.
struct RowKeys {
  const int32_t* keys;
  int64_t count;
  const float* multiplicity;  // null: all 1
  bool multi;                 // the report lists multiplicities
};
void RecordRow(const Call& call, const AttendBlock& attended, int r, const RowKeys& row, BlockResult& result);

// Notes one block's counts, and its degrees, graph and mean number of edges where they are asked for.
void Report(const Call& call, const HeadWork& head, const AttendBlock& attended, const BlockEdges& edges, int64_t row0,
            Worker& worker, BlockResult& result);

// Adds up what the blocks left, in their order.
void CollectReports(Call& call);

}  // namespace edgewise::cpu_attention

#endif  // EDGEWISE_KERNELS_CPU_ATTENTION_REPORT_H_
