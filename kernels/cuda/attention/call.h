// One call of Backend::Attend as the attention kernels read it: plain structs in device memory, which the host makes
// (attention.cc) before any edge is drawn.
//
// Compiled for the host and for the device; pointers are to device memory.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_CALL_H_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_CALL_H_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/draw/budget.h"
#include "kernels/draw/certificate.h"
#include "kernels/draw/draw.h"
#include "kernels/tensor.h"

namespace edgewise::cuda {

// A head's columns, of keys and of values, are a multiple of this, and rows are 16-byte aligned.
inline constexpr int kHeadAlignment = 8;
// Queries of one item of the row kernel; the last item of a sequence may have fewer.
inline constexpr int kRowsPerItem = 32;
// Queries of one item of the tile kernel, and keys of a word of its bits. An item of at most kWarpQueries queries can
// also go to a block of one warp: its results have the same bytes there.
inline constexpr int kTileQueries = 64;
inline constexpr int kTileKeys = 64;
inline constexpr int kWarpQueries = 16;
// Queries of one item of the wide tile kernel (tiles_wide.cuh).
inline constexpr int kWideQueries = 128;
// In the decode phase a list of more keys than this is attended to in parts of this many keys, by a block of one warp
// each: a query is all there is to do for a head. A query's result is then the sum of its parts, in the order of keys,
// whatever other queries there are. A multiple of the keys of a tile; to be tuned on a GPU.
inline constexpr int kPartKeys = 256;

// A head whose edges are rows of their own is dense, and goes to the tile kernel, if it attends to at least one in
// kDenseHeadShare of its pairs. To be tuned on a GPU.
inline constexpr int64_t kDenseHeadShare = 20;

enum class PatternKind : int32_t {
  kDrawn,  // rows drawn from memberships: the row kernel, or the tile kernel for dense heads
  kGiven,  // compressed sparse rows: likewise
  kTiles   // key lists shared by runs of queries: the tile kernel
};

// The drawn edges that a cap keeps: all, or those before (age, order) in lexicographic order, where a rank by falling
// rate may take the place of the age. Written by the device.
struct EdgeCut {
  uint64_t age_bits;  // AgedEdge::age_bits of the first dropped edge; ~0: all edges are kept
  uint64_t order;     // EdgeOrder of that edge
  CapRule keep;       // set by the host
};
// Edges are dropped by their rate.
EDGEWISE_HOST_DEVICE inline bool CutsByRate(const EdgeCut& cut) {
  return cut.keep == CapRule::kProbable && cut.age_bits != ~uint64_t{0};
}

// The place of an edge among edges of the same age or rate: by problem and head, then query, then key (20 bits each).
EDGEWISE_HOST_DEVICE inline uint64_t EdgeOrder(uint32_t problem, uint32_t num_heads, uint32_t head, uint32_t query,
                                               uint32_t key) {
  return (static_cast<uint64_t>(problem) * num_heads + head) << 40 | static_cast<uint64_t>(query) << 20 | key;
}
inline constexpr int64_t kMaxTokens = int64_t{1} << 20;        // of a sequence
inline constexpr int64_t kMaxProblemHeads = int64_t{1} << 24;  // of a call

enum class CapStage : int32_t {
  kCount,   // the first dropped edge is among more edges than a list has room for, or edges were too few (`limit`)
  kList,    // it is among few enough
  kSettled  // the cut is known
};

// One allowance of the call (EdgeCap). The host sets the fields up to `undrawn`, cut.keep, tau and limit; the device
// writes the others.
struct DeviceCap {
  uint64_t max_edges;  // as EdgeCap::max_edges
  uint64_t* ledger;    // edges that the sample may still use; null: no ledger
  BudgetShare share;   // of the ledger
  uint64_t undrawn;    // edges under this cap, over heads, of the patterns that draw nothing
  uint64_t forced;     // out: forced edges of the patterns that draw
  uint64_t drawn;      // out: their other edges before the cut, younger than `limit`
  uint64_t allowed;    // out: how many of `drawn` may stay
  EdgeCut cut;         // out
  double tau;          // out: the age of the first dropped edge; 1: none is dropped, or by rate
  uint32_t limit;      // events are drawn up to this age, which is the end of a bucket (age_select.h)
  CapStage stage;
  int32_t capped;  // out: 1: edges were dropped
  int32_t failed;  // out: 1: the selection ran out of room
};

// One sequence (AttentionProblem).
struct DeviceProblem {
  int64_t first_row;  // of the sequence in k, v and the memberships
  // [tokens / KvPage::kTokens, rounded up] Its keys and values, in the call's precision; kTiles only. Null: they are
  // rows of k and v.
  const float* const* pages;
  int64_t query_row;  // token i's query is in row query_row + i of q
  int64_t out_row;    // of the first query
  int32_t tokens;     // n
  int32_t first_query;
  const int32_t* positions;  // [n]; null: 0..n-1
  PatternKind kind;
  int32_t cap;        // index into the call's caps; -1: none
  int64_t count;      // index of its first head in the call's counts and bits: num_heads times its own
  bool may_be_dense;  // its heads
  bool wants_graph;   // its report
  // Not 0 once the problem is cancelled; written while kernels run (Cancelled, cancel.cuh). Null: never cancelled.
  const int32_t* cancel;

