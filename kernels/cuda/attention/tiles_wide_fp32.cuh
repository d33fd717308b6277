// The tile kernel in float32 for sm_90a, heads of 64 columns without biases, with the bytes of tiles_fp32.cuh: the same
// sums of parts in the same order. As tiles_wide.cuh, but for 64 keys at a time, and the first warpgroup copies: it
// makes the parts of keys and values on the way. The two others take turns by themselves: one multiplies while the
// other weighs.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_WIDE_FP32_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_WIDE_FP32_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/attention/cancel.cuh"
#include "kernels/cuda/attention/tiles_fp32.cuh"
#include "kernels/cuda/attention/tiles_wide.cuh"

namespace edgewise::cuda::tiles_wide_fp32 {

using tiles_fp32::kKeys;
using tiles_fp32::kKeyTiles;
using tiles_wide::kStages;
inline constexpr int kDim = 64;
inline constexpr int kSteps = 4;  // of 16 columns or keys
static_assert(kKeys == kSteps * 16 && kDim == kSteps * 16);

// Dynamic shared memory, 1024-byte aligned. Rows of tiles are swizzled as CopyBox does.
struct Shared {
  using Tile = __nv_bfloat16[kParts][kKeys][kDim];
  Tile keys[kStages], values[kStages];
  SharedBarrier keys_full[kStages], keys_free[kStages], values_full[kStages], values_free[kStages];
};
inline constexpr size_t kSharedBytes = sizeof(Shared) + 1024;

// By the first warpgroup: copies the item's keys and values, a tile at a time; zeros behind the last.
__device__ inline void CopyTiles(const DeviceCall& call, const DeviceProblem& problem, const TileItem& item, int tiles,
                                 Shared& shared) {
  constexpr int kLoads = kKeys * kDim / 4 / kWarpgroup;  // of a thread
  const int column = static_cast<int>(threadIdx.x) % 16 * 4, first = static_cast<int>(threadIdx.x) / 16;
  const int first_key = tiles_wide::FirstTile<kKeys>(item) * kKeys;
  const int64_t first_column = KeyHead(call, item.head) * kDim + column;
  const auto copy = [&](const float* from, int64_t stride, int tile, Shared::Tile& to, SharedBarrier& free,
                        SharedBarrier& full) {
    float4 x[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int place = first_key + tile * kKeys + first + i * 8;
      x[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (place >= item.num_keys) continue;
      const int64_t row = problem.first_row + (item.keys == nullptr ? place : item.keys[place]);
      x[i] = *reinterpret_cast<const float4*>(from + row * stride + first_column);
    }
    WaitFor(free, tile / kStages % 2 ^ 1);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int row = first + i * 8;
      const PairParts low = PartPair(x[i].x, x[i].y), high = PartPair(x[i].z, x[i].w);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        void* const piece = to[part][row] + (column / 8 ^ row % 8) * 8 + column % 8;
        *static_cast<uint2*>(piece) = make_uint2(low.part[part], high.part[part]);
      }
    }
    ShowToProducts();
    Arrive(full);
  };
  for (int tile = 0; tile < tiles; ++tile) {
    const int stage = tile % kStages;
    copy(call.k, call.k_stride, tile, shared.keys[stage], shared.keys_free[stage], shared.keys_full[stage]);
    copy(call.v, call.v_stride, tile, shared.values[stage], shared.values_free[stage], shared.values_full[stage]);
  }
}

// d = the A operands `left` times a tile, as tiles_fp32::AddProducts: small products first.
template <bool kTransposed>
__device__ inline void MultiplyParts(float (&d)[8][4], const uint32_t (&left)[kParts][kSteps][4],
                                     const Shared::Tile& right) {
  BeginProducts();
#pragma unroll
  for (int b = kParts - 1; b >= 0; --b) {
#pragma unroll
    for (int a = kParts - 1 - b; a >= 0; --a) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const uint64_t part = SharedMatrix(right[b]) + (kTransposed ? 128 : 2) * step;
        Multiply<8, kTransposed>(d, left[a][step], part, b < kParts - 1 || step > 0);
      }
    }
  }
  CommitProducts();
  WaitForProducts<0>();
  Hold(d);
}

