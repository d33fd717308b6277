// Edge caps: which drawn edges an allowance keeps (kernels.md T6). Only edges younger than an age tau0 at which a
// little more than the allowance is expected are drawn and stored, so memory follows the allowance; where that turns
// out to be too young, it is drawn again with more.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <new>

#include "kernels/cpu/attention_work.h"

namespace edgewise::cpu_attention {
namespace {

struct AgedEdge {
  int32_t row;  // in its block
  int32_t key;
  double age;  // -1: forced
};

// The heads under one cap.
struct CapWork {
  std::vector<int32_t> heads;
  std::vector<std::pair<int32_t, int64_t>> blocks;  // head, block of the call
  uint64_t forced = 0;
  double expected = 0.0;  // edges, about
};

// <sum of x, sum of y> + exploration * n^2: the mean number of edges where no rate is clamped.
double MeanEdges(const HeadWork& head) {
  const int rank = head.tables.rank;
  std::vector<double> x(static_cast<size_t>(rank)), y(static_cast<size_t>(rank));
  for (int64_t r = 0; r < head.n; ++r) {
    for (int t = 0; t < rank; ++t) {
      x[t] += head.x[r * rank + t];
      y[t] += head.tables.y[r * rank + t];
    }
  }
  double sum = 0.0;
  for (int t = 0; t < rank; ++t) sum += x[t] * y[t];
  const double n = static_cast<double>(head.n);
  return std::max(sum, 0.0) + static_cast<double>(head.tables.exploration) * n * n;
}

// Edges of a block younger than tau, ascending by row and key, forced ones included.
void DrawAged(const Call& call, const HeadWork& head, int64_t row0, int rows, double tau, Worker& worker,
              std::vector<AgedEdge>& out) {
  const Law law = head.drawn->law;
  const bool forced = HasForced(head);
  const int64_t words = head.tables.words;
  for (int r = 0; r < rows; ++r) {
    uint64_t* bits = worker.position_bits;
    if (forced) {
      std::fill(bits, bits + words, 0);
      AddForced(head, row0 + r, bits);
    }
    const size_t first = out.size();
    const int64_t count = call.kernels->list_row(head.tables, RowOf(head, row0 + r), static_cast<float>(tau),
                                                 worker.draw, worker.candidates);
    for (int64_t c = 0; c < count; ++c) {
      const Candidate& pair = worker.candidates[c];
      const uint32_t position = pair.position;
      if (forced && (bits[position / 64] >> (position % 64) & 1) != 0) continue;
      if (!IsEdge(law, pair.uniform, pair.rate)) continue;
      const double age = EdgeAge(law, pair.uniform, pair.rate);
      if (tau < 1.0 && !(age < tau)) continue;
      out.push_back({r, head.gaps ? head.packed[position] : static_cast<int32_t>(position), age});
    }
    if (!forced) continue;
    PackBits(head, bits, worker.packed_bits);
    const size_t drawn = out.size();
    const int64_t kept = call.kernels->list_bits(worker.packed_bits, words, 0, worker.row_keys);
    for (int64_t e = 0; e < kept; ++e) out.push_back({r, worker.row_keys[e], -1.0});
    std::inplace_merge(out.begin() + static_cast<int64_t>(first), out.begin() + static_cast<int64_t>(drawn), out.end(),
                       [](const AgedEdge& a, const AgedEdge& b) { return a.key < b.key; });
  }
}

// Edges of one cap, block by block.
std::vector<std::vector<AgedEdge>> DrawCap(ThreadPool& pool, std::vector<std::unique_ptr<Worker>>& workers,
                                           const CapWork& work, double tau, const Call& call) {
  std::vector<std::vector<AgedEdge>> edges(work.blocks.size());
  std::atomic<bool> failed = false;
  pool.For(static_cast<int64_t>(work.blocks.size()), [&](int64_t i, int worker) {
    const HeadWork& head = call.heads[work.blocks[i].first];
    const int64_t row0 = (work.blocks[i].second - head.first_block) * head.block_rows;
    try {
      DrawAged(call, head, row0, static_cast<int>(std::min<int64_t>(head.block_rows, head.n - row0)), tau,
               *workers[worker], edges[i]);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
  });
  if (failed) throw std::bad_alloc();
  return edges;
}

// Which edges stay: those younger than `age`, and the first `ties` of exactly that age in order.
struct Limit {
  bool dropped = false;
  double age = 0.0;
  uint64_t ties = 0;
  double tau = 1.0;  // age of the first edge dropped
};

Limit FindLimit(const std::vector<std::vector<AgedEdge>>& edges, uint64_t allowed) {
  std::vector<double> ages;
  size_t total = 0;
  for (const auto& block : edges) total += block.size();
  ages.reserve(total);
  for (const auto& block : edges) {
    for (const AgedEdge& edge : block) {
      if (edge.age >= 0.0) ages.push_back(edge.age);
    }
  }
  Limit limit;
  if (ages.size() <= allowed) return limit;
  // The first dropped edge is number `allowed` in the order; those before it stay.
  const auto first_dropped = ages.begin() + static_cast<int64_t>(allowed);
  std::nth_element(ages.begin(), first_dropped, ages.end());
  limit.dropped = true;
  limit.age = limit.tau = *first_dropped;
  uint64_t younger = 0;
  for (auto it = ages.begin(); it != first_dropped; ++it) younger += *it < limit.age ? 1 : 0;
  limit.ties = allowed - younger;
  return limit;
}

void Keep(const Call& call, const CapWork& work, const std::vector<std::vector<AgedEdge>>& edges, Limit limit,
          std::vector<KeptEdges>& kept) {
  for (size_t i = 0; i < work.blocks.size(); ++i) {
    const HeadWork& head = call.heads[work.blocks[i].first];
    const int64_t row0 = (work.blocks[i].second - head.first_block) * head.block_rows;
    const int rows = static_cast<int>(std::min<int64_t>(head.block_rows, head.n - row0));
    KeptEdges& block = kept[work.blocks[i].second];
    block.offsets.assign(static_cast<size_t>(rows) + 1, 0);
    const bool multi = head.drawn->law == Law::kPoissonMulti;
    bool parallel = false;
    for (const AgedEdge& edge : edges[i]) {
      if (limit.dropped && edge.age >= limit.age) {
        if (edge.age > limit.age || limit.ties == 0) continue;
        --limit.ties;
      }
      block.keys.push_back(edge.key);
      ++block.offsets[static_cast<size_t>(edge.row) + 1];
      if (!multi) continue;
      const int64_t row = row0 + edge.row;
      const RandomKey& key = head.drawn->key;
      const uint64_t uniform =
          PairUniform(key, static_cast<uint32_t>(head.head), head.position(row), head.position(edge.key));
      const double rate = limit.tau * static_cast<double>(RateOf(head, row, edge.key));
      const int count = rate > 0.0 ? std::max(1, EdgeMultiplicity(uniform, rate)) : 1;
      parallel |= count > 1;
      block.multiplicity.push_back(static_cast<float>(count));
    }
    for (int r = 0; r < rows; ++r) block.offsets[r + 1] += block.offsets[r];
    if (!parallel) block.multiplicity.clear();  // as a block drawn without a cap has it
  }
}

}  // namespace

bool ApplyCaps(ThreadPool& pool, std::vector<std::unique_ptr<Worker>>& workers, std::span<EdgeCap> caps, bool hopeful,
               Call& call) {
  bool hoped = false;
  std::vector<CapWork> works(caps.size());
  for (size_t i = 0; i < call.heads.size(); ++i) {
    HeadWork& head = call.heads[i];
    if (head.problem->cap >= 0 && head.drawn == nullptr) {  // drops nothing, but uses the allowance
      works[head.problem->cap].forced += head.given != nullptr
                                             ? head.given->keys.size()
                                             : static_cast<uint64_t>(head.n) * static_cast<uint64_t>(head.n);
    }
    if (!head.capped) continue;
    if (caps[head.problem->cap].max_edges == kNoCap) {
      head.capped = false;
      continue;
    }
    CapWork& work = works[head.problem->cap];
    work.heads.push_back(static_cast<int32_t>(i));
    for (int64_t b = 0; b < head.blocks(); ++b) work.blocks.emplace_back(static_cast<int32_t>(i), head.first_block + b);
    work.forced += static_cast<uint64_t>(CountForced(head));
    work.expected += MeanEdges(head);
  }
  for (size_t c = 0; c < caps.size(); ++c) {
    const CapWork& work = works[c];
    if (work.heads.empty()) continue;
    const uint64_t allowed = caps[c].max_edges > work.forced ? caps[c].max_edges - work.forced : 0;
    if (hopeful && work.expected + 8.0 * std::sqrt(work.expected) + 64.0 <= static_cast<double>(allowed)) {
      for (int32_t head : work.heads) call.heads[head].capped = false;
      hoped = true;
      continue;
    }
    const double wanted = static_cast<double>(allowed) + 6.0 * std::sqrt(static_cast<double>(allowed)) + 64.0;
    double tau = work.expected > wanted ? wanted / work.expected : 1.0;
    while (true) {
      const std::vector<std::vector<AgedEdge>> edges = DrawCap(pool, workers, work, tau, call);
      const Limit limit = FindLimit(edges, allowed);
      if (!limit.dropped && tau < 1.0) {
        // Too few are this young, so that older ones may stay as well: the estimate was too high.
        uint64_t found = 0;
        for (const auto& block : edges) found += block.size();
        tau = found > 0 && 2.0 * tau < 1.0
                  ? std::min(1.0, 1.25 * tau * std::max(1.0, wanted / static_cast<double>(found)))
                  : 1.0;
        continue;
      }
      Keep(call, work, edges, limit, call.kept);
      caps[c].capped = limit.dropped;
      break;
    }
  }
  return hoped;
}

}  // namespace edgewise::cpu_attention