  // kDrawn
  Law law;
  bool self_loops;
  float exploration;
  int32_t local_window;
  RandomKey key;
  DrawWay way;
  int64_t event_head;   // index of its first head in the call's event_heads; -1: none may be drawn by events
  int64_t first_place;  // of its first head in the call's places [heads, n]; if some may be

  // kGiven: the rows of one head behind those of another; row_offsets [heads, queries + 1] are indices into the other
  // two.
  const int64_t* row_offsets;
  const int32_t* given_keys;
  const int32_t* multiplicity;  // null: all 1

  // Pairwise bias by position: values, or buckets that index the table; length 0: no bias.
  int32_t bias_length;
  const float* bias_values;     // [length, length]
  const uint8_t* bias_buckets;  // [length, length]
  const float* bias_table;      // [heads, 256]
};

// Drawn edges lie in a pool of words of 32 bits, which is filled in rounds. In a round every row and head that has not
// been drawn in this pass over the call takes room while there is some, and is read. Rows in memory have the round's
// mark.
inline constexpr uint32_t kNoMark = ~0u;
// A row of a head that is drawn by events; zero at first. Its keys, and under a cap its ages behind them.
struct RowPlace {
  uint32_t begin, drawn, count;  // word; entries that were drawn; those that are kept
  uint32_t mark;
};
// Any other drawn head; zero at first. The bits of the queries first..end - 1 (lists.cuh).
struct HeadBits {
  uint32_t begin;  // word, even
  int32_t first, end;
  uint32_t mark;
};
// Zero at first.
struct RoundState {
  unsigned long long used;  // words; more than there are where some did not fit
  uint32_t mark;            // of what is in memory; kNoMark: nothing is
  uint32_t refused;         // 1: something did not fit, or what is in memory is not enough
  uint32_t whole;  // the mark of a round that began to draw everything: unless `refused`, all is in memory; else 0
  uint32_t bits;   // 1: some heads with bits are in memory
};
// The heads that a pass draws.
enum class Draws : int32_t {
  kAll,
  kCounted,  // problems whose cap is in stage kCount
  kListed,   // in stage kList
  kSplit,    // heads whose bits the pool cannot hold at once
  kProblem   // one problem
};
// A round of a pass, as the host numbers it.
struct Round {
  uint32_t mark = 1, first = 1;  // of this round, of the first one of the pass
  Draws draws = Draws::kAll;
  int32_t problem = -1;
  bool last = true;  // nothing may be refused
};

// Neighbouring queries of one head whose edges are rows of their own: up to kRowsPerItem for the row kernel, up to
// kTileQueries for the tile kernel.
struct RowItem {
  int32_t problem, head;
  int32_t first_query, queries;
};

// Up to kTileQueries rows (kWideQueries of a wide item), queries of heads that share keys and values, which share a
// list of keys: row r is query r % queries of the item, of head r / queries. Query q sees the keys of the list from
// starts[q] to limits[q] - 1.
struct TileItem {
  int32_t problem, head;  // the first
  int32_t first_query, queries;
  int32_t num_keys;       // no query sees more
  int32_t causal;         // 1: the keys are 0..num_keys-1 and query i sees i + 1 of them; 0: `limits` says how many
  const int32_t* keys;    // [num_keys] packed indices, ascending; null: 0..num_keys-1
  const int32_t* limits;  // [queries]; null: every query sees all keys, but for `causal`
  // Among the call's part_rows, where the results of the item's parts begin: those of its queries, part by part. -1: it
  // is not attended to in parts.
  int64_t first_part = -1;
  int32_t first_key = 0;            // no query sees a place before
  const int32_t* starts = nullptr;  // [queries]; null: 0
  int32_t heads = 1;
};
EDGEWISE_HOST_DEVICE inline int32_t RowsOf(const TileItem& item) { return item.queries * item.heads; }
EDGEWISE_HOST_DEVICE inline int32_t HeadOf(const TileItem& item, int32_t row) {
  return item.heads == 1 ? item.head : item.head + row / item.queries;
}
// Among the item's.
EDGEWISE_HOST_DEVICE inline int32_t QueryOf(const TileItem& item, int32_t row) {
  return item.heads == 1 ? row : row % item.queries;
}
// Floats of a part row: the weighted sums of the values, the largest score, the sum of the weights.
EDGEWISE_HOST_DEVICE constexpr int64_t PartStride(int32_t value_dim) { return value_dim + 2; }
EDGEWISE_HOST_DEVICE inline int32_t PartsOf(const TileItem& item) {
  return item.first_part < 0 ? 1 : (item.num_keys + kPartKeys - 1) / kPartKeys - item.first_key / kPartKeys;
}

// A head that may be drawn by events (event_draw.cuh). The host sets all but the first two, the device those and what
// the pointers point to, which is one block of memory.
struct DeviceEventHead {
  int32_t by_events;   // 1: it is, and has tables
  int32_t heavy_keys;  // length of `heavy`
  int32_t problem, head;
  int32_t guide_bits;
  float* direction;  // [rank] a unit vector
  // Certificates of the memberships of queries and keys, along and across `direction`; [tokens], 16-byte aligned.
  Certificate* query_certificates;
  Certificate* key_certificates;
  uint32_t* query_rests;  // [tokens, rank / 4] their rests in whole numbers of a byte, 16-byte aligned
  uint32_t* key_rests;    // [tokens, rank / 4] likewise
  float* mean_gap;        // [tokens] as EventTables, like the next two
  uint32_t* places;       // [tokens + 2]
  int32_t* heavy;         // [tokens]
  float* key_bound;       // [tokens] EventBound
  int32_t* guide;         // [2^guide_bits] the key whose places have the first place of a run of 2^(32 - guide_bits)
};

// The report of one head of a drawn problem.
struct DeviceHeadCounts {
  unsigned long long edges;     // kept edges, forced ones included
  unsigned long long isolated;  // queries without an edge
  double expected;              // mean edges of the uncapped law; where asked for
};

// Everything that a kernel needs; passed by value.
struct DeviceCall {
  const float* q;
  const float* k;
  const float* v;
  int64_t q_stride, k_stride, v_stride;  // floats
  bool bf16;                             // the precision
  // Precision bf16: the queries rounded, q_stride elements from row to row, in place of q. Null: q has them.
  const __nv_bfloat16* q16 = nullptr;
  // Precision bf16: keys and values rounded; row r is row r of k and v. Null where all are in pages.
  const __nv_bfloat16* k16;
  const __nv_bfloat16* v16;
  int64_t k16_stride, v16_stride;            // elements from one row to the next
  int64_t k16_head_stride, v16_head_stride;  // elements from one head of a row to the next
  float* out;
  int64_t out_stride;  // floats
  Form out_form = Form::kFloat32;
  int32_t out_slice = 0;  // FormRows::slice
  int32_t num_heads, head_dim, value_dim;
  int32_t heads_of_key = 1;  // neighbouring heads that share keys and values
  float scale;
  const float* distance_bias;  // [heads, 2 * distance_span - 1]; null: none
  int32_t distance_span;

