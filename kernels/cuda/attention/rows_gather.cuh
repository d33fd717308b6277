// Attention of a row over its edges, in float32.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_GATHER_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_GATHER_CUH_

#include "kernels/cuda/attention/rows.cuh"

namespace edgewise::cuda {

// A warp that attends over rows of an item, one after the other, kBatch edges at a time, of which each thread has one:
//   1. Score: kKeyLanes threads read a key together and share the sum of its products, some keys at once. As many steps
//      later a thread has that many parts of sums, and the threads give each other those that are not of their own
//      edge.
//   2. Weights are relative to a score that is raised rarely (RowSoftmax); shared memory passes them on.
//   3. Add: kValueLanes threads read a value together, kAhead values one after the other, and sum up its columns.
// kSpecial: there may be biases, or edges that count more than once; calls for them take registers.
template <int kMaxDim, bool kSpecial>
class RowGather {
 public:
  using Element = float;
  static constexpr int kBatch = kWarpSize;
  struct Shared {  // of a warp
    alignas(16) uint32_t list[RowEdges::kMostKeys + kBatch];
    alignas(16) float weights[kBatch];
  };

  __device__ RowGather(const RowOperands<Element>& operands, Shared& shared)
      : operands_(operands),
        shared_(shared),
        lane_(static_cast<int>(threadIdx.x % kWarpSize)),
        edge_(lane_ % kKeyLanes * kKeys + lane_ / kKeyLanes) {
    const DeviceCall& call = operands.call;
    // Columns beyond the head's are read from its last ones, and not used.
#pragma unroll
    for (int c = 0; c < kKeyVectors; ++c) keys_[c] = operands.k + min(KeyColumn(c), call.head_dim - 4);
#pragma unroll
    for (int r = 0; r < kValueVectors; ++r) values_[r] = operands.v + min(ValueColumn(r), call.value_dim - 4);
  }

  // False: the problem has been cancelled.
  __device__ bool Attend(int row) {
    const RowEdges edges(operands_.call, operands_.problem, operands_.item, operands_.item.first_query + row);
    if (!edges.here()) return true;
    const float* q = operands_.Query(row);
#pragma unroll
    for (int c = 0; c < kKeyVectors; ++c) {
      query_[c] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (KeyColumn(c) >= operands_.call.head_dim) continue;
      query_[c] = __ldg(reinterpret_cast<const float4*>(q + KeyColumn(c)));
      Scale(operands_.score_scale, query_[c]);
    }
#pragma unroll
    for (int r = 0; r < kValueVectors; ++r) sums_[r] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    softmax_ = {};
    const int32_t edge_count =
        ForBatches<kBatch>(operands_.problem, edges, shared_.list,
                           [&](int begin, int count, int32_t place) { AttendBatch(edges, row, begin, count, place); });
    if (edge_count < 0) return false;
    Store(row, softmax_.Normalizer<1>(edge_count > 0));
    return true;
  }

 private:
  static constexpr int kKeyLanes = kMaxDim <= 64 ? 4 : kMaxDim / 16;  // that share a key
  static constexpr int kKeyVectors = kMaxDim / (4 * kKeyLanes);       // of a thread
  static constexpr int kKeys = kWarpSize / kKeyLanes;                 // of a step
  static constexpr int kSteps = 2;                                    // at once
  static constexpr int kValueLanes = kMaxDim / 4 < kWarpSize ? kMaxDim / 4 : kWarpSize;
  static constexpr int kValueVectors = kMaxDim / (4 * kValueLanes);
  static constexpr int kGroups = kWarpSize / kValueLanes;
  static constexpr int kAhead = kGroups > 2 || kValueVectors > 1 ? 4 : 8;  // values of a group on their way
  static_assert(kBatch % (kGroups * kAhead) == 0);

  __device__ int KeyColumn(int c) const { return 4 * (lane_ % kKeyLanes + c * kKeyLanes); }
  __device__ int ValueColumn(int r) const { return 4 * (lane_ % kValueLanes + r * kValueLanes); }
  __device__ static uint32_t Key(uint32_t entry) { return kSpecial ? entry & ~kParallelFlag : entry; }
  __device__ static void Scale(float factor, float4& x) {
    x = make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
  }

