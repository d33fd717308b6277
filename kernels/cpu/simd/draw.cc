// Memberships, the rates that they give, and the edges that are drawn by these.
#include "kernels/cpu/simd/expected.inl"
#include "kernels/cpu/simd/memberships.inl"
#include "kernels/cpu/simd/parts.h"
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

void AddDraws(CpuKernels& table) {
  table.draw_rows = DrawRows;
  table.draw_tile = DrawTile;
  table.draw_events = DrawEvents;
  table.draw_heavy_pairs = DrawHeavyPairs;
  table.edge_rates = EdgeRates;
  table.square_norms = SquareNorms;
  table.sum_rows = SumRows;
  table.sort_keys = SortKeys;
  table.expected_rows = ExpectedRows;
  table.split_key = kSplitKey;
  table.certify_rows = kCertifyRows;
  table.split_certified = kSplitKeys;
  table.low_bound = kLowBound;
  table.memberships = ComputeMemberships;
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE
