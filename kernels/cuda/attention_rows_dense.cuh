// Attention over many edges: a chunk's keys in tiles, the block's rows together, what is no edge masked.
//
// A row's result depends on its edges and on which tiles have edges of the item; threads and warps are added up in a
// fixed order.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_DENSE_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_DENSE_CUH_

#include "kernels/cuda/attention_rows.cuh"

namespace edgewise::cuda {

inline constexpr int kWeightThreads = kDrawThreads / kRowsPerItem;     // of a row
inline constexpr int kWeightPairs = kTileKeys / (2 * kWeightThreads);  // pairs of keys of such a thread
inline constexpr int kSliceColumns = 64;                               // columns of a slice, except:
inline constexpr int kScoreColumns = 32;                               // columns of a slice of float32 keys
inline constexpr int kScoreStageStride = kScoreColumns + 4;            // floats from one key to the next
static_assert(kWeightPairs * 2 * kWeightThreads == kTileKeys && kRowsPerItem == 32 && kTileKeys == 64);
static_assert(sizeof(float) * kTileKeys * kSliceColumns <= kStageBytes);

// Softmax of the chunk so far, of the row that kWeightThreads threads share.
class TileWeights {
 public:
  explicit __device__ TileWeights(int thread) : row_(thread / kWeightThreads), part_(thread % kWeightThreads) {}

  // Turns the tile's scores into weights: put(row, pair, low, high) takes those of keys 2 * pair and 2 * pair + 1 and
  // returns their sum. of_old: what the rows' sums of values are to be multiplied by first.
  template <typename Element, typename Put>
  __device__ void Weigh(const RowOperands<Element>& operands, int32_t first_key, int tile, RowsShared& shared,
                        const Put& put) {
    const uint64_t edges = shared.bits[row_ * kChunkWords + tile];
    float* scores = shared.scores + row_ * kScoreStride;
    if (operands.biased) {
#pragma unroll 1
      for (int c = 0; c < 2 * kWeightPairs; ++c) {
        const int key = KeyOf(c);
        if ((edges >> key & 1) != 0) scores[key] += operands.Bias(row_, first_key + tile * kTileKeys + key);
      }
    }
    float score[2 * kWeightPairs];
    float largest = -INFINITY;
#pragma unroll
    for (int c = 0; c < 2 * kWeightPairs; ++c) {
      const int key = KeyOf(c);
      const bool is_edge = (edges >> key & 1) != 0;
      score[c] = is_edge ? scores[key] : -INFINITY;
      largest = fmaxf(largest, score[c]);
    }
    for (int step = kWeightThreads / 2; step > 0; step /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, step));
    }
    const float factor = state_.Raise(largest);
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < kWeightPairs; ++c) {
      sum += put(row_, part_ + c * kWeightThreads, state_.Weight(score[2 * c]), state_.Weight(score[2 * c + 1]));
    }
    for (int step = kWeightThreads / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, step);
    state_.sum = fmaf(state_.sum, factor, sum);
    if (part_ == 0) shared.of_old[row_] = factor;
  }

  // Adds the chunk to the rows' states; of_old and of_new: factors of the sums of values.
  __device__ void AddToRows(RowsShared& shared) const {
    if (part_ != 0) return;
    OnlineSoftmax before;
    before.largest = shared.largest[row_];
    before.sum = shared.sum[row_];
    const MergedSoftmax merged = Merge(before, state_);
    shared.largest[row_] = merged.state.largest;
    shared.sum[row_] = merged.state.sum;
    shared.of_old[row_] = merged.of_first;
    shared.of_new[row_] = merged.of_second;
  }

 private:
  // The c-th of the thread's keys of a tile.
  __device__ int KeyOf(int c) const { return 2 * (part_ + c / 2 * kWeightThreads) + c % 2; }

  const int row_, part_;
  OnlineSoftmax state_;
};

