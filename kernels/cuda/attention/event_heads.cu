// Which heads are drawn by events, and their tables (kernels/event_tables.h): one block a head. Sums of integers and
// largest values do not depend on the order.
#include "kernels/cuda/attention/cancel.cuh"
#include "kernels/cuda/attention/draw_pair.cuh"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/event_rule.h"

namespace edgewise::cuda {
namespace {

constexpr int kTableThreads = 256;

// What the threads of a block find together.
struct Found {
  uint32_t query_max, key_max, light_query, weight_max;  // bits of floats without signs, which ascend with them
  unsigned long long query_sum, key_sum, sampled_sum, parts;
  unsigned heavy_queries, heavy_keys;
  unsigned long long places[kTableThreads];  // of each thread's keys, then of those before them
  uint32_t heavy[kTableThreads];             // likewise
};

__device__ uint32_t BitsOf(float value) { return __float_as_uint(value) & 0x7FFFFFFFu; }

__device__ void Measure(const DeviceCall& call, const DeviceProblem& problem, const DrawnPairs& pairs,
                        const DeviceEventHead& head, Found& found) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  uint32_t query_max = 0, key_max = 0;
  for (int32_t i = thread; i < problem.tokens; i += kTableThreads) {
    head.mean_gap[i] = EventBound(RowDot(pairs.Query(i), pairs.Query(i), call.rank), problem.exploration);
    head.weight[i] = EventBound(RowDot(pairs.Key(i), pairs.Key(i), call.rank), problem.exploration);
    query_max = max(query_max, BitsOf(head.mean_gap[i]));
    key_max = max(key_max, BitsOf(head.weight[i]));
  }
  atomicMax(&found.query_max, query_max);
  atomicMax(&found.key_max, key_max);
  __syncthreads();
  const float query_largest = __uint_as_float(found.query_max), key_largest = __uint_as_float(found.key_max);
  if (!HasEventBounds(query_largest, key_largest)) return;
  unsigned long long query_sum = 0, key_sum = 0, sampled_sum = 0;
  for (int32_t i = thread; i < problem.tokens; i += kTableThreads) {
    const uint32_t units = EventUnits(head.mean_gap[i], query_largest);
    query_sum += units;
    if (i % kEventSampling == 0) sampled_sum += units;
    key_sum += EventUnits(head.weight[i], key_largest);
  }
  atomicAdd(&found.query_sum, query_sum);
  atomicAdd(&found.key_sum, key_sum);
  atomicAdd(&found.sampled_sum, sampled_sum);
}

// The sums of what the threads before each have; all threads.
template <typename T>
__device__ void SumsBefore(T* values) {
  __syncthreads();
  if (threadIdx.x == 0) {
    T sum = 0;
    for (int t = 0; t < kTableThreads; ++t) {
      const T value = values[t];
      values[t] = sum;
      sum += value;
    }
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kTableThreads) FillTables(const __grid_constant__ DeviceCall call) {
  __shared__ Found found;
  DeviceEventHead& head = call.event_heads[blockIdx.x];
  const DeviceProblem& problem = call.problems[head.problem];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t n = problem.tokens;
  if (thread == 0) {
    found.query_max = found.key_max = found.light_query = found.weight_max = 0;
    found.query_sum = found.key_sum = found.sampled_sum = found.parts = 0;
    found.heavy_queries = found.heavy_keys = 0;
  }
  __syncthreads();
  const DrawnPairs pairs(call, problem, head.head);
  Measure(call, problem, pairs, head, found);
  __syncthreads();
  EventMeans means;
  means.query_max = __uint_as_float(found.query_max);
  means.key_max = __uint_as_float(found.key_max);
  if (!HasEventBounds(means.query_max, means.key_max)) return;
  means.query = EventMean(found.query_sum, n, means.query_max);
  means.key = EventMean(found.key_sum, n, means.key_max);
  means.sampled_queries = EventMean(found.sampled_sum, (n + kEventSampling - 1) / kEventSampling, means.query_max);
  const HeavyLimits limits = HeavyLimitsOf(problem.law, means);
  // Each thread has a run of keys.
  const int32_t run = (n + kTableThreads - 1) / kTableThreads;
  const int32_t begin = min(n, thread * run), end = min(n, begin + run);
  unsigned heavy_queries = 0, heavy_keys = 0;
  uint32_t light_query = 0;
  for (int32_t i = begin; i < end; ++i) {
    const float query = head.mean_gap[i];
    if (query > limits.query) {
      ++heavy_queries;
    } else {
      light_query = max(light_query, BitsOf(query));
    }
    heavy_keys += head.weight[i] > limits.key ? 1 : 0;
  }
  atomicAdd(&found.heavy_queries, heavy_queries);
  atomicAdd(&found.heavy_keys, heavy_keys);
  atomicMax(&found.light_query, light_query);
  found.heavy[thread] = heavy_keys;
  SumsBefore(found.heavy);
  if (!UsesEvents(problem.way, n, means, int64_t{found.heavy_queries} + found.heavy_keys)) return;
  const float lightest = __uint_as_float(found.light_query);
  uint32_t weight_max = 0, heavy = found.heavy[thread];
  for (int32_t j = begin; j < end; ++j) {
    const bool is_heavy = head.weight[j] > limits.key;
    if (is_heavy) head.heavy[heavy++] = j;
    head.weight[j] = is_heavy ? 0.0f : EventWeight(problem.law, head.weight[j], lightest);
    weight_max = max(weight_max, BitsOf(head.weight[j]));
  }
  atomicMax(&found.weight_max, weight_max);
  __syncthreads();
  const double unit = EventPartsUnit(__uint_as_float(found.weight_max));
  unsigned long long parts = 0;
  for (int32_t j = begin; j < end; ++j) parts += EventParts(head.weight[j], unit);
  atomicAdd(&found.parts, parts);
  __syncthreads();
  const uint64_t part_width = EventPartWidth(found.parts, n);
  unsigned long long width = 0;
  for (int32_t j = begin; j < end; ++j) width += EventKeyWidth(EventParts(head.weight[j], unit), part_width);
  found.places[thread] = width;
  SumsBefore(found.places);
  uint64_t place = found.places[thread];
  for (int32_t j = begin; j < end; ++j) {
    head.places[j] = static_cast<uint32_t>(place);
    place += EventKeyWidth(EventParts(head.weight[j], unit), part_width);
  }
  if (thread == kTableThreads - 1) {
    head.places[n] = static_cast<uint32_t>(place);
    head.places[n + 1] = 0xFFFFFFFFu;
  }
  for (int32_t i = begin; i < end; ++i) {
    const float bound = head.mean_gap[i];
    head.mean_gap[i] = bound > limits.query ? 0.0f : EventMeanGap(bound, part_width, unit);
  }
  if (thread == 0) {
    head.heavy_keys = static_cast<int32_t>(found.heavy_keys);
    head.by_events = 1;
  }
}

}  // namespace

cudaError_t FillEventTables(cudaStream_t stream, const DeviceCall& call) {
  return Launch(stream, call.num_event_heads, kTableThreads, 0, kLoaded<FillTables>, call);
}

}  // namespace edgewise::cuda