  __device__ void AttendBatch(const RowEdges& edges, int row, int begin, int count, int32_t place) {
    float score = Score(shared_.list + begin, count), times = 1.0f;
    if constexpr (kSpecial) {
      float bias = 0.0f;
      if (edge_ < count) operands_.LookUp(edges, row, shared_.list[begin + edge_], place + edge_, bias, times);
      score += bias;
    }
    if (edge_ >= count) score = -INFINITY;
    softmax_.Raise<1>(score, [&](float factor) {
#pragma unroll
      for (int r = 0; r < kValueVectors; ++r) Scale(factor, sums_[r]);
    });
    __syncwarp(kWholeWarp);  // the weights before these have been read
    shared_.weights[edge_] = softmax_.Weight(score, times);
    __syncwarp(kWholeWarp);
#pragma unroll 1
    for (int first = 0; first < count; first += kGroups * kAhead) Add(shared_.list + begin, first);
  }

  // <q, k> of the thread's edge.
  __device__ float Score(const uint32_t* list, int count) const {
    float sums[kKeyLanes];  // the thread's parts
#pragma unroll
    for (int step = 0; step < kKeyLanes; step += kSteps) {
      sums[step] = sums[step + 1] = 0.0f;
      if (step * kKeys >= count) continue;
      float4 keys[kSteps][kKeyVectors];
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const uint32_t key = Key(list[(step + s) * kKeys + lane_ / kKeyLanes]);
#pragma unroll
        for (int c = 0; c < kKeyVectors; ++c) keys[s][c] = LoadOfRow<float4>(keys_[c], key, operands_.k_stride);
      }
      if (operands_.call.head_dim != kMaxDim) {  // 0 times what is not finite would be NaN
#pragma unroll
        for (int c = 0; c < kKeyVectors; ++c) {
          if (KeyColumn(c) >= operands_.call.head_dim) keys[0][c] = keys[1][c] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
      }
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int c = 0; c < kKeyVectors; ++c) {
          const float4 &q = query_[c], &k = keys[s][c];
          sums[step + s] = fmaf(q.w, k.w, fmaf(q.z, k.z, fmaf(q.y, k.y, fmaf(q.x, k.x, sums[step + s]))));
        }
      }
    }
#pragma unroll
    for (int half = kKeyLanes / 2; half > 0; half /= 2) {
      const bool upper = (lane_ & half) != 0;
#pragma unroll
      for (int i = 0; i < kKeyLanes / 2; ++i) {
        if (i >= half) continue;
        const float given = upper ? sums[i] : sums[i + half];
        sums[i] = (upper ? sums[i + half] : sums[i]) + __shfl_xor_sync(kWholeWarp, given, half);
      }
    }
    return sums[0];
  }

  // Adds the weighted values of kGroups * kAhead edges of the batch.
  __device__ void Add(const uint32_t* list, int first) {
    first += lane_ / kValueLanes * kAhead;
    float4 values[kAhead][kValueVectors];
#pragma unroll
    for (int i = 0; i < kAhead; i += 4) {
      const uint4 entries = *reinterpret_cast<const uint4*>(list + first + i);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int r = 0; r < kValueVectors; ++r) {
          values[i + e][r] = LoadOfRow<float4>(values_[r], Key((&entries.x)[e]), operands_.v_stride);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; i += 4) {
      const float4 weights = *reinterpret_cast<const float4*>(shared_.weights + first + i);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float weight = (&weights.x)[e];
#pragma unroll
        for (int r = 0; r < kValueVectors; ++r) {
          const float4& v = values[i + e][r];
          float4& sum = sums_[r];
          sum = make_float4(fmaf(weight, v.x, sum.x), fmaf(weight, v.y, sum.y), fmaf(weight, v.z, sum.z),
                            fmaf(weight, v.w, sum.w));
        }
      }
    }
  }

  __device__ void Store(int row, float normalizer) {
#pragma unroll
    for (int r = 0; r < kValueVectors; ++r) {
      float4 sum = sums_[r];
#pragma unroll
      for (int step = kValueLanes; step < kWarpSize; step *= 2) {
        sum.x += __shfl_xor_sync(kWholeWarp, sum.x, step);
        sum.y += __shfl_xor_sync(kWholeWarp, sum.y, step);
        sum.z += __shfl_xor_sync(kWholeWarp, sum.z, step);
        sum.w += __shfl_xor_sync(kWholeWarp, sum.w, step);
      }
      Scale(normalizer, sum);
      if (lane_ >= kValueLanes || ValueColumn(r) >= operands_.call.value_dim) continue;
      operands_.Out(row).template Put<false, 4>(ValueColumn(r), {sum.x, sum.y, sum.z, sum.w});
    }
  }

  const RowOperands<Element>& operands_;
  Shared& shared_;
  const int lane_;
  const int edge_;                    // of a batch, which the thread has
  const Element* keys_[kKeyVectors];  // the thread's columns of key 0
  const Element* values_[kValueVectors];
  float4 query_[kKeyVectors];
  RowSoftmax softmax_;
  float4 sums_[kValueVectors];
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_GATHER_CUH_
