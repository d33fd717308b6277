// The one value in which attention kinds (model/) and devices (kernels/) meet: AttentionPattern says which pairs
// attend, a backend says how the arithmetic is done.
#ifndef EDGEWISE_KERNELS_ATTENTION_H_
#define EDGEWISE_KERNELS_ATTENTION_H_

#include <cstdint>
#include <limits>
#include <variant>
#include <vector>

#include "kernels/budget.h"
#include "kernels/cancel_flag.h"
#include "kernels/draw.h"
#include "kernels/tensor.h"

namespace edgewise {

// Every pair of valid tokens; `causal`: a key does not come after its query.
struct AllPairs {
  bool causal = false;
};

// Rows drawn from memberships: p_ij = min(1, <x_i, y_j> + exploration). Drawn while attending; never stored unless an
// edge cap needs ages.
struct DrawnRows {
  Law law = Law::kBernoulli;
  float exploration = 0.0f;  // delta
  bool self_loops = false;   // force the diagonal
  int32_t local_window = 0;  // force |i - j| <= local_window / 2, by position; 0: none
  RandomKey key;
};

// The edges of one head, as compressed sparse rows over valid tokens 0..n-1 of one sequence. Keys ascend strictly.
struct HeadEdges {
  std::vector<int64_t> row_offsets;   // [n + 1], the first 0
  std::vector<int32_t> keys;          // [row_offsets.back()], in [0, n)
  std::vector<int32_t> multiplicity;  // as keys, >= 1; empty: all 1. Output: law poisson_multi, or given so
  std::vector<float> weights;         // as keys: softmax weights; output only
};

// Given edges. Host memory that outlives the call, one entry per head.
struct ExplicitEdges {
  const std::vector<HeadEdges>* heads = nullptr;
  // Edges that came from DrawnRows, and those that came from AllPairs or GroupedKeys, are summed in different orders:
  // with `compact` the result has the bytes of the latter, without it those of the former.
  bool compact = false;
};

// Runs of neighbouring queries that share their keys, alike for all heads: windows of a permutation (SSA), rows of
// blocks (block-sparse). Tokens are packed indices 0..n-1.
struct GroupedKeys {
  std::vector<int32_t> group_begin;  // [groups + 1] ascending: group g has the queries group_begin[g]..[g + 1] - 1. The
                                     // first is the problem's first_query, the last its tokens
  std::vector<int64_t> key_offsets;  // [groups + 1], the first 0
  std::vector<int32_t> keys;         // [key_offsets.back()], ascending strictly within a group
  bool causal = false;               // a query attends to those keys of its group that do not come after it
};

using AttentionPattern = std::variant<AllPairs, DrawnRows, ExplicitEdges, GroupedKeys>;

// Added to the scaled scores of one sequence, by positions as sent. Host memory that outlives the call.
struct PairwiseBias {
  int32_t length = 0;                // positions
  const float* values = nullptr;     // [length, length], the same for all heads; or
  const uint8_t* buckets = nullptr;  // [length, length], which index the rows of
  const float* table = nullptr;      // [heads, 256]
};

// Memberships after the factorisation of S (docs/maths.md): p_ij = <x_i, y_j> before exploration. Head-major, in the
// backend's memory. Also holds bounds: p_ij <= query_bound[i] * key_bound[j].
struct Memberships {
  const float* x = nullptr;            // [heads, rows, rank]
  const float* y = nullptr;            // [heads, rows, rank]
  const float* query_bound = nullptr;  // [heads, rows]
  const float* key_bound = nullptr;    // [heads, rows]
  int64_t rows = 0;                    // of the whole batch
  int32_t rank = 0;                    // multiple of 16, zero-padded
};

// What all sequences of one call share. Row r of q, k, v is one token; columns h*head_dim..(h+1)*head_dim-1 are head h.
struct AttentionInputs {
  ConstMatrix q, k;         // [rows, heads * head_dim]
  ConstMatrix v;            // [rows, heads * value_dim]
  Memberships memberships;  // empty unless a pattern is DrawnRows
  int32_t num_heads = 0;
  int32_t head_dim = 0;
  int32_t value_dim = 0;  // of v and the output; 0: head_dim
  float scale = 1.0f;     // of the scores: 1 / sqrt(head_dim)
  // Added to the scaled scores by distance (ALiBi, learned relative positions), in the backend's memory: query position
  // i and key position j take distance_bias[head * (2 * distance_span - 1) + j - i + distance_span - 1]. Null: none.
  const float* distance_bias = nullptr;  // [heads, 2 * distance_span - 1]
  int32_t distance_span = 0;             // > every position
};

inline constexpr uint64_t kNoCap = std::numeric_limits<uint64_t>::max();

// The edges that one sample may still use over its layers, in the backend's memory: what a call uses is taken off
// there, so that the next layer's allowance needs no word from the host. Made by Backend::MakeLedger.
class EdgeLedger {
 public:
  virtual ~EdgeLedger() = default;
};

// An allowance of edges shared by the sequences and heads that name it (one sample of one input, in one layer): at most
// `max_edges`, and with a ledger at most LayerAllowance(what it holds, share). The edges kept are the forced ones and
// the youngest drawn ones: ascending in (age, index in `problems`, head, query, key). Only DrawnRows can drop edges;
// other patterns are within their allowance as they come.
struct EdgeCap {
  uint64_t max_edges = kNoCap;   // >= the forced edges of its sequences
  EdgeLedger* ledger = nullptr;  // all edges of the call's problems under this cap are taken off; null: none
  BudgetShare share;             // of the ledger
  bool capped = false;           // out: edges were dropped
};

// Counts of one head over the queries of one sequence.
struct HeadCounts {
  uint64_t edges = 0;     // distinct attended pairs
  uint64_t isolated = 0;  // queries without an edge
  // When wanted. DrawnRows: mean distinct edges of the uncapped law, forced ones included. Other patterns: edges.
  double expected = 0.0;
  std::vector<uint32_t> key_degrees;  // [n] how many queries attend to each key; when wanted
};

struct HeadReport : HeadCounts {
  HeadEdges graph;  // when wanted
};

// The optional parts of a report.
struct Wanted {
  bool expected = false;
  bool key_degrees = false;
  bool graph = false;
};

// What an attention call reports of one sequence. Edges and isolated queries are always counted.
struct AttentionReport {
  Wanted wanted;
  std::vector<HeadReport> heads;  // out: [num_heads]
};

// One sequence of one sample. Several problems may share input rows (samples share what lies before the first draw);
// their output rows are disjoint.
struct AttentionProblem {
  int64_t first_row = 0;    // of the sequence in k, v and the memberships
  int32_t tokens = 0;       // n >= 1
  int32_t first_query = 0;  // tokens first_query..n-1 are queries; > 0 not with DrawnRows. Reports are of these rows
  int64_t query_shift = 0;  // token i's query is in row first_row + query_shift + i of q
  int64_t out_row = 0;      // row of the first query in the output
  const int32_t* positions = nullptr;  // [n] ascending places in the sequence as sent, host; null: 0..n-1
  const PairwiseBias* bias = nullptr;  // null: none
  AttentionPattern pattern;
  int32_t cap = -1;  // index into the caps; -1: none
  // Once it is raised, now or while this runs, what lies in the problem's output rows, its counts, key degrees and
  // expected edges may be anything; a ledger and a graph stay true. Other problems are not touched. Null: never.
  const CancelFlag* cancel = nullptr;
  AttentionReport* report = nullptr;  // never null
};

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_ATTENTION_H_
