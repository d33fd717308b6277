// The interface between attention kinds (model/) and devices (kernels/): an AttentionPattern says which pairs attend, a
// backend computes them.
#ifndef EDGEWISE_KERNELS_ATTENTION_H_
#define EDGEWISE_KERNELS_ATTENTION_H_

#include <cstdint>
#include <limits>
#include <memory_resource>
#include <variant>
#include <vector>

#include "kernels/cancel_flag.h"
#include "kernels/draw/budget.h"
#include "kernels/draw/draw.h"
#include "kernels/phase.h"
#include "kernels/tensor.h"

namespace edgewise {

// Every pair of valid tokens that is near enough; `causal`: a key does not come after its query.
struct AllPairs {
  static constexpr int32_t kFar = std::numeric_limits<int32_t>::max();

  bool causal = false;
  int32_t reach = kFar;  // most positions between a query and its key, on either side
};

// Rows drawn from memberships: p_ij = min(1, <x_i, y_j> + exploration). The CPU draws edges during attention, and
// stores them only where an edge cap needs their ages or rates; a GPU draws them before, into memory.
struct DrawnRows {
  Law law = Law::kBernoulli;
  float exploration = 0.0f;  // delta
  bool self_loops = false;   // force the diagonal
  int32_t local_window = 0;  // force |i - j| <= local_window / 2, by position; 0: none
  RandomKey key;
  DrawWay way = DrawWay::kRule;
};

// The edges of one head, as compressed sparse rows over valid tokens 0..n-1 of one sequence. Keys ascend strictly.
struct HeadEdges {
  std::vector<int64_t> row_offsets;   // [n + 1], the first 0
  std::vector<int32_t> keys;          // [row_offsets.back()], in [0, n)
  std::vector<int32_t> multiplicity;  // as keys, >= 1; empty: all 1. Output: of law poisson_multi, or as given
  std::vector<float> weights;         // as keys: softmax weights; output only
};

// Given edges.
struct ExplicitEdges {
  const std::vector<HeadEdges>* heads = nullptr;  // one per head, in host memory that outlives the call
  // DrawnRows are summed in one order, AllPairs and GroupedKeys in another. With `compact` the result has the bytes of
  // AllPairs and GroupedKeys, otherwise those of DrawnRows.
  bool compact = false;
};

// Runs of neighbouring queries that share their keys, the same for all heads: windows of a permutation (SSA), rows of
// blocks (block-sparse). Tokens are packed indices 0..n-1.
struct GroupedKeys {
  std::pmr::vector<int32_t>
      group_begin;  // [groups + 1] ascending: group g has the queries group_begin[g]..[g + 1] - 1. The
                    // first entry is the problem's first_query, the last entry its tokens
  std::pmr::vector<int64_t> key_offsets;  // [groups + 1], the first 0
  std::pmr::vector<int32_t> keys;         // [key_offsets.back()], ascending strictly within a group
  bool causal = false;                    // a query attends to the keys of its group that do not come after it
};

using AttentionPattern = std::variant<AllPairs, DrawnRows, ExplicitEdges, GroupedKeys>;

// A bias of the scaled scores of one sequence, by positions as sent. Host memory that outlives the call.
struct PairwiseBias {
  int32_t length = 0;                // positions
  const float* values = nullptr;     // [length, length], the same for all heads; or
  const uint8_t* buckets = nullptr;  // [length, length], which index the rows of
  const float* table = nullptr;      // [heads, 256]
};

// Memberships after the factorisation of S (docs/maths.md): p_ij = <x_i, y_j> before exploration. Head-major, in the
// backend's memory. The bounds hold for every pair: p_ij <= query_bound[i] * key_bound[j].
struct Memberships {
  const float* x = nullptr;            // [heads, rows, rank]
  const float* y = nullptr;            // [heads, rows, rank]
  const float* query_bound = nullptr;  // [heads, rows]
  const float* key_bound = nullptr;    // [heads, rows]
  int64_t rows = 0;                    // of the whole batch
  int32_t rank = 0;                    // multiple of 16, zero-padded
};

// The inputs that all sequences of one call share. Row r of q, k and v is one token. Columns h * head_dim to
// (h + 1) * head_dim - 1 are head h.
struct AttentionInputs {
  ConstMatrix q;            // [rows, heads * head_dim]
  ConstMatrix k;            // [rows, key/value heads * head_dim]
  ConstMatrix v;            // [rows, key/value heads * value_dim]
  Memberships memberships;  // empty unless a pattern is DrawnRows
  int32_t num_heads = 0;
  // Heads of k and v; divides num_heads: each run of num_heads / num_key_value_heads heads reads the same keys and
  // values (grouped queries). 0: num_heads. Fewer not with DrawnRows.
  int32_t num_key_value_heads = 0;
  int32_t head_dim = 0;
  int32_t value_dim = 0;  // of v and the output; 0: head_dim
  float scale = 1.0f;     // of the scores: 1 / sqrt(head_dim)
  Phase phase = Phase::kPrefill;
  // A query whose keys are neighbours, first to last, has the bytes that it has in AllPairs of some reach, whatever its
  // pattern is. (Otherwise those of its place in a list of keys: GroupedKeys.) One choice for all calls of a model, so
  // that a graph given back has the bytes of its pattern.
  bool runs_as_windows = false;
  // A bias of the scaled scores by distance (ALiBi, learned relative positions), in the backend's memory: query
  // position i and key position j get distance_bias[head * (2 * distance_span - 1) + j - i + distance_span - 1]. Or
  // null.
  const float* distance_bias = nullptr;  // [heads, 2 * distance_span - 1]
  int32_t distance_span = 0;             // > every position

