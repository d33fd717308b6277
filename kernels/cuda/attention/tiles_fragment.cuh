// Biases, masks, softmax and output of the tile kernels, on the scores and sums that tensor cores leave in a thread's
// registers.
//
// A warp has 16 neighbouring queries. With g = lane / 4 and t = lane % 4 a thread has the queries g and g + 8 of its
// warp and, of every 8 keys or value columns, those at 2t and 2t + 1.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_FRAGMENT_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_FRAGMENT_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/attention/online_softmax.h"
#include "kernels/cuda/attention/tiles_item.cuh"
#include "kernels/cuda/device/launch.h"

namespace edgewise::cuda {

// Where a lane's row of LoadMatrices begins, among 16 rows by 16 columns: row block by row block for A operands and
// transposed B operands, column block by column block for B operands from rows of keys.
__device__ inline int RowsFirst(int lane, int stride) { return lane % 16 * stride + lane / 16 * 8; }
__device__ inline int ColumnsFirst(int lane, int stride) {
  return (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8;
}

// Adds `factor` times the biases of a tile to its scores; by whole warps.
template <int kKeyTiles>
__device__ inline void AddBiases(const DeviceCall& call, const DeviceProblem& problem, const TileItem& item,
                                 const TileLists<8 * kKeyTiles>& lists, int tile, int first_row, int first_column,
                                 float factor, float (&scores)[kKeyTiles][4]) {
  if (call.distance_bias == nullptr && problem.bias_length == 0) return;
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
    __syncwarp();  // so that the biases of other keys take no registers
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first_row + i / 2 * 8, place = n * 8 + first_column + i % 2;
      if (tile * 8 * kKeyTiles + place >= lists.limits[row]) continue;
      const float bias =
          BiasOf(call, problem, HeadOf(item, row), item.first_query + QueryOf(item, row), lists.keys[tile & 1][place]);
      scores[n][i] = fmaf(bias, factor, scores[n][i]);
    }
  }
}

// Hides the keys that row `half` does not see: of every 8 the thread's two, before its place `hidden` and from its
// place `seen` on.
template <int kKeyTiles>
__device__ inline void MaskRow(int hidden, int seen, int half, float (&scores)[kKeyTiles][4]) {
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
    if (n * 8 < hidden || n * 8 >= seen) scores[n][2 * half] = kNoScore;
    if (n * 8 + 1 < hidden || n * 8 + 1 >= seen) scores[n][2 * half + 1] = kNoScore;
  }
}

// Hides the keys before each row's start and beyond its limit.
template <int kKeyTiles>
__device__ inline void MaskTile(const TileLists<8 * kKeyTiles>& lists, int tile, int first_row, int first_column,
                                float (&scores)[kKeyTiles][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int before = tile * 8 * kKeyTiles + first_column, row = first_row + half * 8;
    MaskRow(lists.starts[row] - before, lists.limits[row] - before, half, scores);
  }
}

// Hides the pairs of row `half` that are no edges, of the kTileKeys keys that `word` has bits of.
template <int kKeyTiles>
__device__ inline void HideRow(uint64_t word, int first_column, int half, int run, float (&scores)[kKeyTiles][4]) {
  const uint64_t edges = word >> first_column;
#pragma unroll
  for (int n = 0; n < kTileKeys / 8; ++n) {
    float* const pair = scores[run * (kTileKeys / 8) + n] + 2 * half;
    if ((edges >> (8 * n) & 1) == 0) pair[0] = kNoScore;
    if ((edges >> (8 * n + 1) & 1) == 0) pair[1] = kNoScore;
  }
}

// Hides the pairs that are no edges.
template <typename Lists, int kKeyTiles>
__device__ inline void HideTile(const Lists& lists, int first_row, int first_column, float (&scores)[kKeyTiles][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int run = 0; run < kKeyTiles * 8 / kTileKeys; ++run) {
      HideRow(lists.edges[run][first_row + half * 8], first_column, half, run, scores);
    }
  }
}

