// Attention of one row over its edges: a warp takes their keys and fetches what is there.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_GATHER_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_GATHER_CUH_

#include "kernels/cuda/attention/rows.cuh"

namespace edgewise::cuda {

// A warp that attends over rows of an item, one after the other. The threads form groups, each of which takes one edge
// at a time; a thread of a group holds the same elements of all keys and values. Edge e of a row is taken by the same
// group in the same step whatever other rows there are, and groups are added up in a fixed order. For each row:
//   1. RowEdges::Take writes the next keys to `list`.
//   2. AttendBatch scores kBatch edges, raises the largest score and adds the weighted values.
//   3. MergeGroups adds up the groups, Store writes the normalised sums.
template <typename Element, int kMaxDim>
class RowGather {
 public:
  // Keys of a warp in shared memory: those of a step and those that are left over of the one before.
  static constexpr int kListed = RowEdges::kMostKeys + kWarpSize;

  __device__ RowGather(const RowOperands<Element>& operands, double tau, uint32_t* list)
      : operands_(operands),
        list_(list),
        tau_(tau),
        multi_(HasMultiplicity(operands.problem)),
        special_(multi_ || operands.biased),
        lane_(ThisThread() % kWarpSize),
        group_(lane_ / kLanes),
        column_(lane_ % kLanes * kSize) {}

  // False: the problem has been cancelled.
  __device__ bool Attend(int row) {
    const RowEdges edges(operands_.call, operands_.problem, operands_.item, operands_.item.first_query + row);
    if (!edges.here()) return true;
    row_ = row;
    state_ = {};
    const float* q = operands_.Query(row);
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
      for (int c = 0; c < kSize; ++c) {
        const int column = column_ + r * kLanes * kSize + c;
        query_[r][c] = column < operands_.call.head_dim ? q[column] * operands_.score_scale : 0.0f;
        value_[r][c] = 0.0f;
      }
    }
    const int32_t count = ForBatches<kBatch>(operands_.problem, edges, list_, [&](int begin, int size, int32_t place) {
      AttendBatch(edges, begin, size, place);
    });
    if (count < 0) return false;
    MergeGroups();
    Store(count > 0);
    return true;
  }

 private:
  using Vector = RowVector<Element>;
  static constexpr int kSize = Vector::kSize;
  static constexpr int kLanes = kMaxDim / kSize < kWarpSize ? kMaxDim / kSize : kWarpSize;  // of a group
  static constexpr int kRepeat = kMaxDim / (kSize * kLanes);                                // vectors of a thread
  static constexpr int kGroups = kWarpSize / kLanes;
  static constexpr int kUnroll = kRepeat > 1 ? 2 : 4;  // edges of a group in flight
  static constexpr int kBatch = kGroups * kUnroll;     // edges of a warp in flight
  static_assert(kBatch <= kWarpSize && kLanes * kRepeat * kSize == kMaxDim);

  // Attends over edges begin..begin + kBatch - 1 of the list, the first of which is edge `place` of the row. Edges
  // beyond the list's end weigh nothing.
  __device__ void AttendBatch(const RowEdges& edges, int begin, int size, int32_t place) {
    typename Vector::Raw keys[kUnroll][kRepeat], values[kUnroll][kRepeat];
    // A thread looks up the multiplicity and bias of one edge of the batch for the edge's group.
    float own_count = 1.0f, own_bias = 0.0f;  // multiplicity; added to the score
    if (special_ && lane_ < kBatch) {
      const int mine = min(lane_, size - 1 - begin);
      const uint32_t entry = list_[begin + mine];
      if (multi_) own_count = static_cast<float>(edges.Multiplicity(entry, place + mine, tau_));
      if (operands_.biased) own_bias = operands_.Bias(row_, static_cast<int32_t>(entry & ~kParallelFlag));
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint32_t entry = list_[min(begin + u * kGroups + group_, size - 1)];
      const int64_t key = entry & ~kParallelFlag;
      Fetch(operands_.k + key * operands_.k_stride, operands_.call.head_dim, keys[u]);
      Fetch(operands_.v + key * operands_.v_stride, operands_.call.value_dim, values[u]);
    }
    float score[kUnroll];
    float largest = -INFINITY;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      score[u] = Score(keys[u]);
      if (special_) score[u] += __shfl_sync(kWholeWarp, own_bias, u * kGroups + group_);
      if (begin + u * kGroups + group_ >= size) score[u] = -INFINITY;
      largest = fmaxf(largest, score[u]);
    }
    const float factor = state_.Raise(largest);
    state_.sum *= factor;
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
      for (int c = 0; c < kSize; ++c) value_[r][c] *= factor;
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      float weight = state_.Weight(score[u]);
      if (special_) weight *= __shfl_sync(kWholeWarp, own_count, u * kGroups + group_);
      state_.sum += weight;
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        float part[kSize];
        Vector::Unpack(values[u][r], part);
#pragma unroll
        for (int c = 0; c < kSize; ++c) value_[r][c] = fmaf(weight, part[c], value_[r][c]);
      }
    }
  }

  __device__ void Fetch(const Element* row, int dim, typename Vector::Raw* to) const {
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      const int column = column_ + r * kLanes * kSize;
      to[r] = column < dim ? Vector::Load(row + column) : Vector::Zero();
    }
  }

  // <q, k> of the group's key, the same in all of its threads.
  __device__ float Score(const typename Vector::Raw* key) const {
    float sum = 0.0f;
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      float part[kSize];
      Vector::Unpack(key[r], part);
#pragma unroll
      for (int c = 0; c < kSize; ++c) sum = fmaf(query_[r][c], part[c], sum);
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, step);
    return sum;
  }

  // Afterwards all groups have the sum over groups.
  __device__ void MergeGroups() {
#pragma unroll
    for (int step = kLanes; step < kWarpSize; step *= 2) {
      OnlineSoftmax other;
      other.largest = __shfl_xor_sync(kWholeWarp, state_.largest, step);
      other.sum = __shfl_xor_sync(kWholeWarp, state_.sum, step);
      const MergedSoftmax merged = Merge(state_, other);
      state_ = merged.state;
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
        for (int c = 0; c < kSize; ++c) {
          const float theirs = __shfl_xor_sync(kWholeWarp, value_[r][c], step);
          value_[r][c] = value_[r][c] * merged.of_first + theirs * merged.of_second;
        }
      }
    }
  }

  // Writes the normalised sums.
  __device__ void Store(bool has_edges) const {
    if (group_ != 0) return;
    const DeviceCall& call = operands_.call;
    const DeviceProblem& problem = operands_.problem;
    const float normalizer = state_.Normalizer(has_edges);
    float* out = call.out +
                 (problem.out_row + operands_.item.first_query + row_ - problem.first_query) * call.out_stride +
                 static_cast<int64_t>(operands_.item.head) * call.value_dim;
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
      for (int c = 0; c < kSize; ++c) {
        const int column = column_ + r * kLanes * kSize + c;
        if (column < call.value_dim) out[column] = value_[r][c] * normalizer;
      }
    }
  }

  const RowOperands<Element>& operands_;
  uint32_t* const list_;  // of the warp, in shared memory [kListed]: keys, ascending
  const double tau_;
  const bool multi_, special_;  // edges may count more than once; that, or biases
  const int lane_, group_;
  const int column_;  // first of the thread's elements
  int row_ = 0;
  OnlineSoftmax state_;  // of the group's edges
  float query_[kRepeat][kSize];
  float value_[kRepeat][kSize];
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_GATHER_CUH_
