// The tables of the heads that may be drawn by events, exactly as kernels/host/event_tables.h says; which heads are:
//   1. FindDirections: a unit vector of each head, near which its keys lie.
//   2. FindBounds: EventBound of queries and keys, and their certificates (certificate.h).
//   3. FillTables: sums of whole numbers, which may be taken in any order; then places, and a guide to them.
// Compile with -fmad=false.
#include "kernels/cuda/attention/draw_pair.cuh"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/sum_before.cuh"
#include "kernels/draw/event_rule.h"

namespace edgewise::cuda {
namespace {

constexpr int kDirectionThreads = 512;  // at least kMaxEventRank
constexpr int kDirectionKeys = 256;     // that a direction is taken from
constexpr int kBoundThreads = 256, kBoundRows = kBoundThreads / 4;
constexpr int kTableThreads = kSumThreads;

template <typename T>
__device__ T SumOfWarp(T value) {
  for (int step = kWarpSize / 2; step > 0; step /= 2) value += __shfl_xor_sync(kWholeWarp, value, step);
  return value;
}
__device__ uint32_t BitsOf(float value) { return __float_as_uint(value) & 0x7FFFFFFFu; }
__device__ void MaxOfBlock(uint32_t value, uint32_t* to) {
  for (int step = kWarpSize / 2; step > 0; step /= 2) value = max(value, __shfl_xor_sync(kWholeWarp, value, step));
  if (threadIdx.x % kWarpSize == 0) atomicMax(to, value);
}
__device__ void AddOfBlock(unsigned long long value, unsigned long long* to) {
  value = SumOfWarp(value);
  if (threadIdx.x % kWarpSize == 0) atomicAdd(to, value);
}

// One block a head. Any unit vector is right; a good one settles more events. A sum of some keys, the same on every
// run.
__global__ void __launch_bounds__(kDirectionThreads) FindDirections(const __grid_constant__ DeviceCall call) {
  __shared__ double squares[kDirectionThreads / kWarpSize];
  const DeviceEventHead& head = call.event_heads[blockIdx.x];
  const DeviceProblem& problem = call.problems[head.problem];
  const DrawnPairs pairs(call, problem, head.head);
  const int column = static_cast<int>(threadIdx.x);
  const int32_t step = max(1, problem.tokens / kDirectionKeys);
  float sum = 0.0f;
  if (column < call.rank) {
    for (int32_t key = 0; key < problem.tokens; key += step) sum += __ldg(pairs.Key(key) + column);
  }
  const double square = SumOfWarp(static_cast<double>(sum) * static_cast<double>(sum));
  if (column % kWarpSize == 0) squares[column / kWarpSize] = square;
  __syncthreads();
  double total = 0.0;
  for (const double of_warp : squares) total += of_warp;
  // Certificates want a norm of 1 within 2^-24, or none.
  const bool usable = total > 1e-30 && total < 1e30;
  if (column < call.rank) {
    head.direction[column] = usable ? static_cast<float>(static_cast<double>(sum) / sqrt(total)) : 0.0f;
  }
}

// Sums of the 16 lanes of MembershipDot, in its order, by 4 neighbouring threads, which have 4 lanes each and all get
// the sum.
__device__ float SumOfFour(float4 lane) {
#pragma unroll
  for (int step = 2; step > 0; step /= 2) {
    lane.x += __shfl_xor_sync(kWholeWarp, lane.x, step);
    lane.y += __shfl_xor_sync(kWholeWarp, lane.y, step);
    lane.z += __shfl_xor_sync(kWholeWarp, lane.z, step);
    lane.w += __shfl_xor_sync(kWholeWarp, lane.w, step);
  }
  return (lane.x + lane.z) + (lane.y + lane.w);
}
__device__ void AddProducts(const float4& a, const float4& b, float4& lane) {
  lane.x = fmaf(a.x, b.x, lane.x);
  lane.y = fmaf(a.y, b.y, lane.y);
  lane.z = fmaf(a.z, b.z, lane.z);
  lane.w = fmaf(a.w, b.w, lane.w);
}
// The rest of a number beside its part along the direction.
__device__ float RestOf(float value, float along, float direction) { return fmaf(-along, direction, value); }
__device__ uint32_t ByteOfRest(float rest, float scale) {
  return static_cast<uint32_t>(static_cast<int32_t>(rintf(rest / scale))) & 0xFFu;
}

// Four threads a row; the blocks of a head go over its queries, then its keys.
__global__ void __launch_bounds__(kBoundThreads)
    FindBounds(const __grid_constant__ DeviceCall call, int64_t blocks_of_head) {
  const DeviceEventHead& head = call.event_heads[blockIdx.x / blocks_of_head];
  const DeviceProblem& problem = call.problems[head.problem];
  const DrawnPairs pairs(call, problem, head.head);
  const int64_t row = static_cast<int64_t>(blockIdx.x) % blocks_of_head * kBoundRows + threadIdx.x / 4;
  const bool key = row >= problem.tokens, any = row < 2 * int64_t{problem.tokens};
  const auto token = static_cast<int32_t>(any ? key ? row - problem.tokens : row : 0);
  const int part = static_cast<int>(threadIdx.x) % 4;
  const auto* values = reinterpret_cast<const float4*>(key ? pairs.Key(token) : pairs.Query(token)) + part;
  const auto* direction = reinterpret_cast<const float4*>(head.direction) + part;
  float4 square = make_float4(0.0f, 0.0f, 0.0f, 0.0f), dot = square;
  for (int column = 0; column < call.rank; column += kDotLanes) {
    const float4 value = __ldg(values + column / 4);
    AddProducts(value, value, square);
    AddProducts(value, direction[column / 4], dot);
  }
  const float norm2 = SumOfFour(square), along = SumOfFour(dot);
  float largest = 0.0f;
  for (int column = 0; column < call.rank; column += kDotLanes) {
    const float4 value = __ldg(values + column / 4), to = direction[column / 4];
    largest = fmaxf(largest, fmaxf(fabsf(RestOf(value.x, along, to.x)), fabsf(RestOf(value.y, along, to.y))));
    largest = fmaxf(largest, fmaxf(fabsf(RestOf(value.z, along, to.z)), fabsf(RestOf(value.w, along, to.w))));
  }
  largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, 2));
  if (!any) return;
  const Certificate certificate = MakeCertificate(along, norm2, largest, call.rank);
  uint32_t* rests = (key ? head.key_rests : head.query_rests) + int64_t{token} * (call.rank / 4) + part;
  const bool useful = certificate.across < INFINITY;
  const auto word = [&](const float4& value, const float4& to) {
    return ByteOfRest(RestOf(value.x, along, to.x), certificate.scale) |
           ByteOfRest(RestOf(value.y, along, to.y), certificate.scale) << 8 |
           ByteOfRest(RestOf(value.z, along, to.z), certificate.scale) << 16 |
           ByteOfRest(RestOf(value.w, along, to.w), certificate.scale) << 24;
  };
  for (int column = 0; column < call.rank; column += kDotLanes) {
    rests[column / 4] = useful ? word(__ldg(values + column / 4), direction[column / 4]) : 0;
  }
  if (part != 0) return;
  (key ? head.key_certificates : head.query_certificates)[token] = certificate;
  (key ? head.key_bound : head.mean_gap)[token] = EventBound(norm2, problem.exploration);
}

