// One call of CpuAttend taken apart: heads of sequences, their blocks of query rows, and what threads need to work on
// them. Internal to attention*.cc.
//
// Edges that are drawn, or given as drawn ones, are worked on in blocks of query rows (rows.cc): the edges of
// a block decide how it is computed. All other patterns are groups of rows that share a list of keys, and are computed
// by dense tiles of that list (compact.cc): what a row gets depends on the beginning of the list that it
// sees.
#ifndef EDGEWISE_KERNELS_CPU_ATTENTION_WORK_H_
#define EDGEWISE_KERNELS_CPU_ATTENTION_WORK_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cpu/attention/scratch.h"
#include "kernels/cpu/simd/attention_kernels.h"
#include "kernels/cpu/thread_pool.h"

namespace edgewise::cpu_attention {

// Edges of one block of query rows, rows and keys as packed indices.
struct BlockEdges {
  const uint64_t* bits = nullptr;  // [rows, bit_words], or
  int64_t bit_words = 0;
  const int64_t* offsets = nullptr;     // [rows + 1] into
  const int32_t* keys = nullptr;        // ascending within a row
  const float* multiplicity = nullptr;  // as keys; null: all 1
  uint64_t count = 0;
};

// What a block leaves for its head's report.
struct BlockResult {
  uint64_t edges = 0;
  uint64_t isolated = 0;
  double expected = 0.0;
  std::vector<int64_t> row_edges;  // for the graph: [rows]
  std::vector<int32_t> keys, multiplicity;
  std::vector<float> weights;
};

// Edges that an edge cap lets pass, of one block.
struct KeptEdges {
  std::vector<int64_t> offsets;  // [rows + 1]
  std::vector<int32_t> keys;
  std::vector<float> multiplicity;  // as keys, or empty
};

inline int ValueDim(const AttentionInputs& inputs) { return inputs.value_dim > 0 ? inputs.value_dim : inputs.head_dim; }

// Query rows of a block, a multiple of 12: more where keys and values outgrow a core's cache, so that more rows share
// the cost of fetching them. Depends on the sequence alone, because a block's edges decide how it is computed.
inline int BlockRows(int64_t n, int depth) {
  const int64_t bytes = n * depth * 2 * static_cast<int64_t>(sizeof(float));
  return bytes <= 1 << 20 ? 60 : bytes <= 2 << 20 ? 684 : kBlockRows;
}

// Neighbouring queries that attend to the first so many of one list of keys, and are computed together.
struct KeyGroup {
  int32_t first = 0, rows = 0;    // queries, as tokens; at most kBlockRows
  const int32_t* keys = nullptr;  // [count]; null: 0..count - 1
  int64_t count = 0;
};

// What a group costs, in tiles of a row; packing a tile costs as much as a few rows.
inline int64_t CostOf(const KeyGroup& group) {
  return (group.count + kTileKeys - 1) / kTileKeys * (group.rows + 6) + 1;
}
inline constexpr int64_t kItemCost = 400;  // of an item of work: some ten times what it costs to wake a thread

// All groups of one problem, or of one head where heads differ.
struct CompactPlan {
  bool causal = false;               // a query sees those keys of its list that do not come after it, or
  const HeadEdges* given = nullptr;  // as many as its row has here; or all
  int64_t given_first = 0;           // the query of row 0 of `given`
  std::vector<KeyGroup> groups;      // ascending
  std::vector<int32_t> items{0};     // [items + 1] into groups: an item of work has enough to do to be worth its start
  bool shared = false;               // groups read the same keys: operands are prepared once
  int64_t items_count() const { return static_cast<int64_t>(items.size()) - 1; }
};

// One head of one sequence.
struct HeadWork {
  const AttentionProblem* problem = nullptr;
  int head = 0;
  const DrawnRows* drawn = nullptr;   // the pattern, or
  const HeadEdges* given = nullptr;   // or
  const CompactPlan* plan = nullptr;  // any other
  int64_t n = 0;                      // tokens
  int64_t first_query = 0;
  int64_t columns = 0;     // positions, rounded up to kDrawColumns
  bool gaps = false;       // positions are not 0..n-1
  bool capped = false;     // edges come from `kept`
  double bound_sum = 0.0;  // sum of key bounds

  // Operands of this head. Rows are padded to `depth` but with a plan, where k and v may be as given.
  int depth = 0;
  const float* q = nullptr;  // [n, head_dim] as given, by token
  int64_t q_stride = 0;
  const float* k = nullptr;  // [n, k_columns]
  const float* v = nullptr;  // [n, v_columns]
  int64_t k_stride = 0, v_stride = 0;
  int k_columns = 0, v_columns = 0;
  bool biased = false;
  BiasView bias;
  float* k_copy = nullptr;  // where k and v are copied to, if they are
  float* v_copy = nullptr;
  float* k_tiles = nullptr;            // [n / 64 up, depth, 64], if packed
  const float* x = nullptr;            // [n, rank]
  const float* query_bound = nullptr;  // [n]
  const float* key_bound = nullptr;    // [n]

