// The edges of one block of query rows, whatever the law, the forced edges and the gaps between positions.
#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/cpu/attention/split.h"
#include "kernels/cpu/attention/work.h"

namespace edgewise::cpu_attention {
namespace {

BlockEdges FromBits(const Call& call, const HeadWork& head, int rows, const uint64_t* bits) {
  BlockEdges edges;
  edges.bits = bits;
  edges.bit_words = head.tables.words;
  edges.count = static_cast<uint64_t>(call.kernels->count_bits(bits, rows * head.tables.words));
  return edges;
}

}  // namespace

DrawRow RowOf(const HeadWork& head, int64_t row) {
  return {head.position(row), head.x + row * head.tables.rank, head.query_bound[row]};
}

float RateOf(const HeadWork& head, int64_t row, int64_t key) {
  const int rank = head.tables.rank;
  return EdgeRate(MembershipDot(head.x + row * rank, head.tables.y + key * rank, rank), head.tables.exploration);
}

bool IsEdge(Law law, uint64_t uniform, float rate) { return uniform < EdgeThreshold(EdgeProbability(law, rate)); }

bool HasForced(const HeadWork& head) { return head.drawn->self_loops || head.drawn->local_window > 0; }

// Forced edges of a row lie at positions first..last; few of them.
static std::pair<int64_t, int64_t> ForcedSpan(const HeadWork& head, int64_t row) {
  const int64_t reach = std::max(head.drawn->local_window, 0) / 2;
  const int64_t position = head.position(row);
  const int64_t last = head.position(head.n - 1);
  return {std::max<int64_t>(position - reach, 0), std::min(position + reach, last)};
}

void AddForced(const HeadWork& head, int64_t row, uint64_t* bits) {
  const auto [first, last] = ForcedSpan(head, row);
  for (int64_t word = first / 64; word <= last / 64; ++word) {
    uint64_t mask = ~uint64_t{0};
    if (word == first / 64) mask &= ~uint64_t{0} << (first % 64);
    if (word == last / 64) mask &= ~uint64_t{0} >> (63 - last % 64);
    bits[word] |= mask & head.valid[word];
  }
}

int64_t CountForced(const HeadWork& head) {
  if (!HasForced(head)) return 0;
  const int64_t reach = std::max(head.drawn->local_window, 0) / 2;
  int64_t count = 0, first = 0, end = 0;  // tokens within reach of a row: a window that slides with it
  for (int64_t row = 0; row < head.n; ++row) {
    const int64_t position = head.position(row);
    while (head.position(first) + reach < position) ++first;
    while (end < head.n && head.position(end) <= position + reach) ++end;
    count += end - first;
  }
  return count;
}

void PackBits(const HeadWork& head, const uint64_t* by_position, uint64_t* by_index) {
  const int64_t words = head.tables.words;
  if (!head.gaps) {
    if (by_position != by_index) std::memcpy(by_index, by_position, static_cast<size_t>(words) * sizeof(uint64_t));
    return;
  }
  int64_t index = 0;  // of the next token
  uint64_t gathered = 0;
  for (int64_t word = 0; word < words; ++word) {
    const uint64_t bits = by_position[word];
    for (uint64_t valid = head.valid[word]; valid != 0; valid &= valid - 1) {
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

// Any law but bernoulli.
static BlockEdges DrawPoissonBlock(const Call& call, const HeadWork& head, int64_t row0, int rows, Worker& worker) {
  const Law law = head.drawn->law;
  const int64_t words = head.tables.words;
  SplitEdges split = SplitBlock(call, head, row0, rows, SpanOf(law, 1.0f, 1.0f), worker);
  std::vector<ParallelEdge> added;
  for (const OpenPair& pair : split.open) {
    if (!pair.forced && !IsEdge(law, pair.uniform, pair.rate)) continue;
    const ParallelEdge edge = {pair.row, pair.key, OpenMultiplicity(law, pair, 1.0)};
    if (!pair.forced) added.push_back(edge);
    if (edge.count > 1) split.parallel.push_back(edge);
  }
  BlockEdges edges;
  edges.count = split.count + added.size();
  edges.bit_words = words;
  edges.bits = split.bits;
  if (split.bits != nullptr) {
    InsertEdges(added, words, split.bits);
    if (split.parallel.empty()) return edges;
    ListBits(call, head, rows, split.bits, worker);
  } else {
    InsertEdges(added, rows, worker.offsets, worker.keys);
  }
  edges.offsets = worker.offsets;
  edges.keys = worker.keys.data();
  if (split.parallel.empty()) return edges;
  worker.multiplicity.assign(static_cast<size_t>(edges.count), 1.0f);
  SetMultiplicity(split.parallel, worker.offsets, worker.keys.data(), split.bits, words, worker.multiplicity.data());
  edges.multiplicity = worker.multiplicity.data();
  return edges;
}

BlockEdges DrawBlock(const Call& call, const HeadWork& head, int64_t row0, int rows, Worker& worker) {
  if (head.drawn->law != Law::kBernoulli) return DrawPoissonBlock(call, head, row0, rows, worker);
  const DrawTables& tables = head.tables;
  const int64_t words = tables.words;
  const bool tiles = HasManyEdges(head, row0, rows, 1.0f) && CanDrawTiles(head, row0, rows);
  const bool plain = !head.gaps && !HasForced(head);
  DrawRow block_rows[kBlockRows];
  for (int r = 0; r < rows; ++r) block_rows[r] = RowOf(head, row0 + r);
  if (plain && !tiles) {
    worker.offsets[0] = 0;
    for (int r = 0; r < rows;) {
      const int64_t used = worker.offsets[r];
      const int64_t room = used + head.columns + kDrawGroup + 64;
      if (static_cast<int64_t>(worker.keys.size()) < room) worker.keys.resize(static_cast<size_t>(room + used));
      const int drawn = call.kernels->draw_rows(tables, block_rows + r, rows - r, worker.draw,
                                                worker.keys.data() + used, worker.offsets + r + 1);
      for (int i = 0; i < drawn; ++i) worker.offsets[r + 1 + i] += used;
      r += drawn;
    }
    BlockEdges edges;
    edges.offsets = worker.offsets;
    edges.keys = worker.keys.data();
    edges.count = static_cast<uint64_t>(worker.offsets[rows]);
    return edges;
  }
  uint64_t* bits = worker.position_bits;
  if (tiles) {
    for (int r = 0; r < rows; r += kTileRows) {
      call.kernels->draw_tile(tables, block_rows + r, std::min(kTileRows, rows - r), worker.draw, bits + r * words);
    }
    if (plain) return FromBits(call, head, rows, bits);
  } else {
    std::fill(bits, bits + rows * words, 0);
    for (int r = 0; r < rows;) {
      int64_t ends[kBlockRows];
      const int drawn = call.kernels->draw_rows(tables, block_rows + r, rows - r, worker.draw, worker.row_keys, ends);
      int64_t e = 0;
      for (int i = 0; i < drawn; ++i, ++r) {
        for (; e < ends[i]; ++e) {
          bits[r * words + worker.row_keys[e] / 64] |= uint64_t{1} << (worker.row_keys[e] % 64);
        }
      }
    }
  }
  for (int r = 0; r < rows; ++r) {
    if (HasForced(head)) AddForced(head, row0 + r, bits + r * words);
    PackBits(head, bits + r * words, worker.packed_bits + r * words);
  }
  return FromBits(call, head, rows, worker.packed_bits);
}

}  // namespace edgewise::cpu_attention
