// One call of CpuAttend taken apart: the heads of its sequences and their blocks of query rows.
//
// Edges that are drawn, or given as drawn ones, are computed in blocks of query rows (rows.cc): the edges of a block
// decide how. Every other pattern is a set of groups of rows that share a list of keys, and is computed by dense tiles
// of that list (compact.cc): a row's result depends only on the part of the list that it sees.
#ifndef EDGEWISE_KERNELS_CPU_ATTENTION_WORK_H_
#define EDGEWISE_KERNELS_CPU_ATTENTION_WORK_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cpu/attention/scratch.h"
#include "kernels/cpu/runtime/thread_pool.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/host/event_tables.h"

namespace edgewise::cpu_attention {

// Neighbouring queries that are computed together: each attends to the first keys of one list, or to a run of tokens.
struct KeyGroup {
  int32_t first = 0, rows = 0;    // queries, as tokens; at most kBlockRows
  const int32_t* keys = nullptr;  // [count]; null: runs of the tokens begin..count - 1
  int64_t count = 0;
  int64_t begin = 0;

  // In tiles of a row; packing a tile costs as much as a few rows.
  int64_t cost() const {
    const int64_t tiles = (count + kTileKeys - 1) / kTileKeys - begin / kTileKeys;
    return std::max<int64_t>(tiles, 0) * (rows + 6) + 1;
  }
};
inline constexpr int kStripRows = 12;  // of a group, or a multiple; but the last group has the rest
inline constexpr int64_t kCostNanoseconds = 130;
inline constexpr int64_t kItemCost = 400;  // of an item of work: enough to wake a thread for

// All groups of one problem, or of one head where heads differ.
struct CompactPlan {
  bool causal = false;                // a query sees the keys of its group that do not come after it, or
  const AllPairs* windows = nullptr;  // those that this says, or
  const HeadEdges* given = nullptr;   // as many keys as its row has here; or all
  int64_t given_first = 0;            // the query of row 0 of `given`
  std::vector<KeyGroup> groups;       // ascending
  std::vector<int32_t> items{0};      // [items + 1] into groups: an item of work repays the start of a thread
  int64_t most_pairs = 0;             // of a group of more than kStripRows rows
  bool shared = false;                // groups read the same keys: operands are prepared once
};

// Arrays that a head's blocks read besides what the call gives.
struct Needs {
  bool copy_k = false, copy_v = false, k_tiles = false, y_tiles = false, split = false, low = false;
  bool pairs = false;  // tables of DrawTables
  int cost() const { return 2 * copy_k + 2 * copy_v + 4 * k_tiles + 8 * y_tiles; }
};

// One head of one sequence.
struct HeadPlan {
  const AttentionProblem* problem = nullptr;
  int index = 0;                      // of the head
  const DrawnRows* drawn = nullptr;   // the pattern, or
  const HeadEdges* given = nullptr;   // or
  const CompactPlan* plan = nullptr;  // any other
  int64_t n = 0;                      // tokens
  int64_t first_query = 0;
  int64_t columns = 0;     // positions, rounded up to kDrawColumns
  bool gaps = false;       // positions are not 0..n-1
  bool capped = false;     // its edges are what a cap keeps
  bool by_events = false;  // drawn by events (events.h), else pair by pair
  Needs needs;

  AttendBlock operands;      // of all its queries as one block, without edges, limits and scratch
  float* k_copy = nullptr;   // [n, depth]; null: k is as given
  float* v_copy = nullptr;   // likewise
  float* k_tiles = nullptr;  // [n / 64 up, depth, 64]; null: not packed
  BiasView bias;

  // Drawn rows only; tables.words is set for all.
  DrawTables tables;
  const float* x = nullptr;            // [n, rank]
  const float* query_bound = nullptr;  // [n]
  const float* key_bound = nullptr;    // [n]
  double bound_sum = 0.0;              // of key_bound
  double bound_share = 0.0;            // of its pairs that are edges, by the bounds
  double rate_sum = 0.0;               // of <x_i, y_j> over all pairs; of heads under a cap
  float unit[kMaxRank];                // DrawTables::unit

  // For heads that are drawn by events.
  EventTables events;
  EventDraw event_draw;
  uint32_t* event_split = nullptr;  // [n] EventDraw::split
  CertifiedRows certified[2];       // of queries and keys; room for EventDraw's