  DrawTables tables;
  uint64_t* valid = nullptr;
  uint16_t* bound = nullptr;
  uint64_t* philox = nullptr;
  float* y_tiles = nullptr;
  int32_t* packed = nullptr;

  int block_rows = 0;  // of every block but the last
  int64_t blocks() const {
    return plan != nullptr ? plan->items_count() : (n - first_query + block_rows - 1) / block_rows;
  }
  int64_t first_block = 0;  // among the blocks of the call
  uint32_t position(int64_t row) const {
    return problem->positions == nullptr ? static_cast<uint32_t>(row) : static_cast<uint32_t>(problem->positions[row]);
  }
};

struct Call {
  const AttentionKernels* kernels = nullptr;
  const AttentionInputs* inputs = nullptr;
  std::span<const AttentionProblem> problems;
  Matrix out;
  std::vector<std::unique_ptr<CompactPlan>> plans;
  std::vector<HeadWork> heads;       // problem by problem
  std::vector<int32_t> block_head;   // [blocks] index into heads
  std::vector<BlockResult> results;  // [blocks]
  std::vector<KeptEdges> kept;       // [blocks], of heads under a cap
};

// Buffers of one thread, for the longest sequence of a call.
struct Worker {
  Memory memory;
  DrawScratch draw;
  uint64_t* position_bits = nullptr;  // [kBlockRows, words]
  uint64_t* packed_bits = nullptr;    // [kBlockRows, words]
  int32_t* row_keys = nullptr;        // [columns + kDrawGroup + 64]
  float* q = nullptr;                 // [kBlockRows, depth]
  float* sums = nullptr;              // [kBlockRows, depth]
  float* weight_sum = nullptr;        // [kBlockRows]
  float* max_score = nullptr;         // [kBlockRows]
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<float, Free> attend;         // AttendBlock::scratch
  std::unique_ptr<int32_t, Free> attend_keys;  // AttendBlock::keys_scratch
  int64_t attend_floats = 0, attend_key_count = 0;
  int64_t offsets[kBlockRows + 1];
  int32_t limits[kBlockRows];           // AttendBlock::limits
  int32_t query_positions[kBlockRows];  // AttendBlock::query_positions
  std::vector<int32_t> keys;            // edges of one block
  std::vector<float> multiplicity;      // as keys, or empty

  void Prepare(const Call& call);
  // Room of at least so many; contents are lost. Throws std::bad_alloc.
  void GrowAttend(int64_t floats, int64_t keys);
};

// Lays out `call.heads` (problem, pattern and head set) in `memory` and fills it.
void PrepareHeads(ThreadPool& pool, Memory& memory, Call& call);

// Operands of `head` for queries first.. of one block. Scaled queries and results go to `worker`.
AttendBlock OperandsOf(const Call& call, const HeadWork& head, int64_t first, int rows, Worker& worker);
// One block of drawn or given edges.
void AttendOneBlock(Call& call, int64_t block, Worker& worker);

// The plan of a problem whose heads are alike (all pairs, grouped keys).
std::unique_ptr<CompactPlan> PlanProblem(const AttentionProblem& problem, int depth);
// The plan of given edges, every one of multiplicity 1: runs of rows that are the beginnings of one list.
std::unique_ptr<CompactPlan> PlanGiven(const AttentionProblem& problem, const HeadEdges& given);
void AttendItem(Call& call, int64_t block, Worker& worker);

// Draws the edges of rows row0.. of one block; they lie in `worker`.
BlockEdges DrawBlock(const Call& call, const HeadWork& head, int64_t row0, int rows, Worker& worker);

// Sets the forced edges of a row, as bits by position.
void AddForced(const HeadWork& head, int64_t row, uint64_t* bits);
int64_t CountForced(const HeadWork& head);
bool HasForced(const HeadWork& head);
// Bits by position to bits by packed index. [words] both; may be the same memory.
void PackBits(const HeadWork& head, const uint64_t* by_position, uint64_t* by_index);

// u < p of the law, as EdgeThreshold defines it.
bool IsEdge(Law law, uint64_t uniform, float rate);
float RateOf(const HeadWork& head, int64_t row, int64_t key);
DrawRow RowOf(const HeadWork& head, int64_t row);

// Decides what each cap keeps, sets `capped` and fills call.kept. With `hopeful`, heads under a cap that is far above
// what is expected are left to be drawn as if they had none, which spares their edges being kept; true: some were, and
// the caller has to look whether they stayed below.
bool ApplyCaps(ThreadPool& pool, std::vector<std::unique_ptr<Worker>>& workers, std::span<EdgeCap> caps, bool hopeful,
               Call& call);

}  // namespace edgewise::cpu_attention

#endif  // EDGEWISE_KERNELS_CPU_ATTENTION_WORK_H_
