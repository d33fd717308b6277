// What the attention driver (attention.cc) asks of an instruction set: blocks of query rows drawn, scored and summed.
// Plain data and function pointers: the files behind them are compiled with flags of their own and share no code.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_ATTENTION_KERNELS_H_
#define EDGEWISE_KERNELS_CPU_SIMD_ATTENTION_KERNELS_H_

#include <cstdint>

namespace edgewise {

inline constexpr int kBlockRows = 1032;   // most query rows of a block, which share what is decided for it
inline constexpr int kTileKeys = 64;      // keys of a dense tile; one word of an edge mask
inline constexpr int kTileRows = 6;       // query rows of a draw tile
inline constexpr int kMaxRank = 512;      // of memberships drawn by tiles
inline constexpr int kDrawGroup = 2048;   // candidates of rows that are decided together
inline constexpr int kDrawColumns = 128;  // key positions that one step of the random generator covers

// One head of one sequence, as draws see it: keys by position, a multiple of 128 of them, pads included.
struct DrawTables {
  int64_t words = 0;                 // of 64 positions; even
  const uint64_t* valid = nullptr;   // [words] bit per position: a token is there
  int64_t full_words = 0;            // so many of the first have every token
  const uint16_t* bound = nullptr;   // [64 * words] key bounds as 16-bit numbers, BoundPlace order
  const uint64_t* philox = nullptr;  // [words / 2, 4, 8] the first rounds of kStreamBytes, which no query changes
  const float* y = nullptr;          // [n, rank]
  const float* y_tiles = nullptr;    // [words, rank, 64] in TilePlace order, zero for pads; null: not packed
  const int32_t* packed = nullptr;   // [64 * words] index of a position among tokens; null: the position itself
  int rank = 0;                      // of x and y, a multiple of 16
  float key_scale = 0.0f;            // largest key bound
  int bound_lift = 0;                // added to every number of `bound`
  float key_norm = 0.0f;             // largest |y|
  float exploration = 0.0f;
  uint32_t seed[2] = {};    // low word first
  uint32_t bytes_word = 0;  // third counter word of kStreamBytes
  uint32_t low_word = 0;    // and of kStreamLow
  uint32_t sample = 0;
};

// Where position c of 64 lies among the key bounds: even ones first, so that the high bytes of 16-bit products merge.
static constexpr int BoundPlace(int c) { return (c & 1) * 32 + (c >> 1); }
// Where position c of 64 lies in a row of y_tiles.
static constexpr int TilePlace(int c) { return (c >> 2 & 3) * 16 + (c >> 4) * 4 + (c & 3); }

// How far 256 p~ of a draw tile may be from 256 p, where the product of the norms of x and y is at most `norms`: two
// sums of `rank` products, each off by rank * 2^-24 at most, and the rounding of values up to 512.
static constexpr float TileEpsilon(int rank, float norms) {
  return 256.0f * 2.0f * static_cast<float>(rank + 8) * 6.0e-8f * norms + 1.0e-3f;
}

// A pair's bound is tested as the high half of a product of two 16-bit numbers, which must not come out too small. The
// key's number is bound / key_scale * (65535 - bound_lift), rounded up, + bound_lift. The lift makes good what the
// product rounds off where the query's number times the lift is kBoundMargin * 2^16 or more; other rows add the margin
// themselves.
static constexpr int kBoundMargin = 4;
static constexpr int kMaxBoundLift = 4096;

struct DrawRow {
  uint32_t position = 0;     // of the query
  const float* x = nullptr;  // [rank]
  float bound = 0.0f;        // of the query
};

// Scratch of one thread, for capacity = max(kTileRows * (columns + 64), columns + kDrawGroup + 64) candidates, of rows
// one after the other in batches of 16.
struct DrawScratch {
  int64_t capacity = 0;
  uint32_t* column = nullptr;       // [capacity + 64] key positions
  uint8_t* byte = nullptr;          // [capacity + 64] high byte of the pair's uniform
  uint8_t* accept = nullptr;        // [capacity + 64] high bit set: an edge
  int32_t* batch_row = nullptr;     // [capacity / 16 + 64]
  uint16_t* batch_lanes = nullptr;  // [capacity / 16 + 64] which of the 16 are candidates
  uint32_t* tie = nullptr;          // [capacity + 64] index of a candidate whose byte decides nothing
  uint32_t* tie_low = nullptr;      // [capacity + 64] it is an edge iff its low word is below this
  uint32_t* tie_query = nullptr;    // [capacity + 64] position of its query
};

// Draws at rates tau * p, for a tau that is only known to lie in [low, high]; 1 where nothing caps the edges.
struct DrawSpan {
  bool poisson = false;   // multiplicities are those of Poisson(tau * p); else 1 with probability tau * p
  bool parallel = false;  // whether multiplicities above 1 matter
  float low = 1.0f, high = 1.0f;
};

// A pair of multiplicity above 1.
struct ParallelEdge {
  int32_t row;  // in its block
  int32_t key;  // its position as the kernels give it, its index among the tokens as the driver keeps it
  int32_t count;
};

// A pair whose multiplicity depends on where in its span tau lies, or is closer to the next than float32 can tell.
struct OpenPair {
  int32_t row;       // in its block
  int32_t key;       // as that of ParallelEdge
  float rate;        // p, as EdgeRate gives it
  bool forced;       // an edge whatever the draw; false as the kernels give it
  uint64_t uniform;  // as PairUniform gives it
};

// What split draws append to, ascending by row and key. Room for DrawScratch::capacity of each.
struct SplitLists {
  ParallelEdge* parallel = nullptr;
  int64_t parallels = 0;
  OpenPair* open = nullptr;
  int64_t opens = 0;
};

// Added to scores. Pointers into what the call was given, set to one head.
struct BiasView {
  const float* distance = nullptr;   // [key position - query position]
  const float* values = nullptr;     // [query position * length + key position]
  const uint8_t* buckets = nullptr;  // likewise, into
  const float* table = nullptr;      // [256]
  int64_t length = 0;
  const int32_t* key_positions = nullptr;  // by key; null: the key itself
};

struct AttendBlock {
  int rows = 0;              // <= kBlockRows
  int depth = 0;             // of q and sums: head_dim or value_dim, the larger, padded to a multiple of 16
  int64_t keys = 0;          // n; with `list`, its length
  float* q = nullptr;        // [rows, depth] times q_scale, padded with zeros; dense tiles fill it
  const float* k = nullptr;  // [n, k_columns], rows k_stride apart
  const float* v = nullptr;  // [n, v_columns], rows v_stride apart
  int64_t k_stride = 0, v_stride = 0;
  int k_columns = 0, v_columns = 0;          // depth, and the columns beyond are zero; or fewer, for dense tiles alone
  const BiasView* bias = nullptr;            // null: none
  const int32_t* query_positions = nullptr;  // [rows], with a bias
  float* sums = nullptr;                     // out: [rows, depth] sum of weights times v
  float* weight_sum = nullptr;               // out: [rows]
  float* max_score = nullptr;                // out: [rows], base-2 logarithm of the unit of the weights
  // Dense tiles.
  const float* q_given = nullptr;  // [rows, q_columns], rows q_stride apart: what q is filled with
  int64_t q_stride = 0;
  int q_columns = 0;
  float q_scale = 0.0f;  // of the scores / ln 2
  float* out = nullptr;  // out: [rows, out_columns] sums by weights, rows out_stride apart; not with `bits`
  int64_t out_stride = 0;
  int out_columns = 0;
  const float* k_tiles = nullptr;   // [ceil(n / 64), depth, 64]; null: packed on the way
  const int32_t* list = nullptr;    // [keys] ascending keys that tiles are made of; null: all
  const int32_t* limits = nullptr;  // [rows] a row sees so many of the first of them; null: all, or
  const uint64_t* bits = nullptr;   // [rows, bit_words] edges, without `list`
  int64_t bit_words = 0;
  // Gathered edges.
  const int64_t* offsets = nullptr;     // [rows + 1] into edges; null: the edges are `bits`
  const int32_t* edges = nullptr;       // keys, ascending within a row
  const float* multiplicity = nullptr;  // as edges; null: all 1
  int64_t segment = 0;                  // keys that are finished for all rows before the next; a multiple of 64
  float* scratch = nullptr;         // dense: [DenseScratchFloats]; gathered: [padded + 64] with padded the edges of a
                                    // segment, rows rounded up to 16
  int32_t* keys_scratch = nullptr;  // gathered: [padded + 64]
  int32_t* batch_rows = nullptr;    // gathered: [padded / 16 + 64]
  int32_t* unit_rows = nullptr;     // gathered: [padded / 8 + 64]
  int32_t* unit_begins = nullptr;   // gathered: [padded / 8 + 64]
};

static constexpr int64_t DenseScratchFloats(int depth) {
  return (2 * static_cast<int64_t>(depth) + 12) * kTileKeys + kBlockRows * 16;
}

struct AttentionKernels {
  // Law bernoulli: the edges of the first few of `count` rows as ascending key positions, row after row; ends[r] is
  // where row r ends. Returns how many rows, at least one. Room for columns + kDrawGroup + 64 positions.
  int (*draw_rows)(const DrawTables&, const DrawRow* rows, int count, const DrawScratch&, int32_t* positions,
                   int64_t* ends);
  // The same for `rows` <= kTileRows rows, from y_tiles: as bits by position, [rows, words].
  void (*draw_tile)(const DrawTables&, const DrawRow* rows, int count, const DrawScratch&, uint64_t* bits);
  // Sum over valid positions of p (kind 0) or 1 - exp(-p) (kind 1).
  double (*expected_row)(const DrawTables&, const DrawRow&, int kind);
  // tile [depth, 64] from up to 64 keys of `columns` elements, `stride` apart; zeros beyond.
  void (*pack_keys)(const float* keys, int64_t stride, int count, int columns, int depth, float* tile);
  void (*attend_dense)(const AttendBlock&);
  void (*attend_gather)(const AttendBlock&);
  // Base-2 scores of one query's edges, as attend_gather computes them.
  void (*scores)(const AttendBlock&, int row, float* out);
  int64_t (*count_bits)(const uint64_t* bits, int64_t words);
  // Set bits as numbers from `first` on, ascending; returns how many. Room for 64 more.
  int64_t (*list_bits)(const uint64_t* bits, int64_t words, int32_t first, int32_t* out);
};

const AttentionKernels& GenericAttentionKernels();
#if defined(__x86_64__)
const AttentionKernels& Avx2AttentionKernels();
const AttentionKernels& Avx512AttentionKernels();
#endif

// Draws of any law and span: as draw_rows and draw_tile, but only the edges that are settled for all of the span. The
// rest goes to `lists`, with rows counted from `first_row`.
struct SplitKernels {
  int (*split_rows)(const DrawTables&, const DrawSpan&, const DrawRow* rows, int count, const DrawScratch&,
                    int32_t* positions, int64_t* ends, int32_t first_row, SplitLists& lists);
  void (*split_tile)(const DrawTables&, const DrawSpan&, const DrawRow* rows, int count, const DrawScratch&,
                     uint64_t* bits, int32_t first_row, SplitLists& lists);
};

const SplitKernels& GenericSplitKernels();
#if defined(__x86_64__)
const SplitKernels& Avx2SplitKernels();
const SplitKernels& Avx512SplitKernels();
#endif

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CPU_SIMD_ATTENTION_KERNELS_H_
