// Draws of any law and span for one instruction set; see draw_split_avx512.cc.
#define EDGEWISE_SIMD_NAMESPACE generic_split

#include "kernels/cpu/simd/attention_kernels.h"
#include "kernels/cpu/simd/vector_portable.h"
#include "kernels/philox.h"  // constants only

// In this order: each uses what lies before it. The first holds functions that only attention_generic.cc calls.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
// clang-format off
#include "kernels/cpu/simd/draw_portable.inl"
// clang-format on
#pragma GCC diagnostic pop
#include "kernels/cpu/simd/draw_split_portable.inl"

namespace edgewise {

const SplitKernels& GenericSplitKernels() {
  static constexpr SplitKernels kernels = {generic_split::SplitRows, generic_split::SplitTile};
  return kernels;
}

}  // namespace edgewise
