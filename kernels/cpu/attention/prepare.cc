// The work that is done once per head of a sequence, before its blocks of rows: operands in the layout that the kernels
// read, and the tables of the random generator.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "kernels/cpu/attention/direction.h"
#include "kernels/cpu/attention/draw.h"
#include "kernels/cpu/attention/events.h"
#include "kernels/cpu/attention/work.h"
#include "kernels/kv_page.h"

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

static_assert(KvPage::kTokens == kTileKeys);

KvPage PageOf(const AttentionInputs& inputs) { return {inputs.key_value_heads(), inputs.head_dim}; }

// The rows and columns of keys or values `all` that a head reads, `columns` a head, as given.
ConstMatrix PartOf(const Call& call, const HeadPlan& head, ConstMatrix all, int columns) {
  const int64_t of = call.inputs->KeyValueHead(head.index);
  return all.Rows(head.problem->first_row, head.n).Columns(of * columns, columns);
}

// Keys first..first + count - 1 of a head, which are of one tile, and their values.
ConstMatrix KeysOf(const Call& call, const HeadPlan& head, int64_t first, int64_t count) {
  const AttentionInputs& inputs = *call.inputs;
  const float* const* pages = head.problem->pages;
  if (pages == nullptr) return PartOf(call, head, inputs.k, inputs.head_dim).Rows(first, count);
  const float* keys = pages[first / kTileKeys] + PageOf(inputs).Keys(inputs.KeyValueHead(head.index));
  return {keys + first % kTileKeys * inputs.head_dim, count, inputs.head_dim};
}
ConstMatrix ValuesOf(const Call& call, const HeadPlan& head, int64_t first, int64_t count) {
  const AttentionInputs& inputs = *call.inputs;
  const float* const* pages = head.problem->pages;
  if (pages == nullptr) return PartOf(call, head, inputs.v, call.value_dim()).Rows(first, count);
  const float* values = pages[first / kTileKeys] + PageOf(inputs).Values(inputs.KeyValueHead(head.index));
  return {values + first % kTileKeys * inputs.head_dim, count, inputs.head_dim};
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

void SetNeeds(const Call& call, HeadPlan& head) {
  const AttentionInputs& inputs = *call.inputs;
  Needs& needs = head.needs;
  const int depth = head.operands.depth;
  // Rows between those of other heads lie far apart and would fall into few sets of the caches; rows across two cache
  // lines would be read twice.
  const bool paged = head.problem->pages != nullptr;
  const auto copied = [&](ConstMatrix m, int columns) {
    return depth != columns || (!paged && (m.stride != depth || reinterpret_cast<uintptr_t>(m.data) % 64 != 0));
  };
  needs.copy_k = paged || copied(inputs.k, inputs.head_dim);
  needs.copy_v = paged || copied(inputs.v, call.value_dim());
  if (head.plan != nullptr) {  // tiles read pages
    needs.copy_k = head.problem->report->wanted.graph && (paged || depth != inputs.head_dim);
    needs.copy_v = head.plan->shared && copied(inputs.v, call.value_dim());
    needs.k_tiles = head.plan->shared;
  } else if (head.given != nullptr) {
    const double pairs = static_cast<double>(head.n) * static_cast<double>(head.n);
    needs.k_tiles = static_cast<double>(head.given->keys.size()) >= kPackKeysShare * pairs;
  } else if (head.drawn != nullptr) {
    const double share = head.by_events ? 0.0 : head.bound_share + head.drawn->exploration;
    const bool expected = head.problem->report->wanted.expected;
    needs.pairs = !head.by_events || expected;
    needs.k_tiles = share >= kPackKeysShare;
    needs.y_tiles = expected || (share >= kPackRatesShare && !needs.low);
    if (needs.y_tiles) head.tables.key_norm = LargestNorm(head.tables.y, head.n, head.tables.rank);
  }
}

template <typename Place>
void PlaceArrays(HeadPlan& head, const Place& place) {
  const Needs& needs = head.needs;
  const int depth = head.operands.depth;
  const int64_t tiles = (head.n + kTileKeys - 1) / kTileKeys;
  if (needs.copy_k) place(head.k_copy, head.n * depth);
  if (needs.copy_v) place(head.v_copy, head.n * depth);
  if (needs.k_tiles) place(head.k_tiles, tiles * depth * kTileKeys);
  if (!needs.pairs) return;
  place(head.tables.valid, head.tables.words);
  place(head.tables.bound, head.columns);
  place(head.tables.philox, head.columns / kDrawColumns * 32);
  if (needs.y_tiles) place(head.tables.y_tiles, head.columns * head.tables.rank);
  if (head.gaps) place(head.tables.packed, head.columns);
  if (needs.split) place(head.tables.split, head.columns);
  if (needs.low) place(head.tables.low, head.columns);
}

// The first of the heads that read the same keys and values prepares them for all.
HeadPlan& FirstOfGroup(Call& call, HeadPlan& head) {
  return *(&head - head.index % (call.inputs->num_heads / call.inputs->key_value_heads()));
}

void GatherNeeds(Call& call) {
  for (HeadPlan& head : call.heads) {
    HeadPlan& first = FirstOfGroup(call, head);
    if (&first == &head) continue;
    first.needs.copy_k |= std::exchange(head.needs.copy_k, false);
    first.needs.copy_v |= std::exchange(head.needs.copy_v, false);
    first.needs.k_tiles |= std::exchange(head.needs.k_tiles, false);
  }
}

void ShareArrays(Call& call) {
  for (HeadPlan& head : call.heads) {
    const HeadPlan& first = FirstOfGroup(call, head);
    head.k_copy = first.k_copy;
    head.v_copy = first.v_copy;
    head.k_tiles = first.k_tiles;
  }
}

void FillDrawChunk(const CpuKernels& kernels, HeadPlan& head, int64_t begin, int64_t end) {
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
  if (tables.low != nullptr) std::fill(tables.low + begin, tables.low + end, 0);
  const float range = static_cast<float>(65535 - tables.bound_lift);
  const float scale = tables.key_scale > 0.0f ? range / tables.key_scale : 0.0f;
  const float lift = static_cast<float>(tables.bound_lift) + 1.0f;
  const int32_t* positions = head.problem->positions;
  int64_t token = head.gaps ? std::lower_bound(positions, positions + head.n, begin) - positions : begin;
  for (; token < head.n && head.position(token) < end; ++token) {
    const int64_t position = head.position(token);
    const int64_t word = position / 64;
    const int column = static_cast<int>(position % 64);
    const int64_t place = word * 64 + BoundPlace(column);
    const float* y = tables.y + token * rank;
    const float bound = head.key_bound[token] * scale + lift;  // rounded up, or further
    tables.bound[place] = bound < 65535.0f ? static_cast<uint16_t>(bound) : 65535;
    tables.valid[word] |= uint64_t{1} << column;
    if (tables.packed != nullptr) tables.packed[position] = static_cast<int32_t>(token);
    if (tables.split != nullptr) tables.split[position] = kernels.split_key(y, tables.unit, rank);
    if (tables.low != nullptr) {
      tables.low[place] = kernels.low_bound(y, tables.unit, rank, tables.low_width, tables.key_scale);
    }
    if (tables.y_tiles == nullptr) continue;
    float* tile = tables.y_tiles + word * rank * 64 + TilePlace(column);
    for (int t = 0; t < rank; ++t) tile[t * 64] = y[t];
  }
}

void SplitKeys(const CpuKernels& kernels, const EventDraw& draw, int64_t first, int64_t count, uint32_t* split) {
  if (draw.keys.certificates != nullptr) {
    return kernels.split_certified(draw.keys.certificates + first, count, draw.rank, split);
  }
  for (int64_t key = 0; key < count; ++key) {
    split[key] = kernels.split_key(draw.y + (first + key) * draw.rank, draw.unit, draw.rank);
  }
}

void FillChunk(const Call& call, HeadPlan& head, int64_t chunk) {
  const int64_t begin = chunk * kChunk, count = std::min(kChunk, head.n - begin);
  const int depth = head.operands.depth;
  const bool fills = head.needs.copy_k || head.needs.copy_v || head.needs.k_tiles;
  for (int64_t key = begin; fills && key < begin + count; key += kTileKeys) {
    const int64_t keys = std::min<int64_t>(kTileKeys, begin + count - key);
    const ConstMatrix k = KeysOf(call, head, key, keys), v = ValuesOf(call, head, key, keys);
    if (head.k_copy != nullptr) CopyRows(k, depth, head.k_copy + key * depth);
    if (head.v_copy != nullptr) CopyRows(v, depth, head.v_copy + key * depth);
    if (head.k_tiles == nullptr) continue;
    call.kernels->pack_keys(k.data, k.stride, static_cast<int>(keys), static_cast<int>(k.columns), depth,
                            head.k_tiles + key * depth);
  }
  const EventDraw& draw = head.event_draw;
  if (draw.split != nullptr && begin < head.n) {
    SplitKeys(*call.kernels, draw, begin, count, head.event_split + begin);
  }
  if (head.needs.pairs && begin < head.columns) {
    FillDrawChunk(*call.kernels, head, begin, std::min(begin + kChunk, head.columns));
  }
}

// The reductions of x and y that events and caps need: squared norms, certificates where `certify`, and the sum of all
// products. Reads each row once.
void SumMemberships(const CpuKernels& kernels, bool certify, HeadPlan& head) {
  constexpr int64_t kRows = 64;  // that float32 sums well enough
  const int rank = head.tables.rank;
  absl::InlinedVector<double, 256> sums(head.capped ? 2 * static_cast<size_t>(rank) : 0);
  absl::InlinedVector<float, 128> some(head.capped ? static_cast<size_t>(rank) : 0);
  for (int64_t first = 0; first < head.n && (head.by_events || head.capped); first += kRows) {
    const int64_t count = std::min(kRows, head.n - first);
    const float* const rows[] = {head.x + first * rank, head.tables.y + first * rank};
    float* const squares[] = {head.events.query_bound, head.events.key_bound};
    for (int side = 0; side < 2; ++side) {
      if (certify) {
        const CertifiedRows& certified = head.certified[side];
        kernels.certify_rows(rows[side], count, head.unit, rank, side == 0 ? 0 : 128, squares[side] + first,
                             certified.certificates + first, certified.rests + first * CertificateBytes(rank));
      } else if (head.by_events) {
        kernels.square_norms(rows[side], count, rank, squares[side] + first);
      }
      if (!head.capped) continue;
      kernels.sum_rows(rows[side], count, rank, some.data());
      for (int t = 0; t < rank; ++t) sums[side * rank + t] += static_cast<double>(some[t]);
    }
  }
  for (int t = 0; t < rank && head.capped; ++t) head.rate_sum += sums[t] * sums[rank + t];
}

void Measure(const CpuKernels& kernels, const AttentionInputs& inputs, HeadPlan& head) {
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
  const double mean_bound = Sum(head.query_bound, head.n) / static_cast<double>(head.n);
  const double number = 65536.0 * tables.key_scale * mean_bound;
  const double lift = 2.0 * kBoundMargin * 65536.0 / number;
  tables.bound_lift = lift >= 0.0 && lift <= kMaxBoundLift ? static_cast<int>(lift) + 1 : 0;
  head.bound_share = mean_bound * head.bound_sum / static_cast<double>(head.n);
  const bool directed = MayCertify(head) && FindDirection(head);
  const bool certify = directed && PaysToCertify(kernels, head);
  SumMemberships(kernels, certify, head);
  MeasureEvents(head);
  if (!head.by_events) return MeasureSplit(kernels, head);
  if (kernels.split_key == nullptr || !(directed || FindDirection(head))) return;
  if (certify) {
    head.event_draw.queries = head.certified[0];
    head.event_draw.keys = head.certified[1];
  }
  head.event_draw.unit = head.unit;
  head.event_draw.split = head.event_split;
}

// The chunks of the longest head.
int64_t ChunksOfHead(const Call& call) {
  int64_t columns = 0;
  for (const HeadPlan& head : call.heads) columns = std::max(columns, head.columns);
  return (columns + kChunk - 1) / kChunk;
}

void SetOperands(const Call& call, HeadPlan& head) {
  const AttentionInputs& inputs = *call.inputs;
  AttendBlock& all = head.operands;
  const bool paged = head.problem->pages != nullptr;
  const auto view = [&](const float* copy, ConstMatrix given, int columns) {
    if (copy != nullptr) return ConstMatrix(copy, head.n, all.depth, all.depth);
    return paged ? ConstMatrix(nullptr, head.n, columns) : PartOf(call, head, given, columns);
  };
  const ConstMatrix k = view(head.k_copy, inputs.k, inputs.head_dim), v = view(head.v_copy, inputs.v, call.value_dim());
  all.keys = head.n;
  all.bit_words = head.tables.words;
  all.k = k.data;
  all.k_stride = k.stride;
  all.k_columns = static_cast<int>(k.columns);
  all.k_tiles = head.k_tiles;
  all.v = v.data;
  all.v_stride = v.stride;
  all.v_columns = static_cast<int>(v.columns);
  if (paged) {
    all.pages = head.problem->pages;
    all.k_in_page = PageOf(inputs).Keys(inputs.KeyValueHead(head.index));
    all.v_in_page = PageOf(inputs).Values(inputs.KeyValueHead(head.index));
  }
  all.q_given = inputs.q.row(head.problem->first_row + head.problem->query_shift) + head.index * inputs.head_dim;
  all.q_stride = inputs.q.stride;
  all.q_columns = inputs.head_dim;
  all.q_scale = inputs.scale * 1.44269504088896340736f;  // weights are powers of 2
  all.out = call.out.row(head.problem->out_row) + head.index * call.value_dim();
  all.out_stride = call.out.stride;
  all.out_columns = call.value_dim();
  if (head.bias.distance != nullptr || head.bias.values != nullptr || head.bias.buckets != nullptr) {
    all.bias = &head.bias;
  }
  head.tables.full_words = head.gaps ? 0 : head.n / 64;
}

}  // namespace