// Some row of the item has an edge in the tile. A block barrier.
__device__ inline bool TileHasEdges(const RowsShared& shared, int tile) {
  const int row = static_cast<int>(threadIdx.x) % kRowsPerItem;
  return __syncthreads_or(shared.bits[row * kChunkWords + tile] != 0) != 0;
}

// Copies columns first..first + kColumns - 1 of up to kTileKeys rows of float32; zeros where rows or columns end.
template <bool kAligned, int kColumns, int kStride>
__device__ inline void StageTile(const float* rows, int64_t stride, int keys, int first, int columns, float* stage,
                                 int thread) {
  using Vector = RowVector<float, kAligned>;
  constexpr int kVectors = kColumns / Vector::kSize;
#pragma unroll 4
  for (int i = 0; i < kTileKeys * kVectors / kDrawThreads; ++i) {
    const int place = i * kDrawThreads + thread;
    const int key = place / kVectors, column = place % kVectors * Vector::kSize;
    const bool inside = key < keys && first + column < columns;
    *reinterpret_cast<typename Vector::Raw*>(stage + key * kStride + column) =
        inside ? Vector::Load(rows + key * stride + first + column) : Vector::Zero();
  }
}

// sum + <a, b>, ascending.
__device__ inline float Dot4(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// A block that attends over one chunk in float32. Thread (r, c) of 16 x 16 has rows r and r + 16, and of them the
// scores of keys c, c + 16, .. of a tile and columns 4c..4c + 3 of every slice of the values.
template <typename Element, int kMaxDim, bool kAligned>
class DenseRows {
 public:
  // What it needs behind the sums of values.
  static size_t SharedBytes(int head_dim) { return sizeof(float) * kRowsPerItem * QueryStride(head_dim); }

  __device__ DenseRows(const RowOperands<Element>& operands, int32_t chunk, RowsShared& shared, float* sums)
      : operands_(operands),
        shared_(shared),
        stage_(reinterpret_cast<float*>(shared.stage)),
        sums_(sums),
        queries_(sums + kRowsPerItem * operands.call.value_dim),
        query_stride_(QueryStride(operands.call.head_dim)),
        first_key_(chunk * kChunkKeys),
        keys_(min(operands.problem.tokens - first_key_, kChunkKeys)),
        thread_(ThisThread()),
        row_(thread_ / 16),
        part_(thread_ % 16),
        weights_(thread_) {}

  __device__ void Run() {
    StageQueries();
    for (int tile = 0; tile * kTileKeys < keys_; ++tile) {
      if (!TileHasEdges(shared_, tile)) continue;
      ScoreTile(tile);
      StageValues(tile, 0);
      __syncthreads();
      weights_.Weigh(operands_, first_key_, tile, shared_, [&](int row, int pair, float low, float high) {
        *reinterpret_cast<float2*>(shared_.scores + row * kScoreStride + 2 * pair) = make_float2(low, high);
        return low + high;
      });
      __syncthreads();
      AddValues(tile);
    }
    __syncthreads();
    weights_.AddToRows(shared_);
    __syncthreads();
    AddToRows();
  }

 private:
  static constexpr int kSlices = (kMaxDim + kSliceColumns - 1) / kSliceColumns;

  // Whole vectors, then room so that rows begin in different banks.
  __host__ __device__ static int QueryStride(int head_dim) { return (head_dim + 3) / 4 * 4 + 4; }

  __device__ void StageQueries() {
    for (int i = thread_; i < kRowsPerItem * query_stride_; i += kDrawThreads) {
      const int row = i / query_stride_, column = i % query_stride_;
      const bool inside = row < operands_.item.queries && column < operands_.call.head_dim;
      queries_[i] = inside ? operands_.Query(row)[column] * operands_.score_scale : 0.0f;
    }
  }

  __device__ int KeysOf(int tile) const { return min(keys_ - tile * kTileKeys, kTileKeys); }

  __device__ void ScoreTile(int tile) {
    const int dim = operands_.call.head_dim;
    const float* rows = operands_.k + static_cast<int64_t>(first_key_ + tile * kTileKeys) * operands_.k_stride;
    float score[2][4] = {};
    for (int first = 0; first < dim; first += kScoreColumns) {
      StageTile<kAligned, kScoreColumns, kScoreStageStride>(rows, operands_.k_stride, KeysOf(tile), first, dim, stage_,
                                                            thread_);
      __syncthreads();
      const float* upper = queries_ + row_ * query_stride_ + first;
      const float* lower = upper + 16 * query_stride_;
      const int columns = min(dim - first, kScoreColumns);
#pragma unroll 1
      for (int t = 0; t < columns; t += 4) {
        const float4 q0 = *reinterpret_cast<const float4*>(upper + t);
        const float4 q1 = *reinterpret_cast<const float4*>(lower + t);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float4 k = *reinterpret_cast<const float4*>(stage_ + (part_ + 16 * j) * kScoreStageStride + t);
          score[0][j] = Dot4(q0, k, score[0][j]);
          score[1][j] = Dot4(q1, k, score[1][j]);
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      shared_.scores[row_ * kScoreStride + part_ + 16 * j] = score[0][j];
      shared_.scores[(row_ + 16) * kScoreStride + part_ + 16 * j] = score[1][j];
    }
  }

  __device__ void StageValues(int tile, int slice) {
    const float* rows = operands_.v + static_cast<int64_t>(first_key_ + tile * kTileKeys) * operands_.v_stride;
    StageTile<kAligned, kSliceColumns, kSliceColumns>(rows, operands_.v_stride, KeysOf(tile), slice * kSliceColumns,
                                                      operands_.call.value_dim, stage_, thread_);
  }

  // Adds the tile's weighted values. Its first slice is staged.
  __device__ void AddValues(int tile) {
    const float* upper = shared_.scores + row_ * kScoreStride;
    const float* lower = upper + 16 * kScoreStride;
    const float of_old[2] = {shared_.of_old[row_], shared_.of_old[row_ + 16]};
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      if (slice * kSliceColumns >= operands_.call.value_dim) break;
      if (slice > 0) {
        __syncthreads();
        StageValues(tile, slice);
        __syncthreads();
      }
      float(&value)[2][4] = values_[slice];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        value[0][c] *= of_old[0];
        value[1][c] *= of_old[1];
      }
#pragma unroll 2
      for (int key = 0; key < kTileKeys; key += 4) {
        const float4 w0 = *reinterpret_cast<const float4*>(upper + key);
        const float4 w1 = *reinterpret_cast<const float4*>(lower + key);
        AddValue(w0.x, w1.x, key, value);
        AddValue(w0.y, w1.y, key + 1, value);
        AddValue(w0.z, w1.z, key + 2, value);
        AddValue(w0.w, w1.w, key + 3, value);
      }
    }
  }
  __device__ void AddValue(float w0, float w1, int key, float (&value)[2][4]) const {
    const float4 v = *reinterpret_cast<const float4*>(stage_ + key * kSliceColumns + 4 * part_);
    const float of[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      value[0][c] = fmaf(w0, of[c], value[0][c]);
      value[1][c] = fmaf(w1, of[c], value[1][c]);
    }
  }

  __device__ void AddToRows() {
    const int dim = operands_.call.value_dim;
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int row = row_ + i / 4 * 16, column = slice * kSliceColumns + 4 * part_ + i % 4;
        if (column >= dim) continue;
        float& sum = sums_[row * dim + column];
        sum = sum * shared_.of_old[row] + values_[slice][i / 4][i % 4] * shared_.of_new[row];
      }
    }
  }

  const RowOperands<Element>& operands_;
  RowsShared& shared_;
  float* const stage_;
  float* const sums_;
  float* const queries_;  // [kRowsPerItem, query_stride_], in units of ln 2 of a score
  const int query_stride_;
  const int32_t first_key_;
  const int keys_;
  const int thread_, row_, part_;
  TileWeights weights_;
  float values_[kSlices][2][4] = {};
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_DENSE_CUH_
