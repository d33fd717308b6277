// The edges of one block of query rows, whatever the law, the forced edges and the gaps between positions.
#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/cpu/attention_work.h"

namespace edgewise::cpu_attention {
namespace {

// Blocks whose bounds allow at least this share of edges are drawn by tiles; the graph is the same.
constexpr double kTileShare = 0.22;

bool DrawsByTiles(const HeadWork& head, int64_t row0, int rows) {
  const DrawTables& tables = head.tables;
  if (tables.y_tiles == nullptr || head.drawn->law != Law::kBernoulli || tables.rank > kMaxRank) return false;
  double sum = 0.0;
  float norm = 0.0f;
  for (int64_t r = row0; r < row0 + rows; ++r) {
    sum += head.query_bound[r];
    float square = 0.0f;
    for (int t = 0; t < tables.rank; ++t) square += head.x[r * tables.rank + t] * head.x[r * tables.rank + t];
    norm = std::max(norm, square);
  }
  const float epsilon = TileEpsilon(tables.rank, std::sqrt(norm) * 1.0001f * tables.key_norm);
  if (!(epsilon < 0.25f)) return false;  // p~ would be too far from p
  const double pairs = static_cast<double>(rows) * static_cast<double>(head.n);
  return sum * head.bound_sum / pairs + head.drawn->exploration >= kTileShare;
}

// More than one parallel edge.
struct Multiple {
  int32_t row;
  uint32_t position;
  int count;
};

// Edges of one row under a Poisson law as bits by position; multiplicities above 1 go to `multiples`.
void DrawPoissonRow(const Call& call, const HeadWork& head, int64_t row, int32_t row_in_block, Worker& worker,
                    uint64_t* bits, std::vector<Multiple>& multiples) {
  const Law law = head.drawn->law;
  const int64_t count = call.kernels->list_row(head.tables, RowOf(head, row), 1.0f, worker.draw, worker.candidates);
  for (int64_t c = 0; c < count; ++c) {
    const Candidate& pair = worker.candidates[c];
    if (!IsEdge(law, pair.uniform, pair.rate)) continue;
    bits[pair.position / 64] |= uint64_t{1} << (pair.position % 64);
    // P(Poisson(p) >= 2) <= p^2 / 2.
    const double p = pair.rate;
    if (law != Law::kPoissonMulti || static_cast<double>(pair.uniform) > 0.50001 * p * p * kPairUniformScale) continue;
    const int parallel = EdgeMultiplicity(pair.uniform, p);
    if (parallel > 1) multiples.push_back({row_in_block, pair.position, parallel});
  }
}

// Lists of the block's bits, with multiplicities.
void ListBlock(const Call& call, const HeadWork& head, int rows, const std::vector<Multiple>& multiples,
               Worker& worker) {
  worker.keys.clear();
  worker.multiplicity.clear();
  size_t next = 0;
  worker.offsets[0] = 0;
  for (int r = 0; r < rows; ++r) {
    const uint64_t* bits = worker.packed_bits + r * head.tables.words;
    const int64_t count = call.kernels->list_bits(bits, head.tables.words, 0, worker.row_keys);
    worker.keys.insert(worker.keys.end(), worker.row_keys, worker.row_keys + count);
    worker.multiplicity.insert(worker.multiplicity.end(), static_cast<size_t>(count), 1.0f);
    const auto begin = worker.keys.begin() + worker.offsets[r];
    for (; next < multiples.size() && multiples[next].row == r; ++next) {
      const int64_t position = multiples[next].position;
      const int32_t key = head.gaps ? head.packed[position] : static_cast<int32_t>(position);
      const auto found = std::lower_bound(begin, worker.keys.end(), key);
      worker.multiplicity[static_cast<size_t>(found - worker.keys.begin())] = static_cast<float>(multiples[next].count);
    }
    worker.offsets[r + 1] = static_cast<int64_t>(worker.keys.size());
  }
}

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

bool IsEdge(Law law, uint64_t uniform, float rate) {
  if (law != Law::kBernoulli) {
    // 1 - exp(-p) to 1e-9 settles almost all; the definition is 19 divisions.
    const double p = rate;
    double sum = 1.0;
    for (int term = 13; term >= 2; --term) sum = 1.0 - p * (1.0 / term) * sum;
    const double distance = static_cast<double>(uniform) - p * sum * kPairUniformScale;
    if (distance > 1e-8 * kPairUniformScale) return false;
    if (distance < -1e-8 * kPairUniformScale) return true;
  }
  return uniform < EdgeThreshold(EdgeProbability(law, rate));
}

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

BlockEdges DrawBlock(const Call& call, const HeadWork& head, int64_t row0, int rows, Worker& worker) {
  const DrawTables& tables = head.tables;
  const int64_t words = tables.words;
  const bool tiles = DrawsByTiles(head, row0, rows);
  const bool plain = !head.gaps && !HasForced(head) && head.drawn->law == Law::kBernoulli;
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
  std::vector<Multiple> multiples;
  if (tiles) {
    for (int r = 0; r < rows; r += kTileRows) {
      call.kernels->draw_tile(tables, block_rows + r, std::min(kTileRows, rows - r), worker.draw, bits + r * words);
    }
    if (plain) return FromBits(call, head, rows, bits);
  } else {
    std::fill(bits, bits + rows * words, 0);
    for (int r = 0; r < rows;) {
      if (head.drawn->law != Law::kBernoulli) {
        DrawPoissonRow(call, head, row0 + r, r, worker, bits + r * words, multiples);
        ++r;
        continue;
      }
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
  BlockEdges edges = FromBits(call, head, rows, worker.packed_bits);
  if (multiples.empty()) return edges;
  ListBlock(call, head, rows, multiples, worker);
  edges.bits = nullptr;
  edges.offsets = worker.offsets;
  edges.keys = worker.keys.data();
  edges.multiplicity = worker.multiplicity.data();
  return edges;
}

}  // namespace edgewise::cpu_attention
