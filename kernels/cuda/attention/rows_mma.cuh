// Attention of neighbouring rows over their edges with tensor cores; precision bf16.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_MMA_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_MMA_CUH_

#include "kernels/cuda/attention/rows.cuh"
#include "kernels/cuda/device/mma.cuh"

namespace edgewise::cuda {

// A warp that attends over up to kRows rows, one after the other, kBatch edges at a time:
//   1. Fetch loads the keys and values of a batch as they are operands of products. Columns are taken in another order
//      than they lie, the same for queries and keys, so that loads are of 16 bytes.
//   2. Score multiplies the keys by all queries of the warp; those of the row are scores, the others are not looked at.
//   3. Weigh turns scores into weights, relative to a score that is raised where one is more than kHeadroom above it.
//   4. Add multiplies the transposed values by the weights: those of other rows are 0.
// So a row's result depends on its own edges alone: on their batches, which begin with the row. Only a value that is
// not finite reaches the others, as 0 times it; Attend says so, and the caller takes the rows one at a time.
//
// kKeyParts: of 32 columns of queries and keys. kValueParts: of 64 columns of values. kSpecial: there may be biases, or
// edges that count more than once; calls for them take registers.
template <int kKeyParts, int kValueParts, bool kSpecial>
class RowsMma {
 public:
  static constexpr int kRows = 8, kBatch = 16;
  static constexpr int kListed = RowEdges::kMostKeys + kBatch;  // keys of a warp in shared memory

  __device__ RowsMma(const RowOperands<__nv_bfloat16>& operands, double tau, uint32_t* list)
      : operands_(operands),
        list_(list),
        tau_(tau),
        multi_(HasMultiplicity(operands.problem)),
        group_(ThisThread() % kWarpSize / 4),
        thread_(ThisThread() % 4) {}

  // kAlone: nothing is stored, since one of several rows is not finite, or is not here; take them one at a time.
  enum class End { kStored, kCancelled, kAlone };

  // Rows first..first + rows - 1 of the item, of which the round has the first.
  __device__ End Attend(int first, int rows) {
    LoadQueries(first, rows);
#pragma unroll 1
    for (row_ = 0; row_ < rows; ++row_) {
      const End end = AttendRow(first + row_);
      if (end != End::kStored) return end;
    }
    bool finite = true;
#pragma unroll
    for (int i = 0; i < kSums; ++i) finite &= isfinite(sums_[i] * normalizer_[i % 2]);
    if (!__all_sync(kWholeWarp, finite || rows == 1)) return End::kAlone;
    Store(first, rows);
    return End::kStored;
  }

 private:
  static constexpr float kHeadroom = 16.0f;  // weights are at most 2^16
  static constexpr int kSums = 16 * kValueParts;

  struct Batch {
    uint4 k[2][kKeyParts];    // of edges group and group + 8, columns from 8 * (thread + 4 * part) on
    uint4 v[4][kValueParts];  // of edges 2 thread, 2 thread + 1, and those + 8, columns from 8 * group + 64 * part on
  };

  __device__ void LoadQueries(int first, int rows) {
    const float* q = operands_.Query(first + min(group_, rows - 1));
#pragma unroll
    for (int part = 0; part < kKeyParts; ++part) {
      const int column = 8 * (thread_ + 4 * part);
      const bool here = column < operands_.call.head_dim;
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        query_[part][pair] = here ? PackBf16(q[column + 2 * pair], q[column + 2 * pair + 1]) : 0;
      }
    }
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums_[i] = 0.0f;
    normalizer_[0] = normalizer_[1] = 0.0f;
  }

  __device__ End AttendRow(int row) {
    const RowEdges edges(operands_.call, operands_.problem, operands_.item, operands_.item.first_query + row);
    if (!edges.here()) return End::kAlone;
    unit_ = limit_ = -INFINITY;
    sum_ = 0.0f;
    const int32_t count = ForBatches<kBatch>(operands_.problem, edges, list_, [&](int begin, int size, int32_t place) {
      AttendBatch(edges, row, begin, min(size - begin, kBatch), place);
    });
    if (count < 0) return End::kCancelled;
#pragma unroll
    for (int step = 4; step < kWarpSize; step *= 2) sum_ += __shfl_xor_sync(kWholeWarp, sum_, step);
    if (!Mine() || count == 0) return End::kStored;
    const float normalizer = sum_ > 0.0f ? 1.0f / sum_ : NAN;
    if (row_ % 2 == 0) {
      normalizer_[0] = normalizer;
    } else {
      normalizer_[1] = normalizer;
    }
    return End::kStored;
  }

  // The thread has scores, weights and sums of the row.
  __device__ bool Mine() const { return thread_ == row_ / 2; }

