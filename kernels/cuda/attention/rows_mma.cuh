// Attention of a row over its edges with tensor cores; precision bf16.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_MMA_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_MMA_CUH_

#include "kernels/cuda/attention/rows.cuh"
#include "kernels/cuda/device/mma.cuh"

namespace edgewise::cuda {

// A warp that attends over rows of an item, one after the other, kBatch edges at a time. The 16 bytes that a thread
// loads are an operand A of a product as they are; B holds the numbers of one row, laid out for it. With g = lane / 4,
// t = lane % 4, and lines of A for what PTX calls its rows:
//   1. Fetch: of the keys of edges 2g and 2g + 1 columns 8 (t + 4 part).., of the values of edges 4t to 4t + 3 columns
//      8g + 64 part...
//   2. Score: words x and z of a key are in line g, y and w in line g + 8. B has the query's numbers for x and z in its
//      even columns, those for y and w in its odd ones: every thread of a group gets both parts of the score.
//   3. Weights: relative to a score that is raised rarely (RowSoftmax).
//   4. Add: the words of a value are two columns of the sum each. B has the weight at four places, so that its column 0
//      sums up the low halves of x and y, 1 the high halves, 2 and 3 those of z and w.
// Zero times what is not finite is NaN: a value reaches 4 columns of the row, and a key's columns that are read in
// place of those beyond the head's reach the score. A row that is not finite is attended to again without them, and the
// columns of such values become NaN.
//
// kKeyParts: of 32 columns of queries and keys. kValueParts: of 64 columns of values. kSpecial: there may be biases, or
// edges that count more than once; calls for them take registers.
template <int kKeyParts, int kValueParts, bool kSpecial>
class RowsMma {
 public:
  using Element = __nv_bfloat16;
  static constexpr int kBatch = 16;
  struct Shared {  // of a warp
    alignas(16) uint32_t list[RowEdges::kMostKeys + kBatch];
  };

  __device__ RowsMma(const RowOperands<Element>& operands, Shared& shared)
      : operands_(operands),
        list_(shared.list),
        lane_(static_cast<int>(threadIdx.x % kWarpSize)),
        group_(lane_ / 4),
        thread_(lane_ % 4) {
    const DeviceCall& call = operands.call;
    // Columns beyond the head's are read from its last ones, and not used.
#pragma unroll
    for (int part = 0; part < kKeyParts; ++part) keys_[part] = operands.k + min(KeyColumn(part), call.head_dim - 8);
#pragma unroll
    for (int part = 0; part < kValueParts; ++part) {
      values_[part] = operands.v + min(8 * group_ + 64 * part, call.value_dim - 8);
    }
#pragma unroll
    for (int b = 0; b < 2; ++b) {  // the low half of a word becomes the low or high half, or none
      pick_[b] = group_ == 2 * b ? 0x4410 : group_ == 2 * b + 1 ? 0x1044 : 0x4444;
    }
  }

  // False: the problem has been cancelled.
  __device__ bool Attend(int row) {
    const RowEdges edges(operands_.call, operands_.problem, operands_.item, operands_.item.first_query + row);
    if (!edges.here()) return true;
    LoadQuery(row);
#pragma unroll 1
    for (again_ = false;; again_ = true) {
      softmax_ = {};
#pragma unroll
      for (int part = 0; part < kValueParts; ++part) {
        bad_[part] = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) sums_[part][i / 4][i % 4] = 0.0f;
      }
      const int32_t edge_count = ForBatches<kBatch>(
          operands_.problem, edges, list_,
          [&](int begin, int count, int32_t place) { AttendBatch(edges, row, begin, count, place); });
      if (edge_count < 0) return false;
      bool finite = true;
#pragma unroll
      for (int part = 0; part < kValueParts; ++part) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums_[part][0][i] += sums_[part][1][i];
          finite &= isfinite(sums_[part][0][i]);
        }
      }
      if (again_ || __all_sync(kWholeWarp, finite)) {
        Store(row, softmax_.Normalizer<4>(edge_count > 0));
        return true;
      }
    }
  }

 private:
  struct Batch {
    uint4 k[2][kKeyParts];
    uint4 v[4][kValueParts];
  };

  __device__ int KeyColumn(int part) const { return 8 * (thread_ + 4 * part); }

  __device__ void LoadQuery(int row) {
    const int64_t q = operands_.QueryPlace(row) + group_ % 2 * 2;
#pragma unroll
    for (int part = 0; part < kKeyParts; ++part) {
      const int column = KeyColumn(part);
      const bool here = column < operands_.call.head_dim;
#pragma unroll
      for (int b = 0; b < 2; ++b) query_[part][b] = here ? QueryPair(operands_.call, q + column + 4 * b) : 0;
    }
  }

  __device__ void AttendBatch(const RowEdges& edges, int row, int begin, int count, int32_t place) {
    Batch batch;
    Fetch(begin, batch);
    float score[2], bias[2] = {}, times[2] = {1.0f, 1.0f};
    if constexpr (kSpecial) {  // threads 2g and 2g + 1 of a group look their edges up for it
      const int edge = 2 * group_ + thread_ % 2;
      float own_bias = 0.0f, own_times = 1.0f;
      if (thread_ < 2 && edge < count) {
        operands_.LookUp(edges, row, list_[begin + edge], place + edge, own_bias, own_times);
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        bias[e] = __shfl_sync(kWholeWarp, own_bias, 4 * group_ + e);
        times[e] = __shfl_sync(kWholeWarp, own_times, 4 * group_ + e);
      }
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float s[4] = {};
#pragma unroll
      for (int part = 0; part < kKeyParts; ++part) MmaBf16(s, &batch.k[e][part].x, query_[part]);
      score[e] = (s[0] + s[3]) * operands_.score_scale;
      if constexpr (kSpecial) score[e] += bias[e];
      if (2 * group_ + e >= count) score[e] = -INFINITY;
    }
    softmax_.Raise<4>(fmaxf(score[0], score[1]), [&](float factor) {
#pragma unroll
      for (int i = 0; i < 8 * kValueParts; ++i) sums_[i / 8][i / 4 % 2][i % 4] *= factor;
    });
    const float first = softmax_.Weight(score[0], times[0]);
    Add(batch, PackBf16(first, softmax_.Weight(score[1], times[1])));
  }

  __device__ void Fetch(int begin, Batch& batch) {
    const auto key = [](uint32_t entry) { return kSpecial ? entry & ~kParallelFlag : entry; };
    const uint2 of_keys = *reinterpret_cast<const uint2*>(list_ + begin + 2 * group_);
    const uint4 of_values = *reinterpret_cast<const uint4*>(list_ + begin + 4 * thread_);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int part = 0; part < kKeyParts; ++part) {
        batch.k[e][part] = LoadOfRow<uint4>(keys_[part], key((&of_keys.x)[e]), operands_.k_stride);
      }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
#pragma unroll
      for (int part = 0; part < kValueParts; ++part) {
        batch.v[e][part] = LoadOfRow<uint4>(values_[part], key((&of_values.x)[e]), operands_.v_stride);
      }
    }
    if (again_) LeaveOut(batch);
  }

  // Zeros for columns beyond the head's, and for values that are not finite, of which bad_ takes note: bit 2 w + h of
  // half h of word w.
  __device__ void LeaveOut(Batch& batch) {
#pragma unroll
    for (int part = 0; part < kKeyParts; ++part) {
      if (KeyColumn(part) >= operands_.call.head_dim) batch.k[0][part] = batch.k[1][part] = make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < 32 * kValueParts; ++i) {
      const int part = i / 32, word = i % 4, half = i / 4 % 2;
      uint32_t& x = (&batch.v[i / 8 % 4][part].x)[word];
      if ((x >> (16 * half) & 0x7F80u) != 0x7F80u) continue;
      x &= half == 0 ? 0xFFFF0000u : 0xFFFFu;
      bad_[part] |= 1u << (2 * word + half);
    }
  }

  // `weights`: of edges 2g and 2g + 1.
  __device__ void Add(const Batch& batch, uint32_t weights) {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const uint32_t two = __shfl_sync(kWholeWarp, weights, 8 * thread_ + 4 * pair);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t b[2] = {__byte_perm(two >> (16 * half), 0, pick_[0]),
                               __byte_perm(two >> (16 * half), 0, pick_[1])};
#pragma unroll
        for (int part = 0; part < kValueParts; ++part) {
          MmaBf16(sums_[part][half], &batch.v[2 * pair + half][part].x, b);
        }
      }
    }
  }

  // Threads 0 and 1 of a group have four columns each.
  __device__ void Store(int row, float normalizer) {
    const OutRow out = operands_.Out(row);
#pragma unroll
    for (int part = 0; part < kValueParts; ++part) {
      uint32_t bad = bad_[part];
      if (again_) {  // sums 0 and 1 are of word x or z, sums 2 and 3 of y or w
        bad |= __shfl_xor_sync(kWholeWarp, bad, 1);
        bad |= __shfl_xor_sync(kWholeWarp, bad, 2);
        bad >>= 4 * thread_;
      }
      const int column = 8 * group_ + 64 * part + 4 * thread_;
      if (thread_ >= 2 || column >= operands_.call.value_dim) continue;
      float sums[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i] = (bad >> i & 1) != 0 ? NAN : sums_[part][0][i] * normalizer;
      out.Put<true>(column, sums);
    }
  }

  const RowOperands<Element>& operands_;
  uint32_t* const list_;
  const int lane_, group_, thread_;
  const Element* keys_[kKeyParts];  // the thread's columns of key 0
  const Element* values_[kValueParts];
  uint32_t pick_[2];
  uint32_t query_[kKeyParts][2];
  RowSoftmax softmax_;
  float sums_[kValueParts][2][4];  // of edges of even and of odd number
  bool again_;
  uint32_t bad_[kValueParts];
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_MMA_CUH_
