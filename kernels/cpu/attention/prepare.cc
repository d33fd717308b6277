// The work that is done once per head of a sequence, before its blocks of rows: operands in the layout that the kernels
// read, and the tables of the random generator.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/cpu/attention/work.h"

namespace edgewise::cpu_attention {
namespace {

constexpr int64_t kKeyWork = 4;       // nanoseconds that a key takes to measure, roughly
constexpr int64_t kChunk = 512;       // columns that one item of work prepares; a multiple of kDrawColumns
constexpr int64_t kChunkWork = 4000;  // nanoseconds that a unit of a chunk's cost takes, roughly
// Shares of edges, by the bounds, from which keys and rates are packed in advance (below, tiles pack keys as they go).
constexpr double kPackKeysShare = 0.27;
constexpr double kPackRatesShare = 0.18;

// The part of Philox4x32 on {column counter, query, bytes_word, sample} that does not depend on the query: after three
// rounds, c0 = high(M1 * (high(M0 * w) ^ t0)) ^ t1, c2 = low(M0 * w) ^ t2, c3 = t3 with w the query's word of round 0.
void FillPhilox(const DrawTables& tables, uint32_t counter, uint64_t* table, int lane) {
  const auto high = [](uint64_t a) { return static_cast<uint32_t>(a >> 32); };
  const auto low = [](uint64_t a) { return static_cast<uint32_t>(a); };
  const uint64_t m0 = kPhiloxMultiplier0, m1 = kPhiloxMultiplier1;
  const uint32_t k0 = tables.seed[0], k1 = tables.seed[1];
  // Round 0.
  const uint64_t product = m0 * counter;
  const uint32_t a1 = low(m1 * tables.bytes_word);
  const uint32_t a2 = high(product) ^ tables.sample ^ k1;
  const uint32_t a3 = low(product);
  // Round 1.
  const uint64_t product1 = m1 * a2;
  const uint32_t b0 = high(product1) ^ a1 ^ (k0 + kPhiloxWeyl0);
  const uint32_t b1 = low(product1);
  // Round 2.
  const uint64_t product2 = m0 * b0;
  table[lane] = a3 ^ (k1 + kPhiloxWeyl1);
  table[8 + lane] = b1 ^ (k0 + 2 * kPhiloxWeyl0);
  table[16 + lane] = high(product2) ^ (k1 + 2 * kPhiloxWeyl1);
  table[24 + lane] = low(product2);
}

// The rows and columns of `all` that belong to one head, `columns` a head, as given.
ConstMatrix PartOf(const Head& head, ConstMatrix all, int columns) {
  return all.Rows(head.problem->first_row, head.n).Columns(int64_t{head.index} * columns, columns);
}

// To rows of `padded` columns.
void CopyRows(ConstMatrix from, int padded, float* to) {
  for (int64_t r = 0; r < from.rows; ++r) {
    std::memcpy(to + r * padded, from.row(r), static_cast<size_t>(from.columns) * sizeof(float));
    for (int64_t c = from.columns; c < padded; ++c) to[r * padded + c] = 0.0f;
  }
}

// In eight chains: each addition of a single chain would wait for the one before.
double Sum(const float* values, int64_t count) {
  double sum[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int lane = 0; lane < 8; ++lane) sum[lane] += values[i + lane];
  }
  for (; i < count; ++i) sum[0] += values[i];
  double total = 0.0;
  for (double part : sum) total += part;
  return total;
}

struct Needs {
  bool copy_k = false, copy_v = false, k_tiles = false, y_tiles = false;
};

Needs NeedsOf(const Call& call, const Head& head) {
  const AttentionInputs& inputs = *call.inputs;
  Needs needs;
  // Rows between those of other heads lie far apart and would fall into few sets of the caches; rows across two cache
  // lines would be read twice.
  const auto copied = [&](ConstMatrix m, int columns) {
    return head.depth != columns || m.stride != head.depth || reinterpret_cast<uintptr_t>(m.data) % 64 != 0;
  };
  needs.copy_k = copied(inputs.k, inputs.head_dim);
  needs.copy_v = copied(inputs.v, call.value_dim());
  if (head.plan != nullptr) {
    needs.copy_k = head.problem->report->wanted.graph && head.depth != inputs.head_dim;
    needs.copy_v = needs.copy_v && head.plan->shared;
    needs.k_tiles = head.plan->shared;
  } else if (head.given != nullptr) {
    const double pairs = static_cast<double>(head.n) * static_cast<double>(head.n);
    needs.k_tiles = static_cast<double>(head.given->keys.size()) >= kPackKeysShare * pairs;
  } else if (head.drawn != nullptr) {
    const double rows = Sum(head.query_bound, head.n);
    const double n = static_cast<double>(head.n);
    const double share = rows * head.bound_sum / (n * n) + head.drawn->exploration;
    needs.k_tiles = share >= kPackKeysShare;
    needs.y_tiles = head.problem->report->wanted.expected || share >= kPackRatesShare;
  }
  return needs;
}

template <typename Place>
void PlaceArrays(const Needs& needs, Head& head, const Place& place) {
  const int64_t tiles = (head.n + kTileKeys - 1) / kTileKeys;
  if (needs.copy_k) place(head.k_copy, head.n * head.depth);
  if (needs.copy_v) place(head.v_copy, head.n * head.depth);
  if (needs.k_tiles) place(head.k_tiles, tiles * head.depth * kTileKeys);
  if (head.drawn == nullptr) return;
  place(head.tables.valid, head.tables.words);
  place(head.tables.bound, head.columns);
  place(head.tables.philox, head.columns / kDrawColumns * 32);
  if (needs.y_tiles) place(head.tables.y_tiles, head.columns * head.tables.rank);
  if (head.gaps) place(head.tables.packed, head.columns);
  if (head.tables.unit != nullptr) place(head.tables.split, head.columns);
}

void FillDrawChunk(const CpuKernels& kernels, Head& head, int64_t begin, int64_t end) {
  DrawTables& tables = head.tables;
  const int rank = tables.rank;
  for (int64_t column = begin; column < end; column += 16) {
    const int64_t block = column / 16;
    FillPhilox(tables, static_cast<uint32_t>(block), tables.philox + block / 8 * 32, static_cast<int>(block % 8));
  }
  std::fill(tables.valid + begin / 64, tables.valid + end / 64, 0);
  std::fill(tables.bound + begin, tables.bound + end, 0);
  if (tables.y_tiles != nullptr) std::fill(tables.y_tiles + begin * rank, tables.y_tiles + end * rank, 0.0f);
  if (tables.packed != nullptr) std::fill(tables.packed + begin, tables.packed + end, 0);
  if (tables.split != nullptr) std::fill(tables.split + begin, tables.split + end, 0);
  const float range = static_cast<float>(65535 - tables.bound_lift);
  const float scale = tables.key_scale > 0.0f ? range / tables.key_scale : 0.0f;
  const float lift = static_cast<float>(tables.bound_lift) + 1.0f;
  float norm = 0.0f;
  const int32_t* positions = head.problem->positions;
  int64_t token = head.gaps ? std::lower_bound(positions, positions + head.n, begin) - positions : begin;
  for (; token < head.n && head.position(token) < end; ++token) {
    const int64_t position = head.position(token);
    const int64_t word = position / 64;
    const int column = static_cast<int>(position % 64);
    const float bound = head.key_bound[token] * scale + lift;  // rounded up, or further
    tables.bound[word * 64 + BoundPlace(column)] = bound < 65535.0f ? static_cast<uint16_t>(bound) : 65535;
    tables.valid[word] |= uint64_t{1} << column;
    if (tables.packed != nullptr) tables.packed[position] = static_cast<int32_t>(token);
    if (tables.split != nullptr) {
      tables.split[position] = kernels.split_key(tables.y + token * rank, tables.unit, rank);
    }
    if (tables.y_tiles == nullptr) continue;
    float* tile = tables.y_tiles + word * rank * 64 + TilePlace(column);
    const float* y = tables.y + token * rank;
    float square = 0.0f;
    for (int t = 0; t < rank; ++t) {
      tile[t * 64] = y[t];
      square += y[t] * y[t];
    }
    norm = std::max(norm, square);
  }
  if (norm > 0.0f) {  // a maximum does not depend on the order
    norm = std::sqrt(norm) * 1.0001f;
    std::atomic_ref<float> largest(tables.key_norm);
    float seen = largest.load();
    while (seen < norm && !largest.compare_exchange_weak(seen, norm)) {
    }
  }
}

void FillChunk(const Call& call, Head& head, int64_t chunk) {
  const int64_t begin = chunk * kChunk;
  if (const int64_t count = std::min(kChunk, head.n - begin); count > 0) {
    const ConstMatrix k = PartOf(head, call.inputs->k, call.inputs->head_dim).Rows(begin, count);
    const ConstMatrix v = PartOf(head, call.inputs->v, call.value_dim()).Rows(begin, count);
    if (head.k_copy != nullptr) CopyRows(k, head.depth, head.k_copy + begin * head.depth);
    if (head.v_copy != nullptr) CopyRows(v, head.depth, head.v_copy + begin * head.depth);
    for (int64_t key = 0; head.k_tiles != nullptr && key < count; key += kTileKeys) {
      const int keys = static_cast<int>(std::min<int64_t>(kTileKeys, count - key));
      call.kernels->pack_keys(k.row(key), k.stride, keys, static_cast<int>(k.columns), head.depth,
                              head.k_tiles + (begin + key) * head.depth);
    }
  }
  if (head.drawn != nullptr && begin < head.columns) {
    FillDrawChunk(*call.kernels, head, begin, std::min(begin + kChunk, head.columns));
  }
}

// Heads whose keys get bounds of their own. Short keys are read and multiplied as fast, and a table for few candidates
// costs more than it saves.
constexpr int kSplitRank = 64;
constexpr int64_t kSplitTokens = 1024;     // or, from 256 on,
constexpr double kSplitCandidates = 12.0;  // of a row
// Widest bounds that pay, for each element of a key that is not read: over p, beyond kSplitRank / 2; as chances in
// tiles.
constexpr float kSplitShare = 0.3f / 96.0f;
constexpr float kSplitTileShare = 0.1f / 128.0f;

// Finds a direction that bounds p well, the mean of some keys, and decides on a sample of pairs whether its bounds pay.
// Bounds along any direction hold; those that NaN and infinities give are not used.
void MeasureSplit(const CpuKernels& kernels, double mean_bound, Head& head) {
  DrawTables& tables = head.tables;
  const int rank = tables.rank;
  if (kernels.split_key == nullptr || rank < kSplitRank || rank > kMaxRank || head.n < 256) return;
  const double candidates = static_cast<double>(head.n) / 256.0 + mean_bound * head.bound_sum;
  if (head.n < kSplitTokens && !(candidates >= kSplitCandidates)) return;
  std::fill(head.unit, head.unit + rank, 0.0f);
  const int64_t step = head.n / 128;
  for (int64_t key = 0; key < head.n; key += step) {
    for (int t = 0; t < rank; ++t) head.unit[t] += tables.y[key * rank + t];
  }
  double square = 0.0;  // in float32 the norm would be off by more than the bounds allow for
  for (int t = 0; t < rank; ++t) square += static_cast<double>(head.unit[t]) * static_cast<double>(head.unit[t]);
  if (!(square >= 1e-30 && square <= 1e30)) return;
  const double norm = std::sqrt(square);
  for (int t = 0; t < rank; ++t) head.unit[t] = static_cast<float>(static_cast<double>(head.unit[t]) / norm);
  float along = 0.0f, width = 0.0f;
  int pairs = 0;
  for (int64_t key = step / 2; key < head.n; key += 2 * step, ++pairs) {
    const uint32_t x = kernels.split_key(head.x + key * rank, head.unit, rank);
    const uint32_t y = kernels.split_key(tables.y + key * rank, head.unit, rank);
    along += std::bit_cast<float>(x & 0xFFFF0000u) * std::bit_cast<float>(y & 0xFFFF0000u);
    width += std::min(1.0f, 2.0f * std::bit_cast<float>(x << 16) * std::bit_cast<float>(y << 16));
  }
  if (!(width < kSplitShare * static_cast<float>(rank - kSplitRank / 2) * along)) return;
  tables.unit = head.unit;
  tables.split_tiles = width < kSplitTileShare * static_cast<float>(rank * pairs);
}

void Measure(const CpuKernels& kernels, const AttentionInputs& inputs, Head& head) {
  const Memberships& m = inputs.memberships;
  const int64_t first = head.index * m.rows + head.problem->first_row;
  DrawTables& tables = head.tables;
  tables.rank = m.rank;
  tables.y = m.y + first * m.rank;
  head.x = m.x + first * m.rank;
  head.query_bound = m.query_bound + first;
  head.key_bound = m.key_bound + first;
  tables.exploration = head.drawn->exploration;
  const RandomKey& key = head.drawn->key;
  tables.seed[0] = static_cast<uint32_t>(key.seed);
  tables.seed[1] = static_cast<uint32_t>(key.seed >> 32);
  tables.bytes_word = CounterWord(key, static_cast<uint32_t>(head.index), kStreamBytes);
  tables.low_word = CounterWord(key, static_cast<uint32_t>(head.index), kStreamLow);
  tables.sample = key.sample;
  for (int64_t j = 0; j < head.n; ++j) tables.key_scale = std::max(tables.key_scale, head.key_bound[j]);
  head.bound_sum = Sum(head.key_bound, head.n);
  // Suits rows of at least half the mean bound.
  const double query_sum = Sum(head.query_bound, head.n);
  const double number = 65536.0 * tables.key_scale * query_sum / static_cast<double>(head.n);
  const double lift = 2.0 * kBoundMargin * 65536.0 / number;
  tables.bound_lift = lift <= kMaxBoundLift ? static_cast<int>(lift) + 1 : 0;
  MeasureSplit(kernels, query_sum / static_cast<double>(head.n), head);
}

}  // namespace

