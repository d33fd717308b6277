#include "kernels/cpu/attention/split.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>

namespace edgewise::cpu_attention {
namespace {

constexpr double kManyShare = 0.22;

const SplitKernels& SplitKernelsOf(const AttentionKernels& kernels) {
#if defined(__x86_64__)
  if (&kernels == &Avx512AttentionKernels()) return Avx512SplitKernels();
  if (&kernels == &Avx2AttentionKernels()) return Avx2SplitKernels();
#endif
  (void)kernels;
  return GenericSplitKernels();
}

bool IsForced(const HeadWork& head, int64_t row, int64_t position) {
  const int64_t reach = std::max(head.drawn->local_window, 0) / 2;
  return HasForced(head) && std::abs(position - static_cast<int64_t>(head.position(row))) <= reach;
}

// Kernels write to plain memory; what they wrote is moved on after every call.
class Collector {
 public:
  Collector(const HeadWork& head, int64_t row0, const DrawSpan& span, int64_t capacity, SplitEdges& out)
      : head_(head), row0_(row0), out_(out), open_(new OpenPair[static_cast<size_t>(capacity)]) {
    if (span.parallel) parallel_.reset(new ParallelEdge[static_cast<size_t>(capacity)]);
    drop_forced_ = !span.parallel;
    lists.open = open_.get();
    lists.parallel = parallel_.get();
  }

  void Collect() {
    for (int64_t i = 0; head_.gaps && i < lists.parallels; ++i) lists.parallel[i].key = Index(lists.parallel[i].key);
    out_.parallel.insert(out_.parallel.end(), lists.parallel, lists.parallel + lists.parallels);
    for (int64_t i = 0; i < lists.opens; ++i) {
      OpenPair& pair = lists.open[i];
      pair.forced = IsForced(head_, row0_ + pair.row, pair.key);
      if (pair.forced && drop_forced_) continue;
      pair.key = Index(pair.key);
      out_.open.push_back(pair);
    }
    lists.parallels = lists.opens = 0;
  }

  SplitLists lists;

 private:
  int32_t Index(int32_t position) const { return head_.gaps ? head_.packed[position] : position; }