  const float* x;            // [heads, membership_rows, rank]
  const float* y;            // [heads, membership_rows, rank]
  const float* query_bound;  // [heads, membership_rows]
  const float* key_bound;    // [heads, membership_rows]
  int64_t membership_rows;
  int32_t rank;

  const DeviceProblem* problems;
  const RowItem* row_items;
  // Calls of some shapes and sequences without biases have wide items on sm_90: of more than kTileQueries and up to
  // kWideQueries rows, and every kTileKeys of the keys are neighbours.
  bool wide = false;
  const TileItem* wide_items;
  int64_t num_wide_items = 0;
  int64_t key_rows;  // of k16 and v16; where the call is wide
  const TileItem* tile_items;
  const TileItem* narrow_items;  // of at most kWarpQueries queries each, for blocks of one warp
  int32_t most_parts = 1;        // of a narrow item
  float* part_rows;              // [part rows, PartStride(value_dim)]
  uint32_t num_row_items;
  int64_t num_tile_items, num_narrow_items;
  // For the tile kernel: of given dense heads (no row items) and drawn ones that are not drawn by events. Bits are
  // drawn by these items, too.
  const RowItem* dense_items;
  int64_t num_dense_items;
  int32_t most_tokens = 0;  // of a drawn problem
  bool multi = false;       // some problem is drawn by law poisson_multi
  bool special = false;     // some problem has biases, or edges that count more than once
  Round round;
  RoundState* state;    // null: nothing is drawn
  HeadBits* head_bits;  // [problems, heads]
  RowPlace* places;     // of the rows of problems that may be drawn by events
  uint32_t* pool;
  int64_t pool_words;
  int32_t* full;  // set to 1 where something did not fit in the last round
  int32_t num_problems;
  DeviceEventHead* event_heads;
  int64_t num_event_heads;
  DeviceCap* caps;
  int32_t num_caps;
  DeviceHeadCounts* counts;
};

// The head of k and v that a head reads.
EDGEWISE_HOST_DEVICE inline int64_t KeyHead(const DeviceCall& call, int32_t head) { return head / call.heads_of_key; }
EDGEWISE_HOST_DEVICE inline bool HeadIsDense(int32_t queries, int32_t tokens, uint64_t edges) {
  return static_cast<int64_t>(edges) * kDenseHeadShare >= int64_t{queries} * tokens;
}
// Whether a head of a drawn problem is drawn by events.
EDGEWISE_HOST_DEVICE inline bool IsEventHead(const DeviceCall& call, const DeviceProblem& problem, int32_t head) {
  return problem.event_head >= 0 && call.event_heads[problem.event_head + head].by_events != 0;
}
// Whether the call's pass draws the heads of a problem; under kSplit, those with bits.
EDGEWISE_HOST_DEVICE inline bool DrawsProblem(const DeviceCall& call, int32_t index) {
  const Draws draws = call.round.draws;
  const DeviceProblem& problem = call.problems[index];
  if (problem.kind != PatternKind::kDrawn) return false;
  if (draws == Draws::kAll || draws == Draws::kSplit) return true;
  if (draws == Draws::kProblem) return index == call.round.problem;
  const CapStage stage = draws == Draws::kCounted ? CapStage::kCount : CapStage::kList;
  return problem.cap >= 0 && call.caps[problem.cap].stage == stage;
}
// Given rows are there in the first round of a pass.
EDGEWISE_HOST_DEVICE inline bool IsFirstRound(const DeviceCall& call) { return call.round.mark == call.round.first; }
// Whether a head of a drawn problem is dense. Known once its edges have been counted.
EDGEWISE_HOST_DEVICE inline bool IsDenseHead(const DeviceCall& call, const DeviceProblem& problem, int32_t head) {
  return problem.may_be_dense && !IsEventHead(call, problem, head) &&
         HeadIsDense(problem.tokens, problem.tokens, call.counts[problem.count + head].edges);
}

// Whether the wide tile kernel takes the dense heads of a problem.
EDGEWISE_HOST_DEVICE inline bool IsWideDense(const DeviceCall& call, const DeviceProblem& problem) {
  return call.wide && problem.kind == PatternKind::kDrawn && problem.bias_length == 0;
}

// Where the given edges of a query begin; those of the next query begin where they end.
EDGEWISE_HOST_DEVICE inline const int64_t* GivenRow(const DeviceProblem& problem, int32_t head, int32_t query) {
  const int64_t queries = problem.tokens - problem.first_query;
  return problem.row_offsets + head * (queries + 1) + query - problem.first_query;
}

EDGEWISE_HOST_DEVICE inline int32_t PositionOf(const DeviceProblem& problem, int32_t token) {
  return problem.positions == nullptr ? token : problem.positions[token];
}

// The bias that is added to the scaled score of a pair of tokens of one head.
EDGEWISE_HOST_DEVICE inline float BiasOf(const DeviceCall& call, const DeviceProblem& problem, int32_t head,
                                         int32_t query, int32_t key) {
  if (call.distance_bias == nullptr && problem.bias_length == 0) return 0.0f;
  const int64_t i = PositionOf(problem, query), j = PositionOf(problem, key);
  float bias = 0.0f;
  if (call.distance_bias != nullptr) {
    const int64_t span = call.distance_span;
    bias = call.distance_bias[head * (2 * span - 1) + j - i + span - 1];
  }
  if (problem.bias_length == 0) return bias;
  const int64_t pair = i * problem.bias_length + j;
  return bias + (problem.bias_values != nullptr ? problem.bias_values[pair]
                                                : problem.bias_table[head * 256 + problem.bias_buckets[pair]]);
}

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_CALL_H_
