// Reports of attention on the CPU.
#ifndef EDGEWISE_KERNELS_CPU_ATTENTION_REPORT_H_
#define EDGEWISE_KERNELS_CPU_ATTENTION_REPORT_H_

#include <cstdint>

#include "kernels/cpu/attention/work.h"

namespace edgewise::cpu_attention {

// The edges of one row.
struct RowEdges {
  const int32_t* keys;
  int64_t count;
  const float* multiplicity;  // null: all 1
};

// Appends the edges of row r of a block and their softmax weights to the graph. `multi`: and their multiplicities.
void RecordRow(const Call& call, const AttendBlock& attended, int r, const RowEdges& row, bool multi,
               BlockReport& report);

// Reports one block: its counts, and its degrees and graph where they are wanted.
void ReportBlock(const Call& call, const HeadPlan& head, const AttendBlock& attended, const BlockEdges& edges,
                 Worker& worker, BlockReport& report);

// Adds up the reports of the blocks, in their order.
void CollectReports(Call& call);

// Sets the expected edges of a part's rows.
void CountExpected(const Call& call, Worker& worker, ExpectedPart& part);

// Adds up those of the parts, in their order.
void CollectExpected(Call& call);

}  // namespace edgewise::cpu_attention

#endif  // EDGEWISE_KERNELS_CPU_ATTENTION_REPORT_H_