void PrepareHeads(ThreadPool& pool, Memory& memory, Call& call) {
  const AttentionInputs& inputs = *call.inputs;
  int64_t drawn = 0;  // keys
  for (const Head& head : call.heads) drawn += head.drawn != nullptr ? head.n : 0;
  pool.For(static_cast<int64_t>(call.heads.size()), drawn * kKeyWork, [&](int64_t i, int) {
    Head& head = call.heads[i];
    const AttentionProblem& problem = *head.problem;
    const int64_t last = head.position(head.n - 1);
    head.gaps = last != head.n - 1;
    head.columns = (last + kDrawColumns) / kDrawColumns * kDrawColumns;
    head.tables.words = head.columns / 64;
    head.q = inputs.q.row(problem.first_row + problem.query_shift) + head.index * inputs.head_dim;
    head.q_stride = inputs.q.stride;
    if (head.drawn != nullptr) Measure(*call.kernels, inputs, head);
  });
  std::vector<Needs> needs;
  for (Head& head : call.heads) needs.push_back(NeedsOf(call, head));
  memory.Lay([&](const auto& place) {
    for (size_t i = 0; i < call.heads.size(); ++i) PlaceArrays(needs[i], call.heads[i], place);
  });
  std::vector<std::pair<int32_t, int32_t>> chunks;
  int64_t cost = 0;
  for (size_t i = 0; i < call.heads.size(); ++i) {
    Head& head = call.heads[i];
    const bool k_copied = head.k_copy != nullptr, v_copied = head.v_copy != nullptr;
    head.k =
        k_copied ? ConstMatrix(head.k_copy, head.n, head.depth, head.depth) : PartOf(head, inputs.k, inputs.head_dim);
    head.v =
        v_copied ? ConstMatrix(head.v_copy, head.n, head.depth, head.depth) : PartOf(head, inputs.v, call.value_dim());
    head.tables.full_words = head.gaps ? 0 : head.n / 64;
    if (head.drawn == nullptr && !k_copied && !v_copied && !needs[i].k_tiles) continue;
    const int64_t span = head.drawn != nullptr ? head.columns : head.n;
    for (int64_t chunk = 0; chunk * kChunk < span; ++chunk) {
      chunks.emplace_back(static_cast<int32_t>(i), static_cast<int32_t>(chunk));
      cost += 1 + (k_copied ? 2 : 0) + (v_copied ? 2 : 0) + (needs[i].k_tiles ? 4 : 0) + (needs[i].y_tiles ? 8 : 0);
    }
  }
  pool.For(static_cast<int64_t>(chunks.size()), cost * kChunkWork,
           [&](int64_t i, int) { FillChunk(call, call.heads[chunks[i].first], chunks[i].second); });
}

}  // namespace edgewise::cpu_attention
