// The reports of drawn problems, of the same edges that were attended over, and the softmax weights of listed edges.
// Sums are the same on every run: a warp adds in a fixed order, and blocks add integers.
#include <cmath>

#include "kernels/cuda/attention/cancel.cuh"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/lists.cuh"
#include "kernels/cuda/device/launch.h"

namespace edgewise::cuda {
namespace {

constexpr int kWeightThreads = 128;
constexpr int kWeightBlocks = 1024;  // each takes many rows

__device__ int Lane() { return static_cast<int>(threadIdx.x) % kWarpSize; }
__device__ int Warp() { return static_cast<int>(threadIdx.x) / kWarpSize; }

template <typename T>
__device__ T WarpSum(T value) {
  for (int step = kWarpSize / 2; step > 0; step /= 2) value += __shfl_xor_sync(kWholeWarp, value, step);
  return value;
}

// The block's sum of `value` in a fixed order, known to all threads. `warp_sums` [kRowWarps] in shared memory.
__device__ double BlockSum(double value, double* warp_sums) {
  value = WarpSum(value);
  __syncthreads();
  if (Lane() == 0) warp_sums[Warp()] = value;
  __syncthreads();
  double sum = 0.0;
  for (int w = 0; w < kRowWarps; ++w) sum += warp_sums[w];
  return sum;
}

// Expected edges of a head are summed as integers, in units of 2^-shift. The bounds of the memberships limit them, so
// that the sum of all rows stays below 2^63 and a unit is about 2^-60 of it.
__device__ int ExpectedShift(const DeviceCall& call, const DeviceProblem& problem, int32_t head, double* warp_sums) {
  const DrawnPairs pairs(call, problem, head);
  double queries = 0.0, keys = 0.0;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < problem.tokens; i += kRowThreads) {
    queries += static_cast<double>(pairs.query_bound[i]);
    keys += static_cast<double>(pairs.key_bound[i]);
  }
  const double n = problem.tokens;
  const double forced = pairs.HasForced() ? n * (2.0 * pairs.reach() + 1.0) : 0.0;
  const double products = BlockSum(queries, warp_sums) * BlockSum(keys, warp_sums);
  const double bound = products + n * n * static_cast<double>(problem.exploration) + forced;
  int exponent = 0;
  frexp(bound < n * n ? bound : n * n, &exponent);  // below 2^exponent
  return 61 - exponent;
}

__global__ void ClearExpected(const __grid_constant__ DeviceCall call, const int32_t* problems) {
  const DeviceProblem& problem = call.problems[problems[blockIdx.x]];
  for (int head = static_cast<int>(threadIdx.x); head < call.num_heads; head += static_cast<int>(blockDim.x)) {
    call.counts[problem.count + head].expected = 0.0;  // its bits: the integer 0
  }
}

__global__ void __launch_bounds__(kRowThreads)
    AddExpected(const __grid_constant__ DeviceCall call, const int32_t* problems, int32_t count) {
  __shared__ double warp_sums[kRowWarps];
  const RowItem item = call.row_items[blockIdx.x];
  bool wanted = false;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kRowThreads) wanted |= problems[i] == item.problem;
  if (!__syncthreads_or(wanted)) return;
  const DeviceProblem& problem = call.problems[item.problem];
  if (Cancelled(problem)) return;
  const DrawnPairs pairs(call, problem, item.head);
  const int shift = ExpectedShift(call, problem, item.head, warp_sums);
  auto* sum = reinterpret_cast<unsigned long long*>(&call.counts[problem.count + item.head].expected);
  for (int row = Warp(); row < item.queries; row += kRowWarps) {
    const int32_t query = item.first_query + row;
    double edges = 0.0;
    for (int32_t key = Lane(); key < problem.tokens; key += kWarpSize) {
      if (pairs.HasForced() && pairs.Forced(query, key)) {
        edges += 1.0;
        continue;
      }
      // EdgeProbability but for the last bits, without its divisions.
      const double rate = static_cast<double>(pairs.Rate(query, key));
      edges += problem.law == Law::kBernoulli ? rate : -expm1(-rate);
    }
    edges = WarpSum(edges);
    if (Lane() == 0) atomicAdd(sum, static_cast<unsigned long long>(floor(ldexp(edges, shift) + 0.5)));
  }
}