int64_t LayOutHeads(ThreadPool& pool, Memory& memory, Memory& event_memory, Call& call) {
  PlaceEventTables(call, event_memory);
  const auto heads = static_cast<int64_t>(call.heads.size());
  int64_t drawn = 0;  // keys
  for (const HeadPlan& head : call.heads) drawn += head.drawn != nullptr ? head.n : 0;
  pool.For(heads, drawn * kKeyWork, [&](int64_t i, int) {
    HeadPlan& head = call.heads[i];
    const int64_t last = head.position(head.n - 1);
    head.gaps = last != head.n - 1;
    head.columns = (last + kDrawColumns) / kDrawColumns * kDrawColumns;
    head.tables.words = head.columns / 64;
    if (head.drawn != nullptr) Measure(*call.kernels, *call.inputs, head);
    SetNeeds(call, head);
  });
  GatherNeeds(call);
  memory.Lay([&](const auto& place) {
    for (HeadPlan& head : call.heads) PlaceArrays(head, place);
  });
  ShareArrays(call);
  for (HeadPlan& head : call.heads) SetOperands(call, head);
  return heads * ChunksOfHead(call);
}

void FillChunks(ThreadPool& pool, Call& call, int64_t first, int64_t count) {
  const int64_t chunks = ChunksOfHead(call);
  int64_t cost = 0;
  for (int64_t i = first; i < first + count; ++i) {
    const HeadPlan& head = call.heads[i / chunks];
    if (i % chunks * kChunk < head.columns) cost += head.needs.cost() + (head.drawn != nullptr ? 1 : 0);
  }
  pool.For(count, cost * kChunkWork, [&](int64_t item, int) {
    const int64_t i = first + item;
    FillChunk(call, call.heads[i / chunks], i % chunks);
  });
}

}  // namespace edgewise::cpu_attention
