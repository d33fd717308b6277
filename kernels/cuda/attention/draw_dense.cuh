// The edges of a row item where many pairs are edges: all pairs of a chunk at once, on tensor cores, in place of those
// that their bounds allow one by one. The edges are the same.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_DRAW_DENSE_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_DRAW_DENSE_CUH_

#include "kernels/cuda/attention/draw_fragment.cuh"

namespace edgewise::cuda {

// Where bounds let one pair in so many be an edge. To be tuned on a GPU.
inline constexpr float kDenseDrawShare = 8.0f;

// Whether FragmentDraw can draw the problem's edges.
__device__ inline bool MayDrawFragments(const DeviceProblem& problem) {
  return problem.kind == PatternKind::kDrawn && problem.positions == nullptr && problem.law != Law::kPoissonMulti;
}

// Which share of the item's pairs with the keys of a chunk the bounds of both let be edges, roughly; the same for all
// threads. `sums`: one float for each warp of kWarps. Ends with a block barrier.
template <int kWarps>
__device__ inline float AllowedShare(const DeviceCall& call, const DeviceProblem& problem, const RowItem& item,
                                     int32_t first_key, int32_t keys, double tau, float* sums) {
  const DrawnPairs pairs(call, problem, item.head);
  float of_keys = 0.0f, of_queries = 0.0f;
  for (int key = static_cast<int>(threadIdx.x); key < keys; key += kWarps * kWarpSize) {
    of_keys += __ldg(pairs.key_bound + first_key + key);
  }
  for (int row = 0; row < item.queries; ++row) of_queries += __ldg(pairs.query_bound + item.first_query + row);
  for (int step = kWarpSize / 2; step > 0; step /= 2) of_keys += __shfl_xor_sync(kWholeWarp, of_keys, step);
  if (threadIdx.x % kWarpSize == 0) sums[threadIdx.x / kWarpSize] = of_keys;
  __syncthreads();
  float sum = 0.0f;
  for (int w = 0; w < kWarps; ++w) sum += sums[w];
  __syncthreads();
  const float pairs_of_item = static_cast<float>(keys) * static_cast<float>(item.queries);
  return static_cast<float>(tau) * (sum * of_queries / pairs_of_item + problem.exploration);
}

// Sets the words of the item's rows, bits [rows, words of a row], by kWarps warps. Out of line: its registers are its
// own.
template <int kWarps>
__device__ __noinline__ void DrawFragments(const DeviceCall& call, const RowItem& item, int32_t first_key, int32_t keys,
                                           int row_words, uint64_t* bits) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, tiles = (keys + kTileKeys - 1) / kTileKeys;
  for (int part = static_cast<int>(threadIdx.x) / kWarpSize; part < 2 * tiles; part += kWarps) {
    const int first_row = part % 2 * kWarpQueries, tile = part / 2;
    const int rows = min(item.queries - first_row, kWarpQueries);
    if (rows <= 0) continue;
    const FragmentDraw draw(call, {item.problem, item.head, item.first_query + first_row, 1, rows});
    const uint32_t edges = draw.Next(first_key + tile * kTileKeys);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint64_t word = KeysOf(edges >> (16 * half) & 0xFFFFu, lane % 4);
      const int row = first_row + lane / 4 + 8 * half;
      if (lane % 4 == 0 && row < item.queries) bits[row * row_words + tile] = word;
    }
  }
}
static_assert(kRowsPerItem == 2 * kWarpQueries);

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_DRAW_DENSE_CUH_