  int block_rows = 0;       // of every block but the last
  int64_t first_block = 0;  // among the blocks of the call
  int64_t blocks() const {
    return plan != nullptr ? static_cast<int64_t>(plan->items.size()) - 1
                           : (n - first_query + block_rows - 1) / block_rows;
  }
  uint32_t position(int64_t row) const {
    return problem->positions == nullptr ? static_cast<uint32_t>(row) : static_cast<uint32_t>(problem->positions[row]);
  }
};

// A block's part of its head's report.
struct BlockReport {
  uint64_t edges = 0;
  uint64_t isolated = 0;
  std::vector<int64_t> row_edges;  // [rows], for the graph, as the rest
  std::vector<int32_t> keys, multiplicity;
  std::vector<float> weights;
};

// Rows of one head whose expected edges are counted together, in one pass over its keys.
struct ExpectedPart {
  int32_t head = 0;
  int64_t first = 0;  // row
  double edges = 0.0;
};
inline constexpr int kExpectedRows = 96;  // of every part but a head's last

struct BlockEdges;  // scratch.h

struct Call {
  const CpuKernels* kernels = nullptr;
  const AttentionInputs* inputs = nullptr;
  Matrix out;
  std::vector<std::unique_ptr<CompactPlan>> plans;  // the first `used_plans`, and older ones
  size_t used_plans = 0;
  std::vector<HeadPlan> heads;         // problem by problem
  std::vector<int32_t> block_head;     // [blocks] index into heads
  std::vector<BlockReport> reports;    // [blocks]
  std::vector<ExpectedPart> expected;  // of the heads that are drawn and whose expected edges are wanted
  std::vector<BlockEdges> kept;        // [blocks], of heads under a cap of kProbable: the edges that it keeps

  const HeadPlan& HeadOf(int64_t block) const { return heads[block_head[block]]; }
  int value_dim() const { return inputs->value_dim > 0 ? inputs->value_dim : inputs->head_dim; }
};

// Query rows of a block, a multiple of 12: more where keys and values outgrow `near` bytes of a core's cache, so that
// more rows share the cost of fetching them, but several blocks of a head, for threads to share. Depends on the
// sequence alone, because a block's edges decide how it is computed.
inline int BlockRows(int64_t n, int depth, int64_t near) {
  const int64_t bytes = n * depth * 2 * static_cast<int64_t>(sizeof(float));
  return bytes <= near ? 60 : bytes <= 1 << 20 ? 264 : bytes <= 2 << 20 ? 684 : kBlockRows;
}
inline constexpr int64_t kNearTiles = 1 << 20;  // read in order
inline constexpr int64_t kNearEdges = 1 << 19;  // read by edges

// `rows` queries of a head from `first` on, those whose output is computed: a graph has weights of all.
inline int ComputedRows(const HeadPlan& head, int64_t first, int64_t rows) {
  if (head.problem->report->wanted.graph) return static_cast<int>(rows);
  return static_cast<int>(std::clamp<int64_t>(head.first_query + head.problem->read_queries - first, 0, rows));
}

// prepare.cc: lays out the operands and draw tables of call.heads in `memory`, those of events in `event_memory`.
// Returns the number of chunks, which are to be filled before a block is computed.
int64_t LayOutHeads(ThreadPool& pool, Memory& memory, Memory& event_memory, Call& call);
// prepare.cc: fills `count` chunks from `first` on.
void FillChunks(ThreadPool& pool, Call& call, int64_t first, int64_t count);

// rows.cc: operands of `head` for queries first.. of one block; scaled queries and sums are the worker's.
AttendBlock OperandsOf(const HeadPlan& head, int64_t first, int rows, Worker& worker);
// rows.cc: all drawn edges of a block, without a cap; the bits or lists are the worker's.
BlockEdges DrawnEdges(const Call& call, const HeadPlan& head, int64_t row0, int rows, Worker& worker);
// rows.cc: one block of drawn or given edges. `capped`: those of a head under a cap.
void AttendRows(Call& call, int64_t block, const BlockEdges& capped, Worker& worker);

// compact.cc: the plan of a problem whose heads are alike (all pairs, grouped keys), into an empty one with most_pairs.
// `runs`: AttentionInputs::runs_as_windows.
void PlanProblem(const AttentionProblem& problem, int depth, bool runs, CompactPlan& plan);
// compact.cc: the plan of given edges of multiplicity 1: rows that are the beginnings of one list or, with `runs`, runs
// of tokens.
void PlanGiven(const AttentionProblem& problem, const HeadEdges& given, bool runs, CompactPlan& plan);
// compact.cc: one item of a plan.
void AttendItem(Call& call, int64_t block, Worker& worker);

}  // namespace edgewise::cpu_attention

#endif  // EDGEWISE_KERNELS_CPU_ATTENTION_WORK_H_