  const HeadWork& head_;
  int64_t row0_;
  bool drop_forced_ = false;
  SplitEdges& out_;
  std::unique_ptr<OpenPair[]> open_;
  std::unique_ptr<ParallelEdge[]> parallel_;
};

}  // namespace

bool HasManyEdges(const HeadWork& head, int64_t row0, int rows, float tau) {
  double sum = 0.0;
  for (int64_t r = row0; r < row0 + rows; ++r) sum += static_cast<double>(head.query_bound[r]);
  const double pairs = static_cast<double>(rows) * static_cast<double>(head.n);
  const double share = sum * head.bound_sum / pairs + static_cast<double>(head.drawn->exploration);
  return static_cast<double>(tau) * share >= kManyShare;
}

bool CanDrawTiles(const HeadWork& head, int64_t row0, int rows) {
  const DrawTables& tables = head.tables;
  if (tables.y_tiles == nullptr || tables.rank > kMaxRank) return false;
  float norm = 0.0f;
  for (int64_t r = row0; r < row0 + rows; ++r) {
    float square = 0.0f;
    for (int t = 0; t < tables.rank; ++t) square += head.x[r * tables.rank + t] * head.x[r * tables.rank + t];
    norm = std::max(norm, square);
  }
  // Beyond, p~ would be too far from p.
  return TileEpsilon(tables.rank, std::sqrt(norm) * 1.0001f * tables.key_norm) < 0.25f;
}

DrawSpan SpanOf(Law law, float low, float high) {
  return {law != Law::kBernoulli, law == Law::kPoissonMulti, low, high};
}

SplitEdges SplitBlock(const Call& call, const HeadWork& head, int64_t row0, int rows, const DrawSpan& span,
                      Worker& worker) {
  const SplitKernels& kernels = SplitKernelsOf(*call.kernels);
  const DrawTables& tables = head.tables;
  const int64_t words = tables.words;
  const bool many = HasManyEdges(head, row0, rows, span.high);
  const bool tiles = many && CanDrawTiles(head, row0, rows);
  const bool by_index = !head.gaps && !HasForced(head);
  const bool lists = by_index && !many;
  DrawRow block_rows[kBlockRows];
  for (int r = 0; r < rows; ++r) block_rows[r] = RowOf(head, row0 + r);
  SplitEdges split;
  Collector collector(head, row0, span, worker.draw.capacity, split);
  uint64_t* bits = worker.position_bits;
  if (tiles) {
    for (int r = 0; r < rows; r += kTileRows) {
      kernels.split_tile(tables, span, block_rows + r, std::min(kTileRows, rows - r), worker.draw, bits + r * words, r,
                         collector.lists);
      collector.Collect();
    }
  } else {
    if (!lists) std::fill(bits, bits + rows * words, 0);
    worker.offsets[0] = 0;
    for (int r = 0; r < rows;) {
      const int64_t used = lists ? worker.offsets[r] : 0;
      const int64_t room = used + head.columns + kDrawGroup + 64;
      if (static_cast<int64_t>(worker.keys.size()) < room) worker.keys.resize(static_cast<size_t>(room + used));
      int32_t* keys = worker.keys.data() + used;
      int64_t ends[kBlockRows];
      const int drawn =
          kernels.split_rows(tables, span, block_rows + r, rows - r, worker.draw, keys, ends, r, collector.lists);
      collector.Collect();
      int64_t e = 0;
      for (int i = 0; i < drawn; ++i, ++r) {
        worker.offsets[r + 1] = used + ends[i];
        if (lists) continue;
        for (; e < ends[i]; ++e) bits[r * words + keys[e] / 64] |= uint64_t{1} << (keys[e] % 64);
      }
    }
    if (lists) {
      split.count = static_cast<uint64_t>(worker.offsets[rows]);
      return split;
    }
  }
  split.bits = bits;
  if (!by_index) {
    split.bits = worker.packed_bits;
    for (int r = 0; r < rows; ++r) {
      if (HasForced(head)) AddForced(head, row0 + r, bits + r * words);
      PackBits(head, bits + r * words, worker.packed_bits + r * words);
    }
  }
  split.count = static_cast<uint64_t>(call.kernels->count_bits(split.bits, rows * words));
  return split;
}

void ListBits(const Call& call, const HeadWork& head, int rows, const uint64_t* bits, Worker& worker) {
  const int64_t words = head.tables.words;
  worker.offsets[0] = 0;
  for (int r = 0; r < rows; ++r) {
    const int64_t used = worker.offsets[r];
    const int64_t room = used + head.columns + 64;
    if (static_cast<int64_t>(worker.keys.size()) < room) worker.keys.resize(static_cast<size_t>(room + used));
    worker.offsets[r + 1] = used + call.kernels->list_bits(bits + r * words, words, 0, worker.keys.data() + used);
  }
}

int OpenMultiplicity(Law law, const OpenPair& pair, double tau) {
  const double rate = tau * static_cast<double>(pair.rate);
  return law == Law::kPoissonMulti && rate > 0.0 ? std::max(1, EdgeMultiplicity(pair.uniform, rate)) : 1;
}

void InsertEdges(std::span<const ParallelEdge> added, int rows, int64_t* offsets, std::vector<int32_t>& keys) {
  if (added.empty()) return;
  int64_t more = static_cast<int64_t>(added.size());
  if (static_cast<int64_t>(keys.size()) < offsets[rows] + more) {
    keys.resize(static_cast<size_t>(offsets[rows] + more));
  }
  // From the end, so that nothing is overwritten before it has moved; done where nothing is left to add.
  for (int r = rows - 1; r >= 0 && more > 0; --r) {
    int64_t from = offsets[r + 1];
    offsets[r + 1] += more;
    int64_t to = offsets[r + 1];
    while (more > 0 && added[more - 1].row == r) {
      const int32_t key = added[more - 1].key;
      while (from > offsets[r] && keys[from - 1] > key) keys[--to] = keys[--from];
      keys[--to] = key;
      --more;
    }
    if (more > 0) std::copy_backward(keys.begin() + offsets[r], keys.begin() + from, keys.begin() + to);
  }
}

void InsertEdges(std::span<const ParallelEdge> added, int64_t words, uint64_t* bits) {
  for (const ParallelEdge& edge : added) bits[edge.row * words + edge.key / 64] |= uint64_t{1} << (edge.key % 64);
}

void SetMultiplicity(std::span<const ParallelEdge> parallel, const int64_t* offsets, const int32_t* keys,
                     const uint64_t* bits, int64_t words, float* multiplicity) {
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
    const uint64_t* row_bits = bits + row * words;
    for (; word < edge.key / 64; ++word) before += std::popcount(row_bits[word]);
    const uint64_t below = row_bits[word] & ((uint64_t{1} << (edge.key % 64)) - 1);
    multiplicity[before + std::popcount(below)] = static_cast<float>(edge.count);
  }
}

}  // namespace edgewise::cpu_attention