// One block per problem of the list and head.
__global__ void __launch_bounds__(kRowThreads)
    FinishExpected(const __grid_constant__ DeviceCall call, const int32_t* problems) {
  __shared__ double warp_sums[kRowWarps];
  const auto heads = static_cast<uint32_t>(call.num_heads);
  const DeviceProblem& problem = call.problems[problems[blockIdx.x / heads]];
  const auto head = static_cast<int32_t>(blockIdx.x % heads);
  const int shift = ExpectedShift(call, problem, head, warp_sums);
  double& expected = call.counts[problem.count + head].expected;
  if (threadIdx.x == 0) expected = ldexp(static_cast<double>(__double_as_longlong(expected)), -shift);
}

__global__ void __launch_bounds__(kRowThreads)
    AddKeyDegrees(const __grid_constant__ DeviceCall call, const int64_t* first_degrees, uint32_t* degrees) {
  ForDrawnItems(call, [&](const RowItem& item, const DeviceProblem& problem) {
    const int64_t first = first_degrees[item.problem];
    if (first < 0 || Cancelled(problem)) return;
    uint32_t* of_head = degrees + first + static_cast<int64_t>(item.head) * problem.tokens;
    if (IsEventHead(call, problem, item.head)) {
      for (int row = Warp(); row < item.queries; row += kRowWarps) {
        RowEdges(call, problem, item, item.first_query + row).ForEach([&](uint32_t flagged, int32_t) {
          atomicAdd(of_head + (flagged & ~kParallelFlag), 1u);
        });
      }
      return;
    }
    if (!HasBits(call, problem, item.head, item.first_query)) return;
    for (int32_t key = static_cast<int32_t>(threadIdx.x); key < problem.tokens; key += kRowThreads) {
      const uint64_t* words = TileWords(call, problem, item.head, item.first_query, key / kTileKeys, false);
      uint32_t degree = 0;
      for (int row = 0; row < item.queries; ++row) {
        degree += static_cast<uint32_t>(words[row] >> (key % kTileKeys) & 1u);
      }
      if (degree > 0) atomicAdd(of_head + key, degree);
    }
  });
}
static_assert(kTileQueries % kRowsPerItem == 0);  // the item's words of a tile are neighbours

// Calls visit(edges, head, row of the head) for the rows of the problem that the round has, by whole warps.
template <typename Visit>
__device__ void ForRowsOf(const DeviceCall& call, int32_t problem, const Visit& visit) {
  ForDrawnItems(call, [&](const RowItem& item, const DeviceProblem& of) {
    if (item.problem != problem) return;
    for (int row = Warp(); row < item.queries; row += kRowWarps) {
      const int32_t query = item.first_query + row;
      const RowEdges edges(call, of, item, query);
      if (edges.here()) visit(edges, item.head, query - of.first_query);
    }
  });
}

__global__ void __launch_bounds__(kRowThreads)
    StoreRowEdges(const __grid_constant__ DeviceCall call, int32_t index, int32_t* row_edges) {
  const int64_t queries = call.problems[index].tokens - call.problems[index].first_query;
  ForRowsOf(call, index, [&](const RowEdges& edges, int32_t head, int32_t row) {
    const int32_t count = edges.Count();
    if (Lane() == 0) row_edges[head * queries + row] = count;
  });
}

__global__ void __launch_bounds__(kRowThreads)
    StoreEdges(const __grid_constant__ DeviceCall call, int32_t index, const int64_t* row_offsets, int32_t* keys,
               int32_t* multiplicity) {
  __shared__ uint32_t lists[kRowWarps][RowEdges::kMostKeys];
  const DeviceProblem& problem = call.problems[index];
  const double tau = TauOf(call, problem);
  const int64_t queries = problem.tokens - problem.first_query;
  uint32_t* list = lists[Warp()];
  ForRowsOf(call, index, [&](const RowEdges& edges, int32_t head, int32_t row) {
    int64_t place = row_offsets[head * (queries + 1) + row];
    for (int32_t from = 0; !edges.Done(from);) {
      const int size = edges.Take(from, list, 0);
      __syncwarp(kWholeWarp);
      for (int e = Lane(); e < size; e += kWarpSize) {
        keys[place + e] = static_cast<int32_t>(list[e] & ~kParallelFlag);
        if (multiplicity != nullptr) multiplicity[place + e] = edges.Multiplicity(list[e], e, tau);
      }
      place += size;
      __syncwarp(kWholeWarp);
    }
  });
}