  int32_t key_value_heads() const { return num_key_value_heads > 0 ? num_key_value_heads : num_heads; }
  int32_t KeyValueHead(int32_t head) const { return head / (num_heads / key_value_heads()); }
};

inline constexpr uint64_t kNoCap = std::numeric_limits<uint64_t>::max();

// The edges that one sample may still use over its layers, in the backend's memory. A call subtracts the edges that it
// used there, so that the next layer's allowance does not wait for the host. Made by Backend::MakeLedger.
class EdgeLedger {
 public:
  virtual ~EdgeLedger() = default;
};

// An allowance of edges shared by the sequences and heads that name it (one sample of one input, in one layer): at most
// `max_edges`, and with a ledger at most LayerAllowance(remaining edges, share). Forced edges are kept, and then the
// first drawn edges in the order of (age, index in `problems`, head, query, key), or by falling rate in place of the
// age. Only DrawnRows drop edges; the caller sees to it that other patterns are within their allowance.
struct EdgeCap {
  uint64_t max_edges = kNoCap;   // >= the forced edges of its sequences
  EdgeLedger* ledger = nullptr;  // loses all edges of the call's problems under this cap; null: none
  BudgetShare share;             // of the ledger
  CapRule keep = CapRule::kRandom;
  bool capped = false;  // out: edges were dropped
};

// Counts of one head over the queries of one sequence.
struct HeadCounts {
  uint64_t edges = 0;     // distinct attended pairs
  uint64_t isolated = 0;  // queries without an edge
  // Where wanted. DrawnRows: mean distinct edges of the uncapped law, forced ones included. Other patterns: edges.
  double expected = 0.0;
  std::vector<uint32_t> key_degrees;  // [n] queries that attend to each key; where wanted
};

struct HeadReport : HeadCounts {
  HeadEdges graph;  // where wanted
};

// The optional parts of a report.
struct Wanted {
  bool expected = false;
  bool key_degrees = false;
  bool graph = false;
};

// The report of an attention call on one sequence. Edges and isolated queries are always counted.
struct AttentionReport {
  Wanted wanted;
  std::vector<HeadReport> heads;  // out: [num_heads]
};

// One sequence of one sample. Problems may share input rows (samples share all layers before the first draw); their
// output rows are disjoint.
struct AttentionProblem {
  int64_t first_row = 0;    // of the sequence in k, v and the memberships; 0 with `pages`
  int32_t tokens = 0;       // n >= 1
  int32_t first_query = 0;  // tokens first_query..n-1 are queries, and are reported; 0 with DrawnRows
  int64_t query_shift = 0;  // token i's query is in row first_row + query_shift + i of q
  int64_t out_row = 0;      // row of the first query in the output
  // [n / KvPage::kTokens, rounded up] The sequence's keys and values: pages of the key/value heads of head_dim columns,
  // which Backend::StoreInPages wrote. Host memory that outlives the call. Not with DrawnRows; on a GPU only where
  // queries share their keys (AllPairs, GroupedKeys, compact ExplicitEdges), and no report wants a graph. Null: they
  // are rows of k and v.
  const float* const* pages = nullptr;
  // the first `read_queries`; output rows of others hold anything
  int32_t read_queries = std::numeric_limits<int32_t>::max();
  const int32_t* positions = nullptr;  // [n] ascending places in the sequence as sent, host; null: 0..n-1
  const PairwiseBias* bias = nullptr;  // null: none
  AttentionPattern pattern;
  int32_t cap = -1;  // index into the caps; -1: none
  // Null: never cancelled. Once the flag is raised, before or during the call, the problem's output rows, counts, key
  // degrees and expected edges may hold anything; its ledger and graph stay correct, and so do other problems.
  const CancelFlag* cancel = nullptr;
  AttentionReport* report = nullptr;  // never null
};

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_ATTENTION_H_
