// Edge caps: which drawn edges an allowance keeps (docs/maths.md, "The exact split under a cap"). The age of the first
// edge that is dropped is known to within a percent or so before anything is drawn. Edges that are surely younger are
// kept as they are drawn; only the few edges whose age is near it are compared. So memory follows the allowance. Where
// the guess was wrong, the edges are drawn again with the next guess.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "kernels/cpu/attention/edge_estimate.h"
#include "kernels/cpu/attention/split.h"
#include "kernels/cpu/attention/work.h"
#include "kernels/pattern_count.h"

namespace edgewise::cpu_attention {
namespace {

// Bits of a block take no more memory than lists where a word has so many edges.
constexpr int64_t kManyPerWord = 2;

// One block of rows under a cap.
struct CapBlock {
  const HeadWork* head = nullptr;
  int64_t row0 = 0;
  int rows = 0;
  KeptEdges* kept = nullptr;
  uint64_t settled = 0;        // edges younger than the span, forced ones included: listed in `kept`, or
  std::vector<uint64_t> bits;  // [rows, words], where they are many
  std::vector<ParallelEdge> parallel;
  std::vector<OpenPair> open;
  std::vector<double> ages;  // as open; -1: forced
};

// The blocks under one cap, in the order in which edges of one age are kept.
struct CapWork {
  std::vector<HeadWork*> heads;
  std::vector<CapBlock> blocks;
  uint64_t forced = 0;
  EdgeEstimate estimate;
};

// Moves on the lists of the worker.
void TakeLists(const Worker& worker, int rows, KeptEdges& kept) {
  kept.offsets.assign(worker.offsets, worker.offsets + rows + 1);
  kept.keys.assign(worker.keys.begin(), worker.keys.begin() + worker.offsets[rows]);
}

void DrawCapBlock(const Call& call, float low, float high, Worker& worker, CapBlock& block) {
  const Law law = block.head->drawn->law;
  SplitEdges split = SplitBlock(call, *block.head, block.row0, block.rows, SpanOf(law, low, high), worker);
  const auto count = static_cast<int64_t>(split.count);
  const int64_t words = block.head->tables.words;
  const bool many = split.bits != nullptr && count >= block.rows * words * kManyPerWord;
  block.settled = split.count;
  block.parallel = std::move(split.parallel);
  block.open.clear();
  block.ages.clear();
  for (const OpenPair& pair : split.open) {
    double age = -1.0;
    if (!pair.forced) {
      if (!IsEdge(law, pair.uniform, pair.rate)) continue;
      age = EdgeAge(law, pair.uniform, pair.rate);
      if (high < 1.0f && !(age < static_cast<double>(high))) continue;  // not all of that age are here
    }
    block.open.push_back(pair);
    block.ages.push_back(age);
  }
  block.bits.clear();
  if (many) {
    block.bits.assign(split.bits, split.bits + block.rows * words);
    return;
  }
  if (split.bits != nullptr) ListBits(call, *block.head, block.rows, split.bits, worker);
  block.kept->keys.reserve(static_cast<size_t>(count) + block.open.size());
  TakeLists(worker, block.rows, *block.kept);
}

// A drawn edge in the order in which edges are kept.
using AgedEdge = std::tuple<double, size_t, int32_t, int32_t>;  // age, block, row, key

// Open edges that are not forced.
std::vector<AgedEdge> OpenEdges(const CapWork& work) {
  std::vector<AgedEdge> edges;
  for (size_t b = 0; b < work.blocks.size(); ++b) {
    const CapBlock& block = work.blocks[b];
    for (size_t i = 0; i < block.open.size(); ++i) {
      if (!block.open[i].forced) edges.emplace_back(block.ages[i], b, block.open[i].row, block.open[i].key);
    }
  }
  return edges;
}

// Adds the open edges before `first_dropped` to those that are kept already. `tau`: its age.
void FinishBlock(const Call& call, const AgedEdge& first_dropped, double tau, size_t index, Worker& worker,
                 CapBlock& block) {
  const Law law = block.head->drawn->law;
  std::vector<ParallelEdge> added;
  for (size_t i = 0; i < block.open.size(); ++i) {
    const OpenPair& pair = block.open[i];
    if (!pair.forced && !(AgedEdge(block.ages[i], index, pair.row, pair.key) < first_dropped)) continue;
    const ParallelEdge edge = {pair.row, pair.key, OpenMultiplicity(law, pair, tau)};
    if (!pair.forced) added.push_back(edge);
    if (edge.count > 1) block.parallel.push_back(edge);
  }
  KeptEdges& kept = *block.kept;
  const int64_t words = block.head->tables.words;
  const bool many = !block.bits.empty();
  if (many) {
    InsertEdges(added, words, block.bits.data());
    ListBits(call, *block.head, block.rows, block.bits.data(), worker);
    TakeLists(worker, block.rows, kept);
  } else {
    InsertEdges(added, block.rows, kept.offsets.data(), kept.keys);
  }
  if (!block.parallel.empty()) {
    kept.multiplicity.assign(kept.keys.size(), 1.0f);
    SetMultiplicity(block.parallel, kept.offsets.data(), kept.keys.data(), many ? block.bits.data() : nullptr, words,
                    kept.multiplicity.data());
  }
  block = CapBlock();  // what is needed no longer makes room for the next
}

// Between which ages the first dropped edge is looked for.
struct AgeSpan {
  float low = 0.0f, high = 1.0f;
};

AgeSpan GuessSpan(const EdgeEstimate& estimate, uint64_t allowed) {
  const double edges = static_cast<double>(allowed);
  const double all = estimate.Edges(1.0);
  const double error = all > edges ? edges / all * std::sqrt(estimate.variance()) : std::sqrt(estimate.variance());
  const double room = 5.0 * (std::sqrt(edges) + error) + 32.0;
  return {static_cast<float>(estimate.TauOf(edges - room)), static_cast<float>(estimate.TauOf(edges + room))};
}

// Sets what the cap keeps; true: edges were dropped.
bool KeepYoungest(ThreadPool& pool, std::vector<std::unique_ptr<Worker>>& workers, uint64_t allowed, const Call& call,
                  CapWork& work) {
  const auto blocks = static_cast<int64_t>(work.blocks.size());
  AgeSpan span = GuessSpan(work.estimate, allowed);
  while (true) {
    pool.For(blocks,
             [&](int64_t b, int worker) { DrawCapBlock(call, span.low, span.high, *workers[worker], work.blocks[b]); });
    uint64_t settled = 0;
    for (const CapBlock& block : work.blocks) settled += block.settled;
    settled -= work.forced;
    std::vector<AgedEdge> open = OpenEdges(work);
    const bool drops = settled + open.size() > allowed;
    const double edges = static_cast<double>(allowed);
    AgedEdge first_dropped(INFINITY, 0, 0, 0);
    if (drops && settled <= allowed) {
      const auto place = open.begin() + static_cast<int64_t>(allowed - settled);
      std::nth_element(open.begin(), place, open.end());
      first_dropped = *place;
    }
    const double tau = drops ? std::get<0>(first_dropped) : 1.0;
    if (drops && (settled > allowed || tau < static_cast<double>(span.low))) {
      // More are younger than `low` than may stay.
      const double wanted = std::max(0.0, edges - 6.0 * std::sqrt(edges) - 64.0);
      const double share = std::min(0.8, wanted / static_cast<double>(std::max<uint64_t>(settled, 1)));
      span = {static_cast<float>(share * static_cast<double>(span.low)), span.low};
      continue;
    }
    if (!drops && span.high < 1.0f) {
      // Too few are this young, so that older ones may stay as well.
      const double wanted = 1.1 * (edges + 6.0 * std::sqrt(edges) + 64.0);
      const double share = std::max(1.25, wanted / static_cast<double>(settled + open.size() + 1));
      span = {span.high, static_cast<float>(std::min(1.0, share * static_cast<double>(span.high)))};
      continue;
    }
    pool.For(blocks, [&](int64_t b, int worker) {
      FinishBlock(call, first_dropped, tau, static_cast<size_t>(b), *workers[worker], work.blocks[b]);
    });
    return drops;
  }
}

}  // namespace

bool ApplyCaps(ThreadPool& pool, std::vector<std::unique_ptr<Worker>>& workers, std::span<EdgeCap> caps, bool hopeful,
               Call& call) {
  bool hoped = false;
  std::vector<CapWork> works(caps.size());
  for (HeadWork& head : call.heads) {
    if (head.problem->cap >= 0 && head.drawn == nullptr) {
      works[head.problem->cap].forced += CountHeadEdges(*head.problem, head.head);
    }
    if (!head.capped) continue;
    if (caps[head.problem->cap].max_edges == kNoCap) {
      head.capped = false;
      continue;
    }
    works[head.problem->cap].heads.push_back(&head);
  }
  for (size_t c = 0; c < caps.size(); ++c) {
    CapWork& work = works[c];
    if (work.heads.empty()) continue;
    const uint64_t others = work.forced;
    std::vector<EdgeEstimate> estimates(work.heads.size());
    pool.For(static_cast<int64_t>(work.heads.size()),
             [&](int64_t h, int) { estimates[h] = EdgeEstimate(*work.heads[h]); });
    work.forced = 0;
    for (size_t h = 0; h < work.heads.size(); ++h) {
      work.estimate.Add(estimates[h]);
      work.forced += static_cast<uint64_t>(CountForced(*work.heads[h]));
    }
    const uint64_t taken = others + work.forced;
    const uint64_t allowed = caps[c].max_edges > taken ? caps[c].max_edges - taken : 0;
    const double expected = work.estimate.Edges(1.0);
    const double error = std::sqrt(expected) + std::sqrt(work.estimate.variance());
    if (hopeful && expected + 8.0 * error + 64.0 <= static_cast<double>(allowed)) {
      for (HeadWork* head : work.heads) head->capped = false;
      hoped = true;
      continue;
    }
    for (HeadWork* head : work.heads) {
      for (int64_t b = 0; b < head->blocks(); ++b) {
        const int64_t row0 = b * head->block_rows;
        CapBlock block;
        block.head = head;
        block.row0 = row0;
        block.rows = static_cast<int>(std::min<int64_t>(head->block_rows, head->n - row0));
        block.kept = &call.kept[head->first_block + b];
        work.blocks.push_back(std::move(block));
      }
    }
    caps[c].capped = KeepYoungest(pool, workers, allowed, call, work);
  }
  return hoped;
}

}  // namespace edgewise::cpu_attention
