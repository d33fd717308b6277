#include "kernels/cpu/attention/draw.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace edgewise::cpu_attention {
namespace {

// Shares of pairs. Where bounds allow more edges in a block, they are drawn by tiles; where they allow fewer in a head,
// lower bounds accept too few of them to pay.
constexpr double kTileDrawShare = 0.22;
constexpr double kCertainShare = 0.02;

// The first and last position of the forced edges of a row.
std::pair<int64_t, int64_t> ForcedSpan(const HeadPlan& head, int64_t row) {
  const int64_t reach = std::max(head.drawn->local_window, 0) / 2;
  const int64_t position = head.position(row);
  const int64_t last = head.position(head.n - 1);
  return {std::max<int64_t>(position - reach, 0), std::min(position + reach, last)};
}

bool IsForced(const HeadPlan& head, int64_t row, int64_t position) {
  const int64_t reach = std::max(head.drawn->local_window, 0) / 2;
  return HasForced(head) && std::abs(position - static_cast<int64_t>(head.position(row))) <= reach;
}

bool HasManyEdges(const HeadPlan& head, int64_t row0, int rows, float tau) {
  double sum = 0.0;
  for (int64_t r = row0; r < row0 + rows; ++r) sum += static_cast<double>(head.query_bound[r]);
  const double pairs = static_cast<double>(rows) * static_cast<double>(head.n);
  const double share = sum * head.bound_sum / pairs + static_cast<double>(head.drawn->exploration);
  return static_cast<double>(tau) * share >= kTileDrawShare;
}

bool CanDrawTiles(const HeadPlan& head, int64_t row0, int rows) {
  const DrawTables& tables = head.tables;
  if (tables.y_tiles == nullptr || tables.rank > kMaxRank) return false;
  const float norm = LargestNorm(head.x + row0 * tables.rank, rows, tables.rank);
  return TileEpsilon(tables.rank, norm * tables.key_norm) < 0.25f;  // a larger one would leave too many pairs undecided
}

// Moves the pairs that a kernel listed to `block`. `multiplicities`: those of forced edges matter.
void TakeExtras(const HeadPlan& head, int64_t row0, bool multiplicities, DrawExtras& extras, DrawnBlock& block) {
  const auto index = [&](int32_t position) { return head.gaps ? head.tables.packed[position] : position; };
  for (ParallelEdge edge : std::span(extras.parallel, static_cast<size_t>(extras.parallels))) {
    block.parallel.push_back({edge.row, index(edge.key), edge.count});
  }
  const std::span<const OpenPair> open(extras.open, static_cast<size_t>(extras.opens));
  if (!head.gaps && !HasForced(head)) block.open.insert(block.open.end(), open.begin(), open.end());
  for (OpenPair pair : head.gaps || HasForced(head) ? open : std::span<const OpenPair>()) {
    pair.forced = IsForced(head, row0 + pair.row, pair.key);
    if (pair.forced && !multiplicities) continue;
    pair.key = index(pair.key);
    block.open.push_back(pair);
  }
  extras.parallels = extras.opens = 0;
}

// Multiplicity of an open pair that is an edge at rate tau * p.
int OpenMultiplicity(Law law, const OpenPair& pair, double tau) {
  const double rate = tau * static_cast<double>(pair.rate);
  return law == Law::kPoissonMulti && rate > 0.0 ? std::max(1, EdgeMultiplicity(pair.uniform, rate)) : 1;
}

}  // namespace

float LargestNorm(const float* rows, int64_t count, int rank) {
  float largest = 0.0f;
  for (int64_t r = 0; r < count; ++r, rows += rank) {
    float square = 0.0f;
    for (int t = 0; t < rank; ++t) square += rows[t] * rows[t];
    largest = std::max(largest, square);
  }
  return std::sqrt(largest) * 1.0001f;
}

DrawRow RowOf(const HeadPlan& head, int64_t row) {
  return {head.position(row), head.x + row * head.tables.rank, head.query_bound[row]};
}

float RateOf(const HeadPlan& head, int64_t row, int64_t key) {
  const int rank = head.tables.rank;
  return EdgeRate(MembershipDot(head.x + row * rank, head.tables.y + key * rank, rank), head.tables.exploration);
}

bool IsEdge(Law law, uint64_t uniform, float rate) { return uniform < EdgeThreshold(EdgeProbability(law, rate)); }

bool HasForced(const HeadPlan& head) { return head.drawn->self_loops || head.drawn->local_window > 0; }

void AddForced(const HeadPlan& head, int64_t row, uint64_t* bits) {
  const auto [first, last] = ForcedSpan(head, row);
  for (int64_t word = first / 64; word <= last / 64; ++word) {
    uint64_t mask = ~uint64_t{0};
    if (word == first / 64) mask &= ~uint64_t{0} << (first % 64);
    if (word == last / 64) mask &= ~uint64_t{0} >> (63 - last % 64);
    bits[word] |= mask & head.tables.valid[word];
  }
}

