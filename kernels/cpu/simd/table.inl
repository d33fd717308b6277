// The table of the instruction set that the including file is compiled for (flags: kernels/cpu/sources.cmake). Every
// function in these files is internal: the linker could take an inline function that other files share from here, and
// run it on a CPU that lacks the instructions.
#include "kernels/cpu/simd/dense.inl"
#include "kernels/cpu/simd/expected.inl"
#include "kernels/cpu/simd/gather.inl"
#include "kernels/cpu/simd/gemm.inl"
#include "kernels/cpu/simd/gemm_int8.inl"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/memberships.inl"
#include "kernels/cpu/simd/rates.inl"
#if defined(__AVX512VBMI2__)
#include "kernels/cpu/simd/draw_tile_avx512.inl"
#include "kernels/cpu/simd/events_avx512.inl"
#include "kernels/cpu/simd/sort_avx512.inl"
#else
#include "kernels/cpu/simd/draw_portable.inl"
#include "kernels/cpu/simd/events_portable.inl"
#endif

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

static constexpr CpuKernels kTable = {.draw_rows = DrawRows,
                                      .draw_tile = DrawTile,
                                      .draw_events = DrawEvents,
                                      .draw_heavy_pairs = DrawHeavyPairs,
                                      .edge_rates = EdgeRates,
                                      .square_norms = SquareNorms,
                                      .sum_rows = SumRows,
                                      .sort_keys = SortKeys,
                                      .expected_rows = ExpectedRows,
                                      .split_key = kSplitKey,
                                      .certify_rows = kCertifyRows,
                                      .split_certified = kSplitKeys,
                                      .low_bound = kLowBound,
                                      .pack_keys = PackKeyTile,
                                      .attend_dense = AttendDense,
                                      .attend_gather = AttendGather,
                                      .edge_scores = EdgeScores,
                                      .count_bits = CountBits,
                                      .list_bits = ListBits,
                                      .lanes = kLanes,
                                      .gemm = MultiplyRows<float>,
                                      .group_step = 1,
                                      .gemm_bfloat16 = MultiplyRows<uint16_t>,
                                      .bfloat16_group = 1,
                                      .round_row = nullptr,
                                      .int8_group = kInt8Group,
                                      .gemm_int8 = MultiplyInt8,
                                      .quantize_row = QuantizeRow,
                                      .memberships = ComputeMemberships,
                                      .layer_norm = LayerNorm,
                                      .rms_norm = RmsNorm,
                                      .rotate = Rotate,
                                      .gate = Gate};

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE
