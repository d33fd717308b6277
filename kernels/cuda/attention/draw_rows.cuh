// Draws the rows of an item exactly as kernels/draw.h says, or kernels/events.h where the head is drawn by events, by
// blocks of kDrawThreads threads, all of which take part:
//   1. Forced pairs are edges (VisitForced).
//   2. A pair is a candidate if its random byte is low enough for the bounds of query and key (ScanSegment, ScanGaps).
//   3. Candidates are queued for each warp (Reserve).
//   4. The warp computes the rates of 32 candidates at once and tests them (TestQueued).
// Compile with -fmad=false.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_DRAW_ROWS_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_DRAW_ROWS_CUH_

#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/attention/draw_pair.cuh"
#include "kernels/cuda/attention/events.cuh"
#include "kernels/cuda/device/launch.h"

namespace edgewise::cuda {

inline constexpr int kDrawThreads = 256;
inline constexpr int kDrawWarps = kDrawThreads / kWarpSize;
inline constexpr int kSegmentWords = 8;  // words of 64 keys that a warp scans at once, 16 keys a thread
inline constexpr int kSegmentKeys = kSegmentWords * 64;

// Shared memory of a block that draws; free for other use between the calls.
struct DrawScratch {
  // Pairs that may be edges: key in chunk | byte << 12 | row << 20.
  uint32_t queue[kDrawWarps][kSegmentKeys + kWarpSize];
};

// Finds the edges of the rows warp, warp + kDrawWarps, .. of an item among the keys of one chunk. `visit` is called by
// single threads at any time: it must not contain warp or block collectives.
template <typename Visit>
class RowDrawer {
 public:
  // `tau`: edges older than this need not be found. `want_uniform`: `visit` reads the uniform number.
  __device__ RowDrawer(const DeviceCall& call, const DeviceProblem& problem, const RowItem& item, int32_t chunk,
                       double tau, bool want_uniform, DrawScratch& scratch, Visit& visit)
      : problem_(problem),
        item_(item),
        pairs_(call, problem, item.head),
        events_(EventHeadOf(call, problem, item.head)),
        queue_(scratch.queue[threadIdx.x / kWarpSize]),
        visit_(visit),
        first_key_(chunk * kChunkKeys),
        keys_(min(problem.tokens - first_key_, kChunkKeys)),
        warp_(static_cast<int>(threadIdx.x) / kWarpSize),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize),
        want_uniform_(want_uniform || problem.law == Law::kPoissonMulti),
        slope_(256.0f * 1.00001f * static_cast<float>(tau)),
        base_(256.0f * 1.00001f * static_cast<float>(tau) * problem.exploration + 0.001f),
        limit_(tau < 1.0 ? static_cast<uint32_t>(tau * 0x1p31) + 1 : kEventAgeOne) {}

  __device__ void Run() {
    VisitForced();
    if (events_ != nullptr) {
      for (int row = warp_; row < item_.queries; row += kDrawWarps) {
        VisitEvents(problem_, *events_, pairs_, item_.first_query + row, row, first_key_, keys_, limit_, queue_,
                    visit_);
      }
      return;
    }
    const bool gaps = problem_.positions != nullptr;
    const int step = gaps ? kWarpSize : kSegmentKeys;
#pragma unroll 1
    for (int first = 0; first < keys_; first += step) {
      const float bound = gaps ? KeyBound(first + lane_) : SegmentBound(first);
#pragma unroll 1
      for (int row = warp_; row < item_.queries; row += kDrawWarps) {
        if (gaps) {
          ScanGaps(first, row, bound);
        } else {
          ScanSegment(first, row, bound);
        }
        const bool last = first + step >= keys_ && row + kDrawWarps >= item_.queries;
        TestQueued(last ? 1 : kWarpSize);
      }
    }
  }

 private:
  // Tokens of a forced pair are no further apart than their positions.
  __device__ void VisitForced() {
    if (!pairs_.HasForced()) return;
    const int64_t reach = pairs_.reach();
    for (int row = warp_; row < item_.queries; row += kDrawWarps) {
      const int64_t query = item_.first_query + row;
      const int64_t first = max(query - reach, static_cast<int64_t>(first_key_));
      const int64_t last = min(query + reach, static_cast<int64_t>(first_key_) + keys_ - 1);
      for (int64_t key = first + lane_; key <= last; key += kWarpSize) {
        const int32_t i = static_cast<int32_t>(query), j = static_cast<int32_t>(key);
        if (!pairs_.Forced(i, j)) continue;
        if (events_ != nullptr) {
          visit_(row, j, true, kIsEvent, 1.0f);
          continue;
        }
        const bool multi = problem_.law == Law::kPoissonMulti;
        visit_(row, j, true, multi ? pairs_.Uniform(i, j) : 0, multi ? pairs_.Rate(i, j) : 1.0f);
      }
    }
  }

  // The largest bound of the thread's 16 keys of a segment.
  __device__ float SegmentBound(int first) const {
    float bound = 0.0f;
#pragma unroll
    for (int b = 0; b < 16; ++b) bound = fmaxf(bound, KeyBound(FirstKey(first) + KeyOffset(b)));
    return bound;
  }
  __device__ int FirstKey(int first) const { return first + lane_ / 4 * 64 + lane_ % 4 * 2; }

  // Scans 512 keys of a sequence without gaps: a thread draws the bytes of 16 keys with one call of Philox.
  __device__ void ScanSegment(int first, int row, float bound) {
    const int column = FirstKey(first);
    const int32_t query = item_.first_query + row;
    const float slope = slope_ * __ldg(pairs_.query_bound + query);
    const uint32_t counter = static_cast<uint32_t>(first_key_ + first) / 16 + static_cast<uint32_t>(lane_);
    const PhiloxBlock block = pairs_.HighBytes(query, counter);
    uint32_t candidates = BytesUpTo(block, fmaf(slope, bound, base_));
    for (uint32_t rest = candidates; rest != 0; rest &= rest - 1) {  // drops those that their own bound excludes
      const int b = ByteOfBit(rest);
      const int key = column + KeyOffset(b);
      const float byte = static_cast<float>(ByteOf(block, static_cast<uint32_t>(b)));
      if (key >= keys_ || byte > fmaf(slope, KeyBound(key), base_)) candidates &= ~(rest & (0 - rest));
    }
    if (!__any_sync(kWholeWarp, candidates != 0)) return;
    int place = Reserve(__popc(candidates));
    for (; candidates != 0; candidates &= candidates - 1) {
      const int b = ByteOfBit(candidates);
      queue_[place++] = Entry(row, column + KeyOffset(b), ByteOf(block, static_cast<uint32_t>(b)));
    }
  }

  // Key of byte b of a block, from the block's first key on.
  __device__ static int KeyOffset(int b) { return (b >> 1) * 8 + (b & 1); }
  __device__ float KeyBound(int key) const { return key < keys_ ? __ldg(pairs_.key_bound + first_key_ + key) : 0.0f; }

  // Bits of the bytes, of 16, that are at most `limit`: byte 4 w + b has bit 2 w + b % 2 + 16 * (b / 2).
  __device__ static uint32_t BytesUpTo(const PhiloxBlock& block, float limit) {
    const uint32_t most = limit < 255.0f ? static_cast<uint32_t>(fmaxf(limit, 0.0f)) : 255u;
    const uint32_t limits = 0x01000100u + most * 0x00010001u;  // less a byte: bit 8 stays where the byte is no more
    uint32_t bits = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const uint32_t even = limits - (block.word[w] & 0x00FF00FFu), odd = limits - (block.word[w] >> 8 & 0x00FF00FFu);
      bits |= ((even & 0x01000100u) >> 8 | (odd & 0x01000100u) >> 7) << (2 * w);
    }
    return bits;
  }
  // The byte of the lowest of these bits.
  __device__ static int ByteOfBit(uint32_t bits) {
    const int bit = __ffs(static_cast<int>(bits)) - 1;
    return (bit & 6) << 1 | (bit >> 4) << 1 | (bit & 1);
  }

  // Scans 32 keys of a sequence with gaps, pair by pair.
  __device__ void ScanGaps(int first, int row, float bound) {
    const int key = first + lane_;
    const int32_t query = item_.first_query + row;
    const uint32_t byte = key < keys_ ? pairs_.HighByte(query, first_key_ + key) : 0;
    const float limit = fmaf(slope_ * __ldg(pairs_.query_bound + query), bound, base_);
    const bool candidate = key < keys_ && !(static_cast<float>(byte) > limit);
    const int place = Reserve(candidate ? 1 : 0);
    if (candidate) queue_[place] = Entry(row, key, byte);
  }

  __device__ static uint32_t Entry(int row, int key, uint32_t byte) {
    return static_cast<uint32_t>(key) | byte << 12 | static_cast<uint32_t>(row) << 20;
  }

  // Where this thread may queue `count` pairs. The queue has room for a segment and the pairs that are left over.
  __device__ int Reserve(int count) {
    int through = count;  // pairs of this thread and those before it
    for (int step = 1; step < kWarpSize; step *= 2) {
      const int before = __shfl_up_sync(kWholeWarp, through, step);
      if (lane_ >= step) through += before;
    }
    const int place = queued_ + through - count;
    queued_ += __shfl_sync(kWholeWarp, through, kWarpSize - 1);
    return place;
  }

  // Tests queued pairs, a warp's width at a time, while there are `least`.
  __device__ void TestQueued(int least) {
    if (queued_ < least) return;
    __syncwarp(kWholeWarp);
    while (queued_ >= least) {
      const int count = min(queued_, kWarpSize);
      queued_ -= count;
      if (lane_ < count) TestPair(queue_[queued_ + lane_]);
    }
    __syncwarp(kWholeWarp);
  }

  __device__ void TestPair(uint32_t entry) {
    const int row = static_cast<int>(entry >> 20);
    const int32_t query = item_.first_query + row, key = first_key_ + static_cast<int32_t>(entry & 0xFFFu);
    if (pairs_.HasForced() && pairs_.Forced(query, key)) return;
    const float rate = pairs_.Rate(query, key);
    uint64_t uniform = 0;
    if (pairs_.IsEdge(query, key, entry >> 12 & 0xFFu, rate, want_uniform_, &uniform)) {
      visit_(row, key, false, uniform, rate);
    }
  }

  const DeviceProblem& problem_;
  const RowItem& item_;
  const DrawnPairs pairs_;
  const DeviceEventHead* const events_;
  uint32_t* const queue_;
  Visit& visit_;
  const int32_t first_key_;
  const int keys_;
  const int warp_, lane_;
  const bool want_uniform_;
  const float slope_, base_;  // of pairs: one can be an edge only if its byte <= slope * (product of bounds) + base
  const uint32_t limit_;      // of ages of events
  int queued_ = 0;
};

static_assert(kChunkKeys / 32 <= kSegmentKeys + kWarpSize);  // VisitEvents has a bit for each key in the queue
static_assert(kChunkKeys <= 1 << 12 && kRowsPerItem <= 1 << 12 && kChunkKeys % kSegmentKeys == 0);

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_DRAW_ROWS_CUH_