// The result that all threads of a block find together.
struct Found {
  uint32_t query_max, key_max, light_query, light_key;  // bits of non-negative floats, which are in their order
  unsigned long long query_sum, key_sum, sampled_sum, parts;
  uint32_t heavy_queries, heavy_keys;
  uint32_t of_warp[kWarpSize];
};

// The largest bounds and, where a head may have events with them, their means. By all threads of the block.
__device__ EventMeans MeansOf(const float* queries, const float* keys, int32_t n, Found& found) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  uint32_t query_max = 0, key_max = 0;
  for (int32_t i = thread; i < n; i += kTableThreads) {
    query_max = max(query_max, BitsOf(queries[i]));
    key_max = max(key_max, BitsOf(keys[i]));
  }
  MaxOfBlock(query_max, &found.query_max);
  MaxOfBlock(key_max, &found.key_max);
  __syncthreads();
  EventMeans means;
  means.query_max = __uint_as_float(found.query_max);
  means.key_max = __uint_as_float(found.key_max);
  if (!HasEventBounds(means.query_max, means.key_max)) return means;
  unsigned long long query_sum = 0, key_sum = 0, sampled_sum = 0;
  for (int32_t i = thread; i < n; i += kTableThreads) {
    const uint32_t units = EventUnits(queries[i], means.query_max);
    query_sum += units;
    if (i % kEventSampling == 0) sampled_sum += units;
    key_sum += EventUnits(keys[i], means.key_max);
  }
  AddOfBlock(query_sum, &found.query_sum);
  AddOfBlock(key_sum, &found.key_sum);
  AddOfBlock(sampled_sum, &found.sampled_sum);
  __syncthreads();
  means.query = EventMean(found.query_sum, n, means.query_max);
  means.key = EventMean(found.key_sum, n, means.key_max);
  means.sampled_queries = EventMean(found.sampled_sum, (n + kEventSampling - 1) / kEventSampling, means.query_max);
  return means;
}

// Lists the heavy keys, ascending, and returns how many there are. By all threads of the block.
__device__ uint32_t ListHeavyKeys(const float* keys, int32_t n, float limit, int32_t* list, Found& found) {
  uint32_t heavy_keys = 0;
  for (int32_t first = 0; first < n; first += kTableThreads) {
    const int32_t j = first + static_cast<int32_t>(threadIdx.x);
    const bool heavy = j < n && keys[j] > limit;
    uint32_t all = 0;
    const uint32_t place = heavy_keys + SumBefore(heavy ? 1u : 0u, found.of_warp, &all);
    if (heavy) list[place] = j;
    heavy_keys += all;
  }
  return heavy_keys;
}