uint64_t CountForced(const HeadPlan& head, int64_t row0, int64_t rows) {
  if (!HasForced(head)) return 0;
  const int64_t reach = std::max(head.drawn->local_window, 0) / 2;
  int64_t count = 0, first = 0, end = 0;  // tokens within reach of a row: a window that slides with it
  for (int64_t row = row0; row < row0 + rows; ++row) {
    const int64_t position = head.position(row);
    while (head.position(first) + reach < position) ++first;
    while (end < head.n && head.position(end) <= position + reach) ++end;
    count += end - first;
  }
  return static_cast<uint64_t>(count);
}

std::pair<int64_t, int64_t> ForcedKeys(const HeadPlan& head, int64_t row) {
  if (!HasForced(head)) return {row, row};
  const int64_t reach = std::max(head.drawn->local_window, 0) / 2, position = head.position(row);
  int64_t first = row, end = row + 1;
  while (first > 0 && position - head.position(first - 1) <= reach) --first;
  while (end < head.n && head.position(end) - position <= reach) ++end;
  return {first, end};
}

void PackBits(const HeadPlan& head, const uint64_t* by_position, uint64_t* by_index) {
  const int64_t words = head.tables.words;
  if (!head.gaps) {
    if (by_position != by_index) std::memcpy(by_index, by_position, static_cast<size_t>(words) * sizeof(uint64_t));
    return;
  }
  int64_t index = 0;  // of the next token
  uint64_t gathered = 0;
  for (int64_t word = 0; word < words; ++word) {
    const uint64_t bits = by_position[word];
    for (uint64_t valid = head.tables.valid[word]; valid != 0; valid &= valid - 1) {
      gathered |= (bits >> std::countr_zero(valid) & 1) << (index % 64);
      if (++index % 64 == 0) {
        by_index[index / 64 - 1] = gathered;
        gathered = 0;
      }
    }
  }
  int64_t word = index / 64;
  if (index % 64 != 0) by_index[word++] = gathered;
  for (; word < words; ++word) by_index[word] = 0;
}

DrawSpan SpanOf(Law law, float low, float high) {
  return {law != Law::kBernoulli, law == Law::kPoissonMulti, low, high};
}

void MarkBits(const int64_t* offsets, const int32_t* keys, int rows, int64_t words, uint64_t* bits) {
  std::fill(bits, bits + rows * words, 0);
  for (int r = 0; r < rows; ++r, bits += words) {
    for (int64_t e = offsets[r]; e < offsets[r + 1]; ++e) bits[keys[e] / 64] |= uint64_t{1} << (keys[e] % 64);
  }
}

void DrawBlock(const Call& call, const HeadPlan& head, int64_t row0, int rows, const DrawSpan& span, Worker& worker) {
  const DrawTables& tables = head.tables;
  const int64_t words = tables.words;
  const bool certain = tables.low != nullptr && !span.poisson &&
                       (span.exact() || static_cast<double>(span.high) * head.bound_share >= kCertainShare);
  const bool as_bits = certain || (HasManyEdges(head, row0, rows, span.high) && CanDrawTiles(head, row0, rows));
  // Most rows that a kernel takes at once: there is room for the open pairs of kTileRows rows, where all may be open.
  const int step = as_bits && !certain ? kTileRows : rows;
  DrawRow* const block_rows = worker.rows;
  for (int r = 0; r < rows; ++r) block_rows[r] = RowOf(head, row0 + r);
  DrawnBlock& block = worker.drawn;
  block.bits = nullptr;
  block.parallel.clear();
  block.open.clear();
  DrawExtras extras;
  worker.extra_memory.Lay([&](const auto& place) {
    if (!span.exact()) place(extras.open, worker.draw.capacity);
    if (span.parallel) place(extras.parallel, worker.draw.capacity);
  });
  uint64_t* bits = worker.position_bits;
  std::vector<int64_t>& offsets = worker.lists.offsets;
  offsets.assign(static_cast<size_t>(rows) + 1, 0);
  for (int r = 0, drawn; r < rows; r += drawn) {
    extras.first_row = r;
    drawn = std::min(step, rows - r);
    if (as_bits) {
      drawn = call.kernels->draw_tile(tables, span, block_rows + r, drawn, worker.draw, bits + r * words, extras);
    } else {
      int32_t* keys = worker.lists.Room(offsets[r], head.columns + kDrawGroup + 64);
      int64_t* ends = offsets.data() + r + 1;
      drawn = call.kernels->draw_rows(tables, span, block_rows + r, drawn, worker.draw, keys, ends, extras);
      for (int i = 0; i < drawn; ++i) ends[i] += offsets[r];
    }
    TakeExtras(head, row0, span.parallel, extras, block);
  }
  const bool by_index = !head.gaps && !HasForced(head);
  if (!as_bits && by_index) {
    block.count = static_cast<uint64_t>(offsets[rows]);
    return;
  }
  if (!as_bits) MarkBits(offsets.data(), worker.lists.keys.data(), rows, words, bits);
  block.bits = by_index ? bits : worker.bits;
  for (int r = 0; r < rows && !by_index; ++r) {
    if (HasForced(head)) AddForced(head, row0 + r, bits + r * words);
    PackBits(head, bits + r * words, worker.bits + r * words);
  }
  block.count = static_cast<uint64_t>(call.kernels->count_bits(block.bits, rows * words));
}