  __device__ void AttendBatch(const RowEdges& edges, int row, int begin, int count, int32_t place) {
    Batch batch;
    Fetch(list_ + begin, count, batch);
    float score[2];
    Score(batch, score);
    float times[2] = {1.0f, 1.0f};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int edge = group_ + 8 * half;
      const bool valid = Mine() && edge < count;
      score[half] = valid ? score[half] * operands_.score_scale : -INFINITY;
      if (!kSpecial || !valid) continue;
      const uint32_t flagged = list_[begin + edge];
      if (operands_.biased) score[half] += operands_.Bias(row, static_cast<int32_t>(flagged & ~kParallelFlag));
      if (multi_) times[half] = static_cast<float>(edges.Multiplicity(flagged, place + edge, tau_));
    }
    if (__any_sync(kWholeWarp, score[0] > limit_ || score[1] > limit_)) Raise(fmaxf(score[0], score[1]));
    const float unit = unit_ == -INFINITY ? 0.0f : unit_;
    const float weight[2] = {Exp2(score[0] - unit) * times[0], Exp2(score[1] - unit) * times[1]};
    sum_ += weight[0] + weight[1];
    Add(batch, weight);
  }

  __device__ void Fetch(const uint32_t* list, int count, Batch& batch) const {
    const DeviceCall& call = operands_.call;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int edge = group_ + 8 * half;
      const int64_t key = list[min(edge, count - 1)] & ~kParallelFlag;
      const __nv_bfloat16* from = operands_.k + key * operands_.k_stride;
#pragma unroll
      for (int part = 0; part < kKeyParts; ++part) {
        const int column = 8 * (thread_ + 4 * part);
        batch.k[half][part] = Load(from + column, edge < count && column < call.head_dim);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int edge = 2 * thread_ + i % 2 + i / 2 * 8;
      const int64_t key = list[min(edge, count - 1)] & ~kParallelFlag;
      const __nv_bfloat16* from = operands_.v + key * operands_.v_stride;
#pragma unroll
      for (int part = 0; part < kValueParts; ++part) {
        const int column = 8 * group_ + 64 * part;
        batch.v[i][part] = Load(from + column, edge < count && column < call.value_dim);
      }
    }
  }
  __device__ static uint4 Load(const __nv_bfloat16* from, bool here) {
    return here ? __ldg(reinterpret_cast<const uint4*>(from)) : make_uint4(0, 0, 0, 0);
  }

  // <q, k> of edges group and group + 8, in the threads that have the row.
  __device__ void Score(const Batch& batch, float (&score)[2]) const {
    float s[2][4] = {};
#pragma unroll
    for (int part = 0; part < kKeyParts; ++part) {
      const uint4 &upper = batch.k[0][part], &lower = batch.k[1][part];
      const uint32_t first[4] = {upper.x, lower.x, upper.y, lower.y}, second[4] = {upper.z, lower.z, upper.w, lower.w};
      MmaBf16(s[0], first, query_[part]);
      MmaBf16(s[1], second, query_[part] + 2);
    }
    const bool odd = row_ % 2 != 0;
    score[0] = odd ? s[0][1] + s[1][1] : s[0][0] + s[1][0];
    score[1] = odd ? s[0][3] + s[1][3] : s[0][2] + s[1][2];
  }

  // By the largest score of the batch.
  __device__ void Raise(float score) {
#pragma unroll
    for (int step = 4; step < kWarpSize; step *= 2) score = fmaxf(score, __shfl_xor_sync(kWholeWarp, score, step));
    if (!(score > limit_)) return;
    const float factor = Exp2(unit_ - score);
    unit_ = score;
    limit_ = score + kHeadroom;
    sum_ *= factor;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      if (i % 2 == row_ % 2) sums_[i] *= factor;
    }
  }

  __device__ void Add(const Batch& batch, const float (&weight)[2]) {
    const bool odd = row_ % 2 != 0;
    uint32_t weights[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float w = Mine() ? weight[half] : 0.0f;
      weights[half] = Transposed(odd ? PackBf16(0.0f, w) : PackBf16(w, 0.0f));
    }
#pragma unroll
    for (int part = 0; part < kValueParts; ++part) {
      const uint32_t* v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = &batch.v[i][part].x;
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const uint32_t operand[4] = {__byte_perm(v[0][m], v[1][m], 0x5410), __byte_perm(v[0][m], v[1][m], 0x7632),
                                     __byte_perm(v[2][m], v[3][m], 0x5410), __byte_perm(v[2][m], v[3][m], 0x7632)};
        MmaBf16(sums_ + 16 * part + 4 * m, operand, weights);
      }
    }
  }

  // Sum 16 part + 4 m + 2 h + c is column 64 part + 8 group + 2 m + h of row 2 thread + c.
  __device__ void Store(int first, int rows) const {
    const DeviceCall& call = operands_.call;
    const DeviceProblem& problem = operands_.problem;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int row = 2 * thread_ + c;
      if (row >= rows) continue;
      float* out =
          call.out +
          (problem.out_row + operands_.item.first_query + first + row - problem.first_query) * call.out_stride +
          static_cast<int64_t>(operands_.item.head) * call.value_dim;
#pragma unroll
      for (int part = 0; part < kValueParts; ++part) {
        const int column = 64 * part + 8 * group_;
        if (column >= call.value_dim) continue;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          out[column + i] = sums_[16 * part + 4 * (i / 2) + 2 * (i % 2) + c] * normalizer_[c];
        }
      }
    }
  }

  const RowOperands<__nv_bfloat16>& operands_;
  uint32_t* const list_;  // of the warp, in shared memory [kListed]
  const double tau_;
  const bool multi_;
  const int group_, thread_;
  int row_ = 0;                   // of the warp's
  float unit_, limit_, sum_;      // of the row: weights are relative to 2^unit; the thread's part of the sum
  float normalizer_[2];           // of rows 2 thread and 2 thread + 1
  uint32_t query_[kKeyParts][4];  // of row `group`
  float sums_[kSums];
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_MMA_CUH_
