// The CPU kernels that exist once per instruction set: drawing edges, attention over a block of query rows, and
// matrix products and norms. Plain data and function pointers, because the files behind them are compiled with flags of
// their own for each (kernels/cpu/sources.cmake).
#ifndef EDGEWISE_KERNELS_CPU_SIMD_KERNELS_H_
#define EDGEWISE_KERNELS_CPU_SIMD_KERNELS_H_

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/cpu/simd/isa.h"
#include "kernels/draw/certificate.h"
#include "kernels/draw/draw.h"

namespace edgewise {

inline constexpr int kBlockRows = 1032;   // most query rows of a block
inline constexpr int kTileKeys = 64;      // keys of a dense tile; one word of an edge mask
inline constexpr int kTileRows = 6;       // query rows of a draw tile
inline constexpr int kMaxRank = 512;      // of memberships that are drawn by tiles
inline constexpr int kDrawGroup = 2048;   // candidates that are decided together, of one or more rows
inline constexpr int kDrawColumns = 128;  // key positions that one step of the random generator covers

// Keys of one head of one sequence, by position. Positions are padded to a multiple of kDrawColumns. The driver owns
// the arrays and fills those that are not const.
struct DrawTables {
  int64_t words = 0;           // of 64 positions; even
  uint64_t* valid = nullptr;   // [words] bit per position: a token is there
  int64_t full_words = 0;      // the first words, in which every position has a token
  uint16_t* bound = nullptr;   // [64 * words] key bounds as 16-bit numbers, BoundPlace order
  uint64_t* philox = nullptr;  // [words / 2, 4, 8] the first rounds of kStreamBytes, which are the same for all queries
  const float* y = nullptr;    // [n, rank]
  float* y_tiles = nullptr;    // [words, rank, 64] in TilePlace order, zero for pads; null: not packed
  int32_t* packed = nullptr;   // [64 * words] token index of each position; null: the position itself
  int rank = 0;                // of x and y, a multiple of 16
  const float* unit = nullptr;  // [rank] direction that `split` and `low` refer to
  uint32_t* split = nullptr;    // [64 * words] split_key of the key of each position; null: no bounds by key
  uint16_t* low = nullptr;      // [64 * words] low_bound of keys, BoundPlace order; null: no lower bounds
  float low_width = 0.0f;       // of low_bound
  float key_scale = 0.0f;       // largest key bound
  int bound_lift = 0;           // added to every number of `bound`
  float key_norm = 0.0f;        // largest |y|
  float exploration = 0.0f;
  uint32_t seed[2] = {};    // low word first
  uint32_t bytes_word = 0;  // third counter word of kStreamBytes
  uint32_t low_word = 0;    // and of kStreamLow
  uint32_t sample = 0;
};

// Place of position c of 64 among the key bounds: even positions first, so that the high bytes of two 16-bit products
// merge into column order.
static constexpr int BoundPlace(int c) { return (c & 1) * 32 + (c >> 1); }
// Place of position c of 64 in a row of y_tiles.
static constexpr int TilePlace(int c) { return (c >> 2 & 3) * 16 + (c >> 4) * 4 + (c & 3); }

// Largest error of 256 p in a draw tile, where the norms of x and y have a product of at most `norms`: two sums of
// `rank` products, each off by at most rank * 2^-24, and the rounding of values up to 512.
static constexpr float TileEpsilon(int rank, float norms) {
  return 256.0f * 2.0f * static_cast<float>(rank + 8) * 6.0e-8f * norms + 1.0e-3f;
}

// The bound of a pair is the high half of a product of two 16-bit numbers, and must not come out too small. The key's
// number is bound / key_scale * (65535 - bound_lift), rounded up, + bound_lift. The lift covers the rounding of the
// product where the query's number times the lift is at least kBoundMargin * 2^16; other rows add the margin.
static constexpr int kBoundMargin = 4;
static constexpr int kMaxBoundLift = 4096;

struct DrawRow {
  uint32_t position = 0;     // of the query
  const float* x = nullptr;  // [rank]
  float bound = 0.0f;        // of the query
};

// Scratch of one thread. The candidates of a row follow those of the row before, in batches of 16. The capacity is
// max(kTileRows * (columns + 64), columns + kDrawGroup + 64) candidates.
struct DrawScratch {
  int64_t capacity = 0;
  uint32_t* column = nullptr;       // [capacity + 64] key positions
  uint8_t* byte = nullptr;          // [capacity + 64] high byte of the pair's uniform
  uint8_t* count = nullptr;         // [capacity + 64] edges of the pair; not 0: an edge
  int32_t* batch_row = nullptr;     // [capacity / 16 + 64]
  uint16_t* batch_lanes = nullptr;  // [capacity / 16 + 64] lanes of the batch that hold candidates
  uint32_t* tie = nullptr;          // [capacity + 64] index of a candidate that its byte does not decide
  uint32_t* tie_value = nullptr;    // [capacity + 64] its limit of the low word, or its rate (kernels differ)
  uint32_t* tie_query = nullptr;    // [capacity + 64] position of its query
  float* tie_low = nullptr;         // [capacity + 64] 256 times the bounds of its p
  float* tie_high = nullptr;        // [capacity + 64]
};

// The rates tau * p of a draw, for a tau that is known to lie in [low, high]; 1 where nothing caps the edges.
struct DrawSpan {
  bool poisson = false;   // multiplicities are Poisson(tau * p); else 1 with probability tau * p
  bool parallel = false;  // multiplicities above 1 matter
  float low = 1.0f, high = 1.0f;
  // Bernoulli at tau 1: kernels decide every pair.
  constexpr bool exact() const { return !poisson && low == 1.0f && high == 1.0f; }
};

// A pair of multiplicity above 1.
struct ParallelEdge {
  int32_t row;  // in its block
  int32_t key;  // position where a kernel lists it, token index where the driver keeps it
  int32_t count;
};

// A pair whose multiplicity depends on where in its span tau lies, or lies too close to the limit for float32.
struct OpenPair {
  int32_t row;       // in its block
  int32_t key;       // as that of ParallelEdge
  float rate;        // p, as EdgeRate gives it
  bool forced;       // an edge for every draw; kernels set false
  uint64_t uniform;  // as PairUniform gives it
};

// Pairs that a draw lists besides its edges, ascending by row and key. Unused by exact spans.
struct DrawExtras {
  int32_t first_row = 0;             // of the draw, in its block
  ParallelEdge* parallel = nullptr;  // room for DrawScratch::capacity
  int64_t parallels = 0;
  OpenPair* open = nullptr;  // room for DrawScratch::capacity
  int64_t opens = 0;
};

// Rows of memberships with certificates (kernels/draw/certificate.h).
struct CertifiedRows {
  Certificate* certificates = nullptr;  // [n]
  uint8_t* rests = nullptr;  // [n, CertificateBytes(rank)] rounded rests, those of keys + 128; 64-byte aligned
};
static constexpr int64_t CertificateBytes(int rank) { return (rank + 63) / 64 * 64; }

// The tables from which the events of one head are drawn (kernels/draw/events.h). Arrays of n = tokens.
struct EventDraw {
  int64_t tokens = 0;
  int rank = 0;
  const float* x = nullptr;            // [n, rank]
  const float* y = nullptr;            // [n, rank]
  const int32_t* positions = nullptr;  // null: the token itself
  const float* mean_gap = nullptr;     // EventTables, as the next three
  const uint32_t* places = nullptr;
  const uint64_t* guide = nullptr;
  int guide_shift = 0;              // a place's run is place >> guide_shift
  const float* unit = nullptr;      // [rank] direction that `split` refers to
  const uint32_t* split = nullptr;  // split_key of each key; null: no bounds by key
  CertifiedRows queries, keys;      // null: none
  Law law = Law::kBernoulli;
  float exploration = 0.0f;
  uint32_t seed[2] = {};                                                       // low word first
  uint32_t events_word = 0, fractions_word = 0, bytes_word = 0, low_word = 0;  // third counter words of streams
  uint32_t sample = 0;
};

// Scratch of one thread, and room for the edges of the rows drawn at once.
struct EventScratch {
  int64_t capacity = 0;               // events
  uint32_t* age = nullptr;            // [capacity + 64] of events, row after row
  uint32_t* place = nullptr;          // [capacity + 64]; then the distance to the key's last place
  int32_t* key = nullptr;             // [capacity + 64]; n: none
  uint32_t* open = nullptr;           // [capacity + 64] events that bounds do not decide
  uint32_t* open_row = nullptr;       // [capacity + 64] their rows; of few events, first the rows of all
  int32_t* open_key = nullptr;        // [capacity + 64] their keys, ages and distances; with certificates only
  uint32_t* open_age = nullptr;       // [capacity + 64]
  uint32_t* open_distance = nullptr;  // [capacity + 64]
  uint16_t* accepted = nullptr;       // [capacity / 16 + 64] lanes of each batch
  int64_t* row_begin = nullptr;       // [kBlockRows + 1] first event of a row
  int64_t* row_events = nullptr;      // [kBlockRows] their number
  int32_t* edge_key = nullptr;        // [capacity + 64] out: accepted events, row after row in the order of age
  uint32_t* edge_age = nullptr;       // [capacity + 64] out
};

// Biases of one head's scores. Pointers into the inputs of the call.
struct BiasView {
  const float* distance = nullptr;   // [key position - query position]
  const float* values = nullptr;     // [query position * length + key position]
  const uint8_t* buckets = nullptr;  // as values: index into
  const float* table = nullptr;      // [256]
  int64_t length = 0;
  const int32_t* key_positions = nullptr;  // by key; null: the key itself
};

// One block of query rows and its edges.
struct AttendBlock {
  int rows = 0;              // <= kBlockRows
  int depth = 0;             // of q and sums: the larger of head_dim and value_dim, padded to a multiple of 16
  int64_t keys = 0;          // n; with `list`, its length
  float* q = nullptr;        // [rows, depth] times q_scale, padded with zeros; filled from q_given
  const float* k = nullptr;  // [n, k_columns], rows k_stride apart; null: in pages
  const float* v = nullptr;  // [n, v_columns], rows v_stride apart; null: in pages
  int64_t k_stride = 0, v_stride = 0;
  int k_columns = 0, v_columns = 0;  // depth, zero-padded; attend_dense also takes fewer
  // attend_dense: pages of kTileKeys keys, where keys and values begin at these places.
  const float* const* pages = nullptr;
  int64_t k_in_page = 0, v_in_page = 0;
  const float* next_k = nullptr;             // attend_dense: the keys that the next block reads first; null: not known
  const BiasView* bias = nullptr;            // null: none
  const int32_t* query_positions = nullptr;  // [rows], with a bias
  float* sums = nullptr;                     // out: [rows, depth] sum of weights times v
  float* max_score = nullptr;                // out: [rows] base-2 logarithm of the unit of the weights
  const float* q_given = nullptr;            // [rows, q_columns], rows q_stride apart: source of q
  int64_t q_stride = 0;
  int q_columns = 0;
  float q_scale = 0.0f;  // of the scores / ln 2
  float* out = nullptr;  // out: [rows, out_columns] sums over weights, rows out_stride apart
  int64_t out_stride = 0;
  int out_columns = 0;
  // attend_dense: tiles of 64 keys.
  const float* k_tiles = nullptr;   // [ceil(n / 64), depth, 64]; null: packed on the way
  const int32_t* list = nullptr;    // [keys] ascending keys of the tiles; null: all
  const int32_t* limits = nullptr;  // [rows] a row sees this many keys from the first on; null: all, or
  const int32_t* starts = nullptr;  // [rows], with limits and without `list`: but not the keys before this; null: 0
  const uint64_t* bits = nullptr;   // [rows, bit_words] edges, without `list`
  int64_t bit_words = 0;
  // attend_gather: edges one by one.
  const int64_t* offsets = nullptr;     // [rows + 1] into edges; null: the edges are `bits`
  const int32_t* edges = nullptr;       // keys, ascending within a row
  const float* multiplicity = nullptr;  // as edges; null: all 1
  int64_t segment = 0;                  // keys that all rows finish before the next; a multiple of 64
  int64_t room = 0;                     // most edges of a segment, each row's rounded up to 16
  float* scratch = nullptr;             // [DenseScratchFloats] or [GatherScratchFloats]
};

static constexpr int64_t DenseScratchFloats(int depth) {
  return (2 * static_cast<int64_t>(depth) + 12) * kTileKeys + kBlockRows * 16;
}
// Scores and keys of `room` edges, and the rows of their batches.
static constexpr int64_t GatherScratchFloats(int64_t room) { return 2 * (room + 64) + room / 16 + 64; }

// The sum over `in` of a matrix product is cut into segments of this many elements. Each segment is one chain of fused
// multiply-adds in ascending order; the segments are added in ascending order. (Without FMA each step rounds twice.)
static constexpr int64_t kGemmSegment = 256;

// Vectors of columns of the panel of weights that begins where `left` vectors (>= 1) are left: three, the last few
// panels two, or one where the matrix has no more.
static constexpr int GemmPanelVectors(int64_t left) { return left == 1 ? 1 : left == 2 || left == 4 ? 2 : 3; }

// y = activation(x W^T + bias), or y += x W^T + bias. A row's bytes depend on the row and the weights alone.
struct Gemm {
  int64_t rows = 0, in = 0;
  int64_t columns = 0;       // of y; whole panels, up to the last column of the matrix
  const float* x = nullptr;  // [rows, in], rows x_stride apart
  int64_t x_stride = 0;
  const uint32_t* pairs = nullptr;  // in place of x where CpuKernels::bfloat16_group is 2: round_row of each row of x
  // Panel after panel, each [in, its columns], zeros beyond the matrix's last column. float, or the upper halves of
  // float as uint16_t, as the function of the table says. For pairs each is [groups, its columns, 2], with zeros up to
  // a multiple of CpuKernels::group_step groups.
  const void* panels = nullptr;
  const float* bias = nullptr;  // [columns] or null
  float* y = nullptr;           // [rows, columns], rows y_stride apart; does not overlap x
  int64_t y_stride = 0;
  bool accumulate = false;  // only without an activation
  Activation activation = Activation::kNone;
};

// A product of integers: y[r][c] = activation(sum * row_scale[r] * scale[c] + bias[c]), or y += that without
// activation, with sum = the sum over i of (x[r][i] - zero[r]) * w[c][i]. x is 0 to 255, w is -127 to 127; every sum is
// exact, so a row's bytes depend on the row and the weights alone. The inputs go in groups of CpuKernels::int8_group.
struct Int8Gemm {
  int64_t rows = 0, groups = 0;  // groups of inputs; a multiple of CpuKernels::group_step
  int64_t columns = 0;           // of y; whole panels, up to the last column of the matrix
  // [rows, groups], rows x_stride apart, packed: a group of inputs in 32 bits, the first lowest, each in
  // 32 / int8_group of them.
  const uint32_t* x = nullptr;
  int64_t x_stride = 0;
  const float* row_scale = nullptr;  // [rows]
  const int32_t* zero = nullptr;     // [rows]
  // Panel after panel, each [groups, its columns, int8_group], zeros beyond the last input and column.
  const int8_t* panels = nullptr;
  const int32_t* sums = nullptr;  // [columns, up to whole vectors] of the weights of a column
  const float* scale = nullptr;   // [columns, up to whole vectors]
  const float* bias = nullptr;    // [columns] or null
  float* y = nullptr;             // [rows, columns], rows y_stride apart
  int64_t y_stride = 0;
  bool accumulate = false;  // only without an activation
  Activation activation = Activation::kNone;
};

// Inputs beyond which a sum of Int8Gemm may not fit into 32 bits.
inline constexpr int64_t kMaxInt8Inputs = (int64_t{1} << 31) / (255 * 127) - 1;
// Least scale of a row: its reciprocal is a number too. A row that is much smaller is all zeros.
inline constexpr float kLeastInt8Step = 0x1p-100f;

inline constexpr int kMembershipRows = 48;  // most rows of a membership tile

// Columns of a product of the membership network: two vectors, or the one that is left.
struct MembershipPanel {
  const float* weights = nullptr;  // [end - begin, columns]
  const float* bias = nullptr;     // [columns]
  int begin = 0, end = 0;          // the inputs whose weights are not all zero
};
struct MembershipProduct {
  const MembershipPanel* panels = nullptr;
  int columns = 0;  // of all panels
};

// Some tokens of one side of one head: out = factor sigmoid(clusters ReLU(hidden z)).
struct MembershipTile {
  int64_t rows = 0;  // <= kMembershipRows
  const float* z = nullptr;
  int64_t z_stride = 0;
  MembershipProduct hidden, clusters, factor;
  float* scratch = nullptr;  // [rows, columns of hidden and clusters together]
  float* out = nullptr;      // [rows, columns of factor]
  float* squares = nullptr;  // [rows] <out, out> in the order of MembershipDot
};

struct CpuKernels {
  // Draws the first few of `count` rows: their edges as ascending key positions, row after row; row r ends at ends[r].
  // Returns the number of rows drawn, at least one. Room for columns + kDrawGroup + 64 positions. Lists only edges that
  // exist for every tau of the span; open pairs go to `extras`.
  int (*draw_rows)(const DrawTables&, const DrawSpan&, const DrawRow* rows, int count, const DrawScratch&,
                   int32_t* positions, int64_t* ends, DrawExtras& extras);
  // The same as bits by position, [count, words]: of `count` <= kTileRows rows, from y_tiles; or of any number of rows
  // under law bernoulli, from lower bounds of keys. Open pairs are of `count` rows at most kTileRows, or of one group.
  int (*draw_tile)(const DrawTables&, const DrawSpan&, const DrawRow* rows, int count, const DrawScratch&,
                   uint64_t* bits, DrawExtras& extras);
  // Draws the accepted events younger than `limit` of the first few of `count` rows from `first` on; a key may come
  // more than once. Row r of them ends at ends[r] in edge_key and edge_age. Returns the number of rows drawn; 0: the
  // capacity is too small for one.
  int (*draw_events)(const EventDraw&, int64_t first, int count, uint32_t limit, const EventScratch&, int64_t* ends);
  // Draws pairs of one query and `count` keys, null: 0.. on, by their uniform numbers and law bernoulli. Returns how
  // many of those younger than `limit` are edges. Room for `count` + 64.
  int64_t (*draw_heavy_pairs)(const EventDraw&, int64_t query, const int32_t* keys, int64_t count, uint32_t limit,
                              int32_t* edge_key, uint32_t* edge_age);
  // EdgeRate of a query [rank] and `count` keys, as token indices. Room for `count` + 16 rates.
  void (*edge_rates)(const DrawTables&, const float* x, const int32_t* keys, int64_t count, float* rates);
  // <row, row> of each row, in the order of MembershipDot.
  void (*square_norms)(const float* rows, int64_t count, int rank, float* out);
  // sums[t] = the sum of element t over all rows.
  void (*sum_rows)(const float* rows, int64_t count, int rank, float* sums);
  // The distinct ones of `count` keys below n, ascending; returns their number. Room for `count` + 64 keys, also beyond
  // the given ones. bits: [(n + 63) / 64], zero before and after.
  int64_t (*sort_keys)(const int32_t* keys, int64_t count, int64_t n, uint64_t* bits, int32_t* out);
  // sums[r] = the sum over valid positions of p, or of 1 - exp(-p) with `poisson`, of row r of x [count, rank]. One
  // pass over the keys for all rows. Needs y_tiles. A row's bytes depend on the row and the tables alone.
  void (*expected_rows)(const DrawTables&, const float* x, int count, bool poisson, double* sums);
  // Four bytes that bound the products of y [rank] by its parts along and across a unit vector; null: not used.
  uint32_t (*split_key)(const float* y, const float* unit, int rank);
  // square_norms of rows [count, rank], their certificates along `unit`, and rounded rests, `lift` added to each
  // number: CertificateBytes(rank) a row; null: not used.
  void (*certify_rows)(const float* rows, int64_t count, const float* unit, int rank, int lift, float* squares,
                       Certificate*, uint8_t* rests);
  // split_key of certified keys.
  void (*split_certified)(const Certificate*, int64_t count, int rank, uint32_t* split);
  // The number that, times the part along `unit` of a query whose part across is at most `width` as long, bounds p from
  // below, in units of scale / 65535; null: not used.
  uint16_t (*low_bound)(const float* y, const float* unit, int rank, float width, float scale);
  // tile [depth, 64] from up to 64 keys of `columns` elements, `stride` apart; zeros beyond.
  void (*pack_keys)(const float* keys, int64_t stride, int count, int columns, int depth, float* tile);
  void (*attend_dense)(const AttendBlock&);
  void (*attend_gather)(const AttendBlock&);
  // Base-2 scores of one query's edges, with the bits of attend_gather.
  void (*edge_scores)(const AttendBlock&, int row, float* out);
  int64_t (*count_bits)(const uint64_t* bits, int64_t words);
  // Set bits as ascending numbers from `first` on; returns their count. Room for 64 more.
  int64_t (*list_bits)(const uint64_t* bits, int64_t words, int32_t first, int32_t* out);
  int lanes;  // columns of a vector
  void (*gemm)(const Gemm&);
  int group_step;  // 16 where products are of tiles, else 1
  // Weights that are the upper halves of float32. With a group of 1, products are those of float32. With a group of 2,
  // inputs are rounded too, and an output is one sum over steps of 32 inputs, in ascending order: the step's even
  // inputs are one chain of fused multiply-adds in ascending order, the odd ones another, both from 0; the two are
  // added, and their sum to that of the steps before. Numbers below 2^-126 count as 0 in all of it.
  void (*gemm_bfloat16)(const Gemm&);
  int bfloat16_group;
  // With a group of 2: x [columns] rounded to bfloat16 (half to even), two in 32 bits, the first lowest, with zeros up
  // to whole steps. Numbers below 2^-126 become 0; NaN stays NaN.
  void (*round_row)(const float* x, int64_t columns, uint32_t* pairs);
  int int8_group;  // inputs that Int8Gemm takes together: 4 or 2
  void (*gemm_int8)(const Int8Gemm&);
  // One row of Int8Gemm::x, in float32, the same on every instruction set. With low and high the least and the largest
  // of x and 0, scale is high / 255 - low / 255, zero is -low / scale to the nearest, and x becomes x / scale to the
  // nearest (half to even) plus zero, 0 to 255; `/ scale` is a product with 1 / scale. A row with a number that is not
  // finite has scale NaN. x [columns], out [groups].
  void (*quantize_row)(const float* x, int64_t columns, uint32_t* out, float* scale, int32_t* zero);
  void (*memberships)(const MembershipTile&);
  // y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias, one row; x [columns], y may be x.
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float epsilon, int64_t columns, float* y);
  // y = x / sqrt(mean(x^2) + epsilon) * weight; x [columns], y may be x.
  void (*rms_norm)(const float* x, const float* weight, float epsilon, int64_t columns, float* y);
  // Backend::Rotate of one run: x [2 * half], cosines and sines [2 * half].
  void (*rotate)(const float* cosines_and_sines, int64_t half, float* x);
  // row[c] = activation(row[c]) * row[columns + c]; row [2 * columns].
  void (*gate)(Activation activation, int64_t columns, float* row);
};

// For an instruction set that this CPU has.
const CpuKernels& KernelsFor(Isa isa);

// The table of each instruction set. Only a CPU that has it may call this.
namespace generic {
const CpuKernels& Table();
}
#if defined(__x86_64__)
namespace avx2 {
const CpuKernels& Table();
}
namespace avx512 {
const CpuKernels& Table();
}
// That of AVX-512 with the products of bfloat16 and int8 on AMX tiles.
CpuKernels WithTiles(CpuKernels kernels);
#endif

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CPU_SIMD_KERNELS_H_