void InsertEdges(std::span<const ParallelEdge> added, int rows, int64_t* offsets, int32_t* keys) {
  auto more = static_cast<int64_t>(added.size());
  // From the end, so that no key is overwritten before it has moved, until every edge is added.
  for (int r = rows - 1; r >= 0 && more > 0; --r) {
    int64_t from = offsets[r + 1];
    offsets[r + 1] += more;
    int64_t to = offsets[r + 1];
    while (more > 0 && added[more - 1].row == r) {
      const int32_t key = added[more - 1].key;
      const int32_t* const place = std::lower_bound(keys + offsets[r], keys + from, key);
      to -= keys + from - place;
      std::memmove(keys + to, place, static_cast<size_t>(keys + from - place) * sizeof(int32_t));
      from = place - keys;
      keys[--to] = key;
      --more;
    }
    if (more > 0) std::memmove(keys + offsets[r] + more, keys + offsets[r], (from - offsets[r]) * sizeof(int32_t));
  }
}

void AddOpenPairs(const HeadPlan& head, int rows, std::span<const OpenPair> edges, double tau, uint64_t* bits,
                  int64_t* offsets, int32_t* keys, std::vector<ParallelEdge>& parallel,
                  std::vector<ParallelEdge>& added) {
  added.clear();
  added.reserve(edges.size());
  for (const OpenPair& pair : edges) {
    const ParallelEdge edge = {pair.row, pair.key, OpenMultiplicity(head.drawn->law, pair, tau)};
    if (!pair.forced) added.push_back(edge);
    if (edge.count > 1) parallel.push_back(edge);
  }
  AddEdges(head, rows, added, bits, offsets, keys);
}

void AddEdges(const HeadPlan& head, int rows, std::span<const ParallelEdge> added, uint64_t* bits, int64_t* offsets,
              int32_t* keys) {
  if (bits == nullptr) return InsertEdges(added, rows, offsets, keys);
  for (const ParallelEdge& edge : added) {
    bits[edge.row * head.tables.words + edge.key / 64] |= uint64_t{1} << (edge.key % 64);
  }
}

void ListBits(const Call& call, const HeadPlan& head, int rows, const uint64_t* bits, EdgeLists& lists) {
  const int64_t words = head.tables.words;
  lists.offsets.assign(static_cast<size_t>(rows) + 1, 0);
  for (int r = 0; r < rows; ++r) {
    const int64_t used = lists.offsets[r];
    int32_t* keys = lists.Room(used, head.columns + 64);
    lists.offsets[r + 1] = used + call.kernels->list_bits(bits + r * words, words, 0, keys);
  }
}

void SetMultiplicity(const HeadPlan& head, int rows, std::span<const ParallelEdge> parallel, const uint64_t* bits,
                     const int64_t* offsets, const int32_t* keys, float* multiplicity) {
  std::fill(multiplicity, multiplicity + offsets[rows], 1.0f);
  if (bits == nullptr) {
    for (const ParallelEdge& edge : parallel) {
      const int32_t* found = std::lower_bound(keys + offsets[edge.row], keys + offsets[edge.row + 1], edge.key);
      multiplicity[found - keys] = static_cast<float>(edge.count);
    }
    return;
  }
  int32_t row = -1;
  int64_t word = 0, before = 0;  // edges of the row before the word
  for (const ParallelEdge& edge : parallel) {
    if (edge.row != row || edge.key / 64 < word) {
      row = edge.row;
      word = 0;
      before = offsets[row];
    }
    const uint64_t* row_bits = bits + row * head.tables.words;
    for (; word < edge.key / 64; ++word) before += std::popcount(row_bits[word]);
    const uint64_t below = row_bits[word] & ((uint64_t{1} << (edge.key % 64)) - 1);
    multiplicity[before + std::popcount(below)] = static_cast<float>(edge.count);
  }
}

}  // namespace edgewise::cpu_attention