// Lays the keys side by side, each as wide as `width_of` says, with the guide to them. By all threads of the block.
template <typename WidthOf>
__device__ void LayKeys(DeviceEventHead& head, int32_t n, const WidthOf& width_of, Found& found) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int shift = 32 - head.guide_bits;
  const int64_t runs = int64_t{1} << head.guide_bits;
  uint32_t base = 0;
  for (int32_t first = 0; first < n; first += kTableThreads) {
    const int32_t j = first + thread;
    const auto width = static_cast<uint32_t>(j < n ? width_of(j) : 0);
    uint32_t all = 0;
    const uint32_t before = base + SumBefore(width, found.of_warp, &all);
    base += all;
    if (j >= n) continue;
    head.places[j] = before;
    const uint64_t begin = before, end = begin + width;
    for (uint64_t run = (begin + (uint64_t{1} << shift) - 1) >> shift; run << shift < end; ++run) head.guide[run] = j;
  }
  for (int64_t run = ((int64_t{base} + (int64_t{1} << shift) - 1) >> shift) + thread; run < runs;
       run += kTableThreads) {
    head.guide[run] = n;  // no key has it
  }
  if (thread != 0) return;
  head.places[n] = base;
  head.places[n + 1] = 0xFFFFFFFFu;
}

__global__ void __launch_bounds__(kTableThreads) FillTables(const __grid_constant__ DeviceCall call) {
  __shared__ Found found;
  DeviceEventHead& head = call.event_heads[blockIdx.x];
  const DeviceProblem& problem = call.problems[head.problem];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t n = problem.tokens;
  const float *queries = head.mean_gap, *keys = head.key_bound;  // bounds
  if (thread == 0) found = {};
  __syncthreads();
  const EventMeans means = MeansOf(queries, keys, n, found);
  if (!HasEventBounds(means.query_max, means.key_max)) return;
  const HeavyLimits limits = HeavyLimitsOf(problem.law, means);
  uint32_t heavy_queries = 0, light_query = 0, light_key = 0;
  for (int32_t i = thread; i < n; i += kTableThreads) {
    if (queries[i] > limits.query) {
      ++heavy_queries;
    } else {
      light_query = max(light_query, BitsOf(queries[i]));
    }
    if (!(keys[i] > limits.key)) light_key = max(light_key, BitsOf(keys[i]));
  }
  if (heavy_queries > 0) atomicAdd(&found.heavy_queries, heavy_queries);
  MaxOfBlock(light_query, &found.light_query);
  MaxOfBlock(light_key, &found.light_key);
  const uint32_t heavy_keys = ListHeavyKeys(keys, n, limits.key, head.heavy, found);
  __syncthreads();
  if (!UsesEvents(problem.way, n, means, int64_t{found.heavy_queries} + heavy_keys)) return;
  const float lightest = __uint_as_float(found.light_query);
  const auto weight = [&](int32_t j) {
    return keys[j] > limits.key ? 0.0f : EventWeight(problem.law, keys[j], lightest);
  };
  // The weight grows with the bound, in float32 too.
  const float largest = __uint_as_float(found.light_key);
  const double unit =
      EventPartsUnit(heavy_keys < static_cast<uint32_t>(n) ? EventWeight(problem.law, largest, lightest) : 0.0f);
  unsigned long long parts = 0;
  for (int32_t j = thread; j < n; j += kTableThreads) parts += EventParts(weight(j), unit);
  AddOfBlock(parts, &found.parts);
  __syncthreads();
  const uint64_t part_width = EventPartWidth(found.parts, n);
  LayKeys(
      head, n, [&](int32_t j) { return EventKeyWidth(EventParts(weight(j), unit), part_width); }, found);
  for (int32_t i = thread; i < n; i += kTableThreads) {
    const float bound = queries[i];
    head.mean_gap[i] = bound > limits.query ? 0.0f : EventMeanGap(bound, part_width, unit);
  }
  if (thread == 0) {
    head.heavy_keys = static_cast<int32_t>(heavy_keys);
    head.by_events = 1;
  }
}

}  // namespace

cudaError_t FillEventTables(cudaStream_t stream, const DeviceCall& call) {
  if (call.num_event_heads == 0) return cudaSuccess;
  const int64_t blocks = (2 * int64_t{call.most_tokens} + kBoundRows - 1) / kBoundRows;
  cudaError_t error = Launch(stream, call.num_event_heads, kDirectionThreads, 0, kLoaded<FindDirections>, call);
  if (error == cudaSuccess) {
    error = Launch(stream, call.num_event_heads * blocks, kBoundThreads, 0, kLoaded<FindBounds>, call, blocks);
  }
  if (error != cudaSuccess) return error;
  return Launch(stream, call.num_event_heads, kTableThreads, 0, kLoaded<FillTables>, call);
}

}  // namespace edgewise::cuda
