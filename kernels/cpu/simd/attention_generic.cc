// Attention kernels for one instruction set; compiled with its flags (kernels/cpu/sources.cmake). Only internal
// functions: an inline function shared with other files could be linked in from here and run where the instructions are
// missing.
#define EDGEWISE_SIMD_NAMESPACE generic_kernels

#include "kernels/cpu/simd/attention_kernels.h"
#include "kernels/cpu/simd/vector_portable.h"
#include "kernels/philox.h"  // constants only

// In this order: each uses what lies before it.
// clang-format off
#include "kernels/cpu/simd/bias.inl"
#include "kernels/cpu/simd/tile.inl"
#include "kernels/cpu/simd/dense.inl"
#include "kernels/cpu/simd/draw_portable.inl"
#include "kernels/cpu/simd/gather.inl"
// clang-format on

namespace edgewise {

const AttentionKernels& GenericAttentionKernels() {
  namespace k = generic_kernels;
  static constexpr AttentionKernels kernels = {k::DrawRows,    k::DrawTile,    k::ExpectedRow,
                                               k::PackKeyTile, k::AttendDense, k::AttendGather,
                                               k::EdgeScores,  k::CountBits,   k::ListBits};
  return kernels;
}

}  // namespace edgewise
