// Attention over many edges: a chunk's keys in tiles, the block's rows together, what is no edge masked.
//
// A row's result depends on its edges and on which tiles have edges of the item; threads and warps are added up in a
// fixed order.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_BLOCK_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_BLOCK_CUH_

#include "kernels/cuda/attention/rows.cuh"

namespace edgewise::cuda {

inline constexpr int kWeightThreads = kDrawThreads / kRowsPerItem;     // of a row
inline constexpr int kWeightPairs = kTileKeys / (2 * kWeightThreads);  // pairs of keys of such a thread
inline constexpr int kSliceColumns = 64;                               // columns of a slice
static_assert(kWeightPairs * 2 * kWeightThreads == kTileKeys && kRowsPerItem == 32 && kTileKeys == 64);

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

// What a block that attends over one chunk has in either precision. Rows says how it computes: StageQueries(),
// ScoreTile(tile), StageValues(tile, slice), PutWeights(row, pair, low, high), AddValues(tile), RowOf(i) and
// ColumnOf(slice, i). Word: what the stage and the queries are made of.
template <typename Rows, typename Element, typename Word, int kMaxDim>
class DenseBlock {
 public:
  __device__ void Run() {
    rows().StageQueries();
    for (int tile = 0; tile * kTileKeys < keys_; ++tile) {
      if (!TileHasEdges(shared_, tile)) continue;
      rows().ScoreTile(tile);
      rows().StageValues(tile, 0);
      __syncthreads();
      weights_.Weigh(operands_, first_key_, tile, shared_, [this](int row, int pair, float low, float high) {
        return rows().PutWeights(row, pair, low, high);
      });
      __syncthreads();
      rows().AddValues(tile);
    }
    __syncthreads();
    weights_.AddToRows(shared_);
    __syncthreads();
    AddToRows();
  }

 protected:
  static constexpr int kSlices = (kMaxDim + kSliceColumns - 1) / kSliceColumns;

  __device__ DenseBlock(const RowOperands<Element>& operands, int32_t chunk, RowsShared& shared, float* sums,
                        int query_stride)
      : operands_(operands),
        shared_(shared),
        stage_(reinterpret_cast<Word*>(shared.stage)),
        sums_(sums),
        queries_(reinterpret_cast<Word*>(sums + kRowsPerItem * operands.call.value_dim)),
        query_stride_(query_stride),
        first_key_(chunk * kChunkKeys),
        keys_(min(operands.problem.tokens - first_key_, kChunkKeys)),
        block_thread_(ThisThread()),
        weights_(block_thread_) {}

  __device__ int KeysOf(int tile) const { return min(keys_ - tile * kTileKeys, kTileKeys); }

  const RowOperands<Element>& operands_;
  RowsShared& shared_;
  Word* const stage_;
  float* const sums_;
  Word* const queries_;  // [kRowsPerItem, query_stride_], in units of ln 2 of a score
  const int query_stride_;
  const int32_t first_key_;
  const int keys_;
  float values_[kSlices][2][4] = {};
  const int block_thread_;
  TileWeights weights_;

 private:
  __device__ Rows& rows() { return static_cast<Rows&>(*this); }

  __device__ void AddToRows() {
    const int dim = operands_.call.value_dim;
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int row = rows().RowOf(i), column = rows().ColumnOf(slice, i);
        if (column >= dim) continue;
        float& sum = sums_[row * dim + column];
        sum = sum * shared_.of_old[row] + values_[slice][i / 4][i % 4] * shared_.of_new[row];
      }
    }
  }
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_BLOCK_CUH_
