// Attention over many edges in float32.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_DENSE_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_DENSE_CUH_

#include "kernels/cuda/attention/rows_block.cuh"

namespace edgewise::cuda {

inline constexpr int kScoreColumns = 32;                     // columns of a slice of keys
inline constexpr int kScoreStageStride = kScoreColumns + 4;  // floats from one key to the next
static_assert(sizeof(float) * kTileKeys * kSliceColumns <= kStageBytes);

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
class DenseRows : public DenseBlock<DenseRows<Element, kMaxDim, kAligned>, Element, float, kMaxDim> {
  using Base = DenseBlock<DenseRows, Element, float, kMaxDim>;
  friend Base;

 public:
  // What it needs behind the sums of values.
  static size_t SharedBytes(int head_dim) { return sizeof(float) * kRowsPerItem * QueryStride(head_dim); }

  __device__ DenseRows(const RowOperands<Element>& operands, int32_t chunk, RowsShared& shared, float* sums)
      : Base(operands, chunk, shared, sums, QueryStride(operands.call.head_dim)),
        row_(block_thread_ / 16),
        part_(block_thread_ % 16) {}

 private:
  using Base::block_thread_;
  using Base::first_key_;
  using Base::KeysOf;
  using Base::kSlices;
  using Base::operands_;
  using Base::queries_;
  using Base::query_stride_;
  using Base::shared_;
  using Base::stage_;
  using Base::values_;

  // Whole vectors, then room so that rows begin in different banks.
  __host__ __device__ static int QueryStride(int head_dim) { return (head_dim + 3) / 4 * 4 + 4; }

  __device__ void StageQueries() {
    for (int i = block_thread_; i < kRowsPerItem * query_stride_; i += kDrawThreads) {
      const int row = i / query_stride_, column = i % query_stride_;
      const bool inside = row < operands_.item.queries && column < operands_.call.head_dim;
      queries_[i] = inside ? operands_.Query(row)[column] * operands_.score_scale : 0.0f;
    }
  }

  // Returns what they add to the row's sum.
  __device__ float PutWeights(int row, int pair, float low, float high) {
    *reinterpret_cast<float2*>(shared_.scores + row * kScoreStride + 2 * pair) = make_float2(low, high);
    return low + high;
  }

  __device__ void ScoreTile(int tile) {
    const int dim = operands_.call.head_dim;
    const float* rows = operands_.k + static_cast<int64_t>(first_key_ + tile * kTileKeys) * operands_.k_stride;
    float score[2][4] = {};
    for (int first = 0; first < dim; first += kScoreColumns) {
      StageTile<kAligned, kScoreColumns, kScoreStageStride>(rows, operands_.k_stride, KeysOf(tile), first, dim, stage_,
                                                            block_thread_);
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
                                                      operands_.call.value_dim, stage_, block_thread_);
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

  // Of the i-th of a slice's values.
  __device__ int RowOf(int i) const { return row_ + i / 4 * 16; }
  __device__ int ColumnOf(int slice, int i) const { return slice * kSliceColumns + 4 * part_ + i % 4; }

  const int row_, part_;
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_DENSE_CUH_
