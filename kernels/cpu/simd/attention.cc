// Attention over a block of query rows, and bits of edges.
#include "kernels/cpu/simd/dense.inl"
#include "kernels/cpu/simd/gather.inl"
#include "kernels/cpu/simd/parts.h"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

void AddAttention(CpuKernels& table) {
  table.pack_keys = PackKeyTile;
  table.attend_dense = AttendDense;
  table.attend_gather = AttendGather;
  table.edge_scores = EdgeScores;
  table.count_bits = CountBits;
  table.list_bits = ListBits;
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE
