// Attention over many edges on tensor cores: queries, keys, values and weights in bf16, sums in float32.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_MMA_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_MMA_CUH_

#include "kernels/cuda/attention/mma.cuh"
#include "kernels/cuda/attention/rows_dense.cuh"

namespace edgewise::cuda {

inline constexpr int kStageWords = kSliceColumns / 2 + 4;  // pairs of bf16 from one key of the stage to the next
static_assert(sizeof(uint32_t) * kTileKeys * kStageWords <= kStageBytes && kWeightWords == kTileKeys / 2 + 4);

// Copies columns first..first + kSliceColumns - 1 of up to kTileKeys rows of bf16; zeros where rows or columns end.
template <bool kAligned>
__device__ inline void StageTile(const __nv_bfloat16* rows, int64_t stride, int keys, int first, int columns,
                                 uint32_t* stage, int thread) {
  constexpr int kWords = kAligned ? 4 : 1;  // that a thread copies at once
  constexpr int kVectors = kSliceColumns / (2 * kWords);
#pragma unroll 4
  for (int i = 0; i < kTileKeys * kVectors / kDrawThreads; ++i) {
    const int place = i * kDrawThreads + thread;
    const int key = place / kVectors, word = place % kVectors * kWords, column = first + 2 * word;
    uint32_t* to = stage + key * kStageWords + word;
    const __nv_bfloat16* from = rows + key * stride + column;
    if constexpr (kAligned) {
      using Vector = RowVector<__nv_bfloat16, true>;
      *reinterpret_cast<uint4*>(to) = key < keys && column < columns ? Vector::Load(from) : Vector::Zero();
    } else {
      const float low = key < keys && column < columns ? __bfloat162float(from[0]) : 0.0f;
      const float high = key < keys && column + 1 < columns ? __bfloat162float(from[1]) : 0.0f;
      *to = PackBf16(low, high);
    }
  }
}

// A block that attends over one chunk in bf16. Warp w has keys 8w..8w + 7 of a tile's scores, and columns 8w..8w + 7 of
// every slice of the values, of all 32 rows.
template <int kMaxDim, bool kAligned>
class DenseRows<__nv_bfloat16, kMaxDim, kAligned>
    : public DenseBlock<DenseRows<__nv_bfloat16, kMaxDim, kAligned>, __nv_bfloat16, uint32_t, kMaxDim> {
  using Base = DenseBlock<DenseRows, __nv_bfloat16, uint32_t, kMaxDim>;
  friend Base;

 public:
  static size_t SharedBytes(int head_dim) { return sizeof(uint32_t) * kRowsPerItem * QueryWords(head_dim); }

  __device__ DenseRows(const RowOperands<__nv_bfloat16>& operands, int32_t chunk, RowsShared& shared, float* sums)
      : Base(operands, chunk, shared, sums, QueryWords(operands.call.head_dim)),
        warp_(block_thread_ / kWarpSize),
        group_(block_thread_ % kWarpSize / 4),
        thread_(block_thread_ % 4) {}

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

  // Of a row of queries: whole steps of 16 columns, then room so that rows begin in different banks.
  __host__ __device__ static int QueryWords(int head_dim) { return (head_dim + 15) / 16 * 8 + 4; }

  __device__ void StageQueries() {
    const int dim = operands_.call.head_dim;
    for (int i = block_thread_; i < kRowsPerItem * query_stride_; i += kDrawThreads) {
      const int row = i / query_stride_, column = i % query_stride_ * 2;
      const bool inside = row < operands_.item.queries;
      const float low = inside && column < dim ? operands_.Query(row)[column] * operands_.score_scale : 0.0f;
      const float high = inside && column + 1 < dim ? operands_.Query(row)[column + 1] * operands_.score_scale : 0.0f;
      queries_[i] = PackBf16(low, high);
    }
  }

  // Returns what they add to the row's sum: rounded, as they are multiplied.
  __device__ float PutWeights(int row, int pair, float low, float high) {
    const uint32_t packed = PackBf16(low, high);
    shared_.weights[row * kWeightWords + pair] = packed;
    return __uint_as_float(packed << 16) + __uint_as_float(packed & 0xFFFF0000u);
  }

  // Columns 16 * step.. of rows 16 * half.. as the left operand of a product.
  __device__ void LoadRows(const uint32_t* rows, int words, int half, int step, uint32_t (&a)[4]) const {
    const uint32_t* upper = rows + (16 * half + group_) * words + 8 * step + thread_;
    const uint32_t* lower = upper + 8 * words;
    a[0] = upper[0];
    a[1] = lower[0];
    a[2] = upper[4];
    a[3] = lower[4];
  }

  __device__ void ScoreTile(int tile) {
    const int dim = operands_.call.head_dim;
    const __nv_bfloat16* rows = operands_.k + static_cast<int64_t>(first_key_ + tile * kTileKeys) * operands_.k_stride;
    float score[2][4] = {};
    for (int first = 0; first < dim; first += kSliceColumns) {
      StageTile<kAligned>(rows, operands_.k_stride, KeysOf(tile), first, dim, stage_, block_thread_);
      __syncthreads();
      const int columns = min(dim - first, kSliceColumns);
      for (int step = 0; step * 16 < columns; ++step) {
        const uint32_t* key = stage_ + (8 * warp_ + group_) * kStageWords + 8 * step + thread_;
        const uint32_t b[2] = {key[0], key[4]};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t a[4];
          LoadRows(queries_, query_stride_, half, first / 16 + step, a);
          MmaBf16(score[half], a, b);
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* upper = shared_.scores + (16 * half + group_) * kScoreStride + 8 * warp_ + 2 * thread_;
      *reinterpret_cast<float2*>(upper) = make_float2(score[half][0], score[half][1]);
      *reinterpret_cast<float2*>(upper + 8 * kScoreStride) = make_float2(score[half][2], score[half][3]);
    }
  }

  __device__ void StageValues(int tile, int slice) {
    const __nv_bfloat16* rows = operands_.v + static_cast<int64_t>(first_key_ + tile * kTileKeys) * operands_.v_stride;
    StageTile<kAligned>(rows, operands_.v_stride, KeysOf(tile), slice * kSliceColumns, operands_.call.value_dim, stage_,
                        block_thread_);
  }

  // Column 8 * warp + group of keys `key` and key + 1, the first in the low half.
  __device__ uint32_t ValuePair(int key) const {
    const uint32_t* word = stage_ + key * kStageWords + 4 * warp_ + group_ / 2;
    const uint32_t first = word[0], second = word[kStageWords];
    return group_ % 2 == 0 ? (first & 0xFFFFu) | second << 16 : first >> 16 | (second & 0xFFFF0000u);
  }

  // Adds the tile's weighted values. Its first slice is staged.
  __device__ void AddValues(int tile) {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      if (slice * kSliceColumns >= operands_.call.value_dim) break;
      if (slice > 0) {
        __syncthreads();
        StageValues(tile, slice);
        __syncthreads();
      }
      if (slice * kSliceColumns + 8 * warp_ >= operands_.call.value_dim) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float upper = shared_.of_old[16 * half + group_], lower = shared_.of_old[16 * half + group_ + 8];
        values_[slice][half][0] *= upper;
        values_[slice][half][1] *= upper;
        values_[slice][half][2] *= lower;
        values_[slice][half][3] *= lower;
      }
#pragma unroll
      for (int step = 0; step < kTileKeys / 16; ++step) {
        const int key = 16 * step + 2 * thread_;
        const uint32_t b[2] = {ValuePair(key), ValuePair(key + 8)};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t a[4];
          LoadRows(shared_.weights, kWeightWords, half, step, a);
          MmaBf16(values_[slice][half], a, b);
        }
      }
    }
  }

  // Of the i-th of a slice's values.
  __device__ int RowOf(int i) const { return i / 4 * 16 + group_ + i % 4 / 2 * 8; }
  __device__ int ColumnOf(int slice, int i) const { return slice * kSliceColumns + 8 * warp_ + 2 * thread_ + i % 2; }

  const int warp_, group_, thread_;
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_MMA_CUH_