// The 64 queries of warpgroup `mine`.
template <template <int> typename EdgesOf>
__device__ inline void AttendQueries(const DeviceCall& call, const DeviceProblem& problem, const TileItem& item,
                                     int tiles, int mine, Shared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, first_column = lane % 4 * 2;
  const int row = mine * kTileQueries + static_cast<int>(threadIdx.x) / kWarpSize % 4 * kWarpQueries + lane / 4;
  const bool leads = threadIdx.x % kWarpgroup == 0;
  EdgesOf<kKeys> edges(call, problem, item, row);
  uint32_t queries[kParts][kSteps][4], weights[kParts][kSteps][4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool there = row + half * 8 < RowsOf(item);
    const float* const from = there ? QueryRow(call, problem, item, row + half * 8) + first_column : nullptr;
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
      const float2 pair = there ? *reinterpret_cast<const float2*>(from + i * 8) : make_float2(0.0f, 0.0f);
      const PairParts parts = PartPair(pair.x * (call.scale * kLog2E), pair.y * (call.scale * kLog2E));
#pragma unroll
      for (int part = 0; part < kParts; ++part) queries[part][i / 2][half + i % 2 * 2] = parts.part[part];
    }
  }
  OnlineSoftmax states[2];
  float shrink[2], scores[kKeyTiles][4], more[kDim / 8][4], sums[kDim / 8][4] = {};
  for (int tile = 0; tile < tiles; ++tile) {
    const int stage = tile % kStages, phase = tile / kStages % 2;
    edges.Fetch(tile);
    WaitFor(shared.keys_full[stage], phase);
    MultiplyParts<false>(scores, queries, shared.keys[stage]);
    if (leads) Arrive(shared.keys_free[stage]);
    edges.Hide(tile, first_column, scores);
    WeighTile(1.0f, scores, states, shrink);
    tiles_fp32::PartWeights(scores, weights);
    WaitFor(shared.values_full[stage], phase);
    MultiplyParts<true>(more, weights, shared.values[stage]);
    if (leads) Arrive(shared.values_free[stage]);
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) {
      sums[i / 4][i % 4] = fmaf(sums[i / 4][i % 4], shrink[i % 4 / 2], more[i / 4][i % 4]);
    }
  }
  AddStates(states);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (row + half * 8 >= RowsOf(item)) continue;
    const OutRow out = OutRowOf(call, problem, item, row + half * 8);
    WriteRow([&](int column, const float(&pair)[2]) { out.Put<false>(first_column + column, pair); }, kDim, half,
             states[half].Normalizer(edges.HasEdges(half)), sums);
  }
}

// EdgesOf: tiles_wide::Limits or Bits.
template <template <int> typename EdgesOf>
__global__ void __launch_bounds__(tiles_wide::kThreads, 1) AttendTilesWide(const __grid_constant__ DeviceCall call) {
#ifdef EDGEWISE_HAS_WGMMA
  unsigned char* const raw = DynamicShared();
  auto& shared = *reinterpret_cast<Shared*>(raw + (-reinterpret_cast<uintptr_t>(raw) & 1023));
  TileItem item;
  if (!EdgesOf<kKeys>::Get(call, item)) return;
  const DeviceProblem& problem = call.problems[item.problem];
  if (Cancelled(problem)) return;
  const int tiles = tiles_wide::TilesOf<kKeys>(item);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      InitBarrier(shared.keys_full[stage], kWarpgroup);
      InitBarrier(shared.values_full[stage], kWarpgroup);
      InitBarrier(shared.keys_free[stage], 2);
      InitBarrier(shared.values_free[stage], 2);
    }
    PublishBarriers();
  }
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup;
  if (group == 0) {
    GiveRegisters<72>();
    CopyTiles(call, problem, item, tiles, shared);
  } else {
    TakeRegisters<216>();
    AttendQueries<EdgesOf>(call, problem, item, tiles, group - 1, shared);
  }
#endif
}

}  // namespace edgewise::cuda::tiles_wide_fp32

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_WIDE_FP32_CUH_