// Largest scores beyond this are so large that what rounding takes from them is not small beside 1.
inline constexpr float kFarScore = 1 << 20;

// Turns scores, which `unit` > 0 times are in units of ln 2, into weights, and adds them up: a state's sum is of the
// thread's own keys. `shrink` is what the caller's sums of values have to be multiplied by. A tile in which a row sees
// no key changes no bit of the row: the largest score stays, so `shrink` is 1 and every weight 0.
template <int kKeyTiles>
__device__ inline void WeighTile(float unit, float (&scores)[kKeyTiles][4], OnlineSoftmax (&states)[2],
                                 float (&shrink)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = kNoScore;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) largest = fmaxf(largest, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
    largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, 2));
    shrink[half] = states[half].Raise(largest * unit);
    // The multiply-add does not round its product, which `less` is for the largest score: the same error for all keys,
    // unless it is so large that weights overflow.
    float factor = unit, less = states[half].Unit();
    if (!(fabsf(less) < kFarScore)) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        scores[n][2 * half] = scores[n][2 * half] * unit - less;
        scores[n][2 * half + 1] = scores[n][2 * half + 1] * unit - less;
      }
      factor = 1.0f, less = 0.0f;
    }
    float low_sum = 0.0f, high_sum = 0.0f;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      float& low = scores[n][2 * half];
      float& high = scores[n][2 * half + 1];
      low_sum += low = Exp2(fmaf(low, factor, -less));
      high_sum += high = Exp2(fmaf(high, factor, -less));
    }
    states[half].sum = fmaf(states[half].sum, shrink[half], low_sum + high_sum);
  }
}

// Adds up what the threads of a row have of the sums of its weights.
__device__ inline void AddStates(OnlineSoftmax (&states)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    states[half].sum += __shfl_xor_sync(kWholeWarp, states[half].sum, 1);
    states[half].sum += __shfl_xor_sync(kWholeWarp, states[half].sum, 2);
  }
}

// Calls put(column, pair) with `scale` times the sums of row `half`; columns count from the thread's first.
template <int kValueTiles, typename Put>
__device__ inline void WriteRow(const Put& put, int value_dim, int half, float scale,
                                const float (&sums)[kValueTiles][4]) {
#pragma unroll
  for (int n = 0; n < kValueTiles; ++n) {
    if (n * 8 >= value_dim) break;
    // + 0: never -0, whose sign would tell of masked keys.
    const float pair[2] = {fmaf(sums[n][2 * half], scale, 0.0f), fmaf(sums[n][2 * half + 1], scale, 0.0f)};
    put(n * 8, pair);
  }
}

// Divides by the sums of the weights and writes the item's rows; or writes those of its part as they are.
template <bool kBf16, int kWarps, int kKeys, int kValueTiles>
__device__ inline void WriteRows(const DeviceCall& call, const DeviceProblem& problem, const TileItem& item,
                                 const KeySpan& span, const TileLists<kKeys>& lists, int first_row, int first_column,
                                 OnlineSoftmax (&states)[2], const float (&sums)[kValueTiles][4]) {
  AddStates(states);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + half * 8;
    if (row >= RowsOf(item)) continue;
    if constexpr (kWarps == 1) {
      if (float* const part = PartRow(call, item, span, row); part != nullptr) {
        const auto put = [&](int column, const float(&pair)[2]) {
          *reinterpret_cast<float2*>(part + first_column + column) = make_float2(pair[0], pair[1]);
        };
        WriteRow(put, call.value_dim, half, 1.0f, sums);
        if (first_column == 0) StoreState(states[half], part + call.value_dim);
        continue;
      }
    }
    const OutRow out = OutRowOf(call, problem, item, row);
    WriteRow([&](int column, const float(&pair)[2]) { out.Put<kBf16>(first_column + column, pair); }, call.value_dim,
             half, states[half].Normalizer(lists.limits[row] > 0), sums);
  }
}

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_FRAGMENT_CUH_