// One warp per head and query; a thread has the edges lane, lane + 32, .. of the row.
__global__ void __launch_bounds__(kWeightThreads)
    StoreWeights(const __grid_constant__ DeviceCall call, int32_t index, const int64_t* row_offsets,
                 const int32_t* keys, const int32_t* multiplicity, float* weights) {
  const DeviceProblem& problem = call.problems[index];
  const int64_t queries = problem.tokens - problem.first_query;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (kWeightThreads / kWarpSize);
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * (kWeightThreads / kWarpSize) + Warp();
       row < call.num_heads * queries; row += warps) {
    const auto head = static_cast<int32_t>(row / queries);
    const auto query = static_cast<int32_t>(problem.first_query + row % queries);
    const int64_t* offsets = row_offsets + row + head;  // heads have queries + 1 of them
    const int64_t begin = offsets[0] + Lane(), end = offsets[1];
    const float* q = call.q + (problem.query_row + query) * call.q_stride + static_cast<int64_t>(head) * call.head_dim;
    float largest = -INFINITY;
    for (int64_t e = begin; e < end; e += kWarpSize) {
      const float* k = call.k + (problem.first_row + keys[e]) * call.k_stride + KeyHead(call, head) * call.head_dim;
      float dot = 0.0f;
      for (int t = 0; t < call.head_dim; ++t) dot = fmaf(q[t], k[t], dot);
      weights[e] = fmaf(dot, call.scale, BiasOf(call, problem, head, query, keys[e]));
      largest = fmaxf(largest, weights[e]);
    }
    for (int step = kWarpSize / 2; step > 0; step /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, step));
    }
    float sum = 0.0f;
    for (int64_t e = begin; e < end; e += kWarpSize) {
      const float times = multiplicity == nullptr ? 1.0f : static_cast<float>(multiplicity[e]);
      weights[e] = times * expf(weights[e] - largest);
      sum += weights[e];
    }
    sum = WarpSum(sum);
    for (int64_t e = begin; e < end; e += kWarpSize) weights[e] /= sum;
  }
}

}  // namespace

cudaError_t CountExpected(cudaStream_t stream, const DeviceCall& call, const int32_t* problems, int32_t count) {
  cudaError_t error = Launch(stream, count, kWarpSize, 0, kLoaded<ClearExpected>, call, problems);
  if (error != cudaSuccess || count == 0) return error;
  error = Launch(stream, call.num_row_items, kRowThreads, 0, kLoaded<AddExpected>, call, problems, count);
  if (error != cudaSuccess) return error;
  return Launch(stream, static_cast<int64_t>(count) * call.num_heads, kRowThreads, 0, kLoaded<FinishExpected>, call,
                problems);
}

cudaError_t CountKeyDegrees(cudaStream_t stream, const DeviceCall& call, const int64_t* first_degrees,
                            uint32_t* degrees) {
  return Launch(stream, BlocksFor(call, call.num_row_items), kRowThreads, 0, kLoaded<AddKeyDegrees>, call,
                first_degrees, degrees);
}

cudaError_t CountRowEdges(cudaStream_t stream, const DeviceCall& call, int32_t problem, int32_t* row_edges) {
  return Launch(stream, BlocksFor(call, call.num_row_items), kRowThreads, 0, kLoaded<StoreRowEdges>, call, problem,
                row_edges);
}

cudaError_t ListEdges(cudaStream_t stream, const DeviceCall& call, int32_t problem, const int64_t* row_offsets,
                      int32_t* keys, int32_t* multiplicity) {
  return Launch(stream, BlocksFor(call, call.num_row_items), kRowThreads, 0, kLoaded<StoreEdges>, call, problem,
                row_offsets, keys, multiplicity);
}

cudaError_t EdgeWeights(cudaStream_t stream, const DeviceCall& call, int32_t problem, const int64_t* row_offsets,
                        const int32_t* keys, const int32_t* multiplicity, float* weights) {
  return Launch(stream, kWeightBlocks, kWeightThreads, 0, kLoaded<StoreWeights>, call, problem, row_offsets, keys,
                multiplicity, weights);
}

}  // namespace edgewise::cuda
