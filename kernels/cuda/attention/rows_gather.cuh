// Attention of one row over its edges in one chunk: a warp lists them and fetches their keys and values.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_GATHER_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_GATHER_CUH_

#include "kernels/cuda/attention/rows.cuh"

namespace edgewise::cuda {

// A warp that attends over rows of an item, one after the other. The threads form groups, each of which takes one edge
// at a time; a thread of a group holds the same elements of all keys and values. Edge e of a row's list is taken by the
// same group in the same step whatever other rows there are, and groups are added up in a fixed order. For each row:
//   1. ListChunk, or ListSegment where the list might not have room for all edges, lists the keys.
//   2. AttendBatch scores kBatch edges, raises the largest score and adds the weighted values.
//   3. MergeGroups adds up the groups, AddToRow adds the chunk to the row.
template <typename Element, int kMaxDim>
class RowGather {
 public:
  __device__ RowGather(const RowOperands<Element>& operands, int32_t chunk, double tau, RowsShared& shared, float* sums)
      : operands_(operands),
        shared_(shared),
        thread_(ThisThread()),
        list_(shared.draw.queue[thread_ / kWarpSize]),
        sums_(sums),
        first_key_(chunk * kChunkKeys),
        tau_(tau),
        multi_(HasMultiplicity(operands.problem)),
        special_(multi_ || operands.biased),
        lane_(thread_ % kWarpSize),
        group_(lane_ / kLanes),
        column_(lane_ % kLanes * kSize) {}

  // Takes rows until none is left.
  __device__ void Run() {
    for (;;) {
      int row = lane_ == 0 ? atomicAdd(&shared_.next_row, 1) : 0;
      row = __shfl_sync(kWholeWarp, row, 0);
      if (row >= operands_.item.queries) return;
      if (shared_.chunk_edges[row] > 0) AttendRow(row);
    }
  }

 private:
  using Vector = RowVector<Element>;
  static constexpr int kSize = Vector::kSize;
  static constexpr int kLanes = kMaxDim / kSize < kWarpSize ? kMaxDim / kSize : kWarpSize;  // of a group
  static constexpr int kRepeat = kMaxDim / (kSize * kLanes);                                // vectors of a thread
  static constexpr int kGroups = kWarpSize / kLanes;
  static constexpr int kUnroll = kRepeat > 1 ? 2 : 4;  // edges of a group in flight
  static constexpr int kBatch = kGroups * kUnroll;     // edges of a warp in flight
  static constexpr uint32_t kParallelFlag = 1u << 16;  // in the list: the edge counts more than once
  static_assert(kBatch <= kWarpSize && kLanes * kRepeat * kSize == kMaxDim);

  __device__ void AttendRow(int row) {
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
    // A list that surely has room for all edges is made at once.
    const int segments = shared_.chunk_edges[row] <= kSegmentKeys ? 1 : kChunkKeys / kSegmentKeys;
    int size = 0;
    for (int segment = 0; segment < segments; ++segment) {
      size = segments == 1 ? ListChunk() : ListSegment(segment, size);
      __syncwarp(kWholeWarp);
      const int least = segment + 1 < segments ? kBatch : 1;
      int begin = 0;
      for (; begin + least <= size; begin += kBatch) AttendBatch(begin, size);
      const uint32_t rest = begin + lane_ < size ? list_[begin + lane_] : 0;
      __syncwarp(kWholeWarp);
      size = max(size - begin, 0);
      if (lane_ < size) list_[lane_] = rest;
      __syncwarp(kWholeWarp);
    }
    MergeGroups();
    AddToRow();
    __syncwarp(kWholeWarp);
  }

  // Lists all edges of the chunk, ascending: a thread reads two words. Returns how many there are.
  __device__ int ListChunk() {
    const uint64_t* bits = shared_.bits + row_ * kChunkWords + 2 * lane_;
    const int first = __popcll(bits[0]), count = first + __popcll(bits[1]);
    const int through = Through(count);
    ListWord(bits[0], 2 * lane_ * 64, through - count);
    ListWord(bits[1], 2 * lane_ * 64 + 64, through - count + first);
    return __shfl_sync(kWholeWarp, through, kWarpSize - 1);
  }

  // Lists the edges of one segment behind the `size` edges that are listed: a thread reads a quarter of a word.
  __device__ int ListSegment(int segment, int size) {
    const int word = segment * kSegmentWords + lane_ / 4, shift = lane_ % 4 * 16;
    const uint64_t bits = shared_.bits[row_ * kChunkWords + word] >> shift & 0xFFFFu;
    const int count = __popcll(bits), through = Through(count);
    ListWord(bits, word * 64 + shift, size + through - count);
    return size + __shfl_sync(kWholeWarp, through, kWarpSize - 1);
  }

  // Sum of `count` over this thread and those before it.
  __device__ int Through(int count) const {
    for (int step = 1; step < kWarpSize; step *= 2) {
      const int before = __shfl_up_sync(kWholeWarp, count, step);
      if (lane_ >= step) count += before;
    }
    return count;
  }

  __device__ void ListWord(uint64_t bits, int first, int place) {
    for (; bits != 0; bits &= bits - 1) {
      const int key = first + __ffsll(static_cast<long long>(bits)) - 1;
      const bool parallel = multi_ && (shared_.parallel[row_ * kChunkWords + key / 64] >> (key % 64) & 1) != 0;
      list_[place++] = static_cast<uint32_t>(key) | (parallel ? kParallelFlag : 0);
    }
  }

  // Attends over edges begin..begin + kBatch - 1 of the list. Edges beyond the list's end weigh nothing.
  __device__ void AttendBatch(int begin, int size) {
    typename Vector::Raw keys[kUnroll][kRepeat], values[kUnroll][kRepeat];
    // A thread looks up the multiplicity and bias of one edge of the batch for the edge's group.
    float own_count = 1.0f, own_bias = 0.0f;  // multiplicity; added to the score
    if (special_ && lane_ < kBatch) {
      const uint32_t entry = list_[min(begin + lane_, size - 1)];
      const int32_t key = first_key_ + static_cast<int32_t>(entry & (kParallelFlag - 1));
      if (entry >= kParallelFlag) own_count = Multiplicity(key);
      if (operands_.biased) own_bias = operands_.Bias(row_, key);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint32_t entry = list_[min(begin + u * kGroups + group_, size - 1)];
      const int64_t key = first_key_ + static_cast<int32_t>(entry & (kParallelFlag - 1));
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

  __device__ float Multiplicity(int32_t key) const {
    return static_cast<float>(MultiplicityOf(operands_.call, operands_.problem, operands_.item, row_, key, tau_));
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

  // Adds the chunk to the row's state.
  __device__ void AddToRow() {
    const MergedSoftmax merged = Merge({shared_.largest[row_], shared_.sum[row_]}, state_);
    __syncwarp(kWholeWarp);
    if (lane_ == 0) {
      shared_.largest[row_] = merged.state.largest;
      shared_.sum[row_] = merged.state.sum;
    }
    if (group_ != 0) return;
    float* sums = sums_ + row_ * operands_.call.value_dim;
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
      for (int c = 0; c < kSize; ++c) {
        const int column = column_ + r * kLanes * kSize + c;
        if (column >= operands_.call.value_dim) continue;
        sums[column] = sums[column] * merged.of_first + value_[r][c] * merged.of_second;
      }
    }
  }

  const RowOperands<Element>& operands_;
  RowsShared& shared_;
  const int thread_;
  uint32_t* const list_;  // of the warp: keys of the chunk, ascending
  float* const sums_;
  const int32_t first_key_;
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
