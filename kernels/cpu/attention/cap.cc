// Edge caps: the drawn edges that an allowance keeps (docs/maths.md, "The exact split under a cap"). The age of the
// first dropped edge is known to within about a percent before any edge is drawn. Edges that are certainly younger are
// kept as they are drawn; only the few edges near that age are compared, and added when their block is attended to. So
// memory follows the allowance. Where the guess was wrong, the edges are drawn again with the next guess.
#include "kernels/cpu/attention/cap.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/container/inlined_vector.h"
#include "kernels/cpu/attention/draw.h"
#include "kernels/cpu/attention/estimate.h"
#include "kernels/host/pattern_count.h"

namespace edgewise::cpu_attention {
namespace {

constexpr int64_t kPairWork = 1;  // nanoseconds to draw a pair, roughly, and at most

AgeSpan GuessSpan(const EdgeEstimate& estimate, uint64_t allowed, uint64_t pairs) {
  const auto edges = static_cast<double>(allowed);
  const double room = 3.0 * estimate.DeviationAt(edges) + 4.0;  // drawing again costs more than open edges, but is rare
  // NaN and infinities tell nothing, and all edges may be many: at this age no more than `edges` + 1 are expected.
  if (!std::isfinite(room + estimate.Edges(1.0))) {
    return {0.0f, static_cast<float>((edges + 1.0) / static_cast<double>(pairs))};
  }
  return {static_cast<float>(estimate.TauOf(edges - room)), static_cast<float>(estimate.TauOf(edges + room))};
}

}  // namespace

// The search of one cap: runs over its blocks that draw between two ages, until the first dropped edge is found between
// them.
struct CapWork {
  EdgeCap* cap = nullptr;
  std::vector<HeadPlan*> heads;
  std::vector<int32_t> blocks;  // of the call, in the order in which edges of one age are kept
  uint64_t forced = 0;
  uint64_t allowed = 0;  // beside the forced edges

  AgeSpan span;
  int runs = 0;
  size_t next = 0;                 // of blocks, in this run
  std::vector<Pile::Place> piles;  // [workers] where this run's memory begins
  bool found = false;
  AgedEdge first_dropped{INFINITY, 0, 0, 0};

  void Reset() {
    heads.clear();
    blocks.clear();
    piles.clear();
    forced = 0;
    runs = 0;
    next = 0;
    found = false;
    first_dropped = {INFINITY, 0, 0, 0};
  }
  // Once all blocks are drawn: sets `found`, or the next span.
  void Look(std::span<const CapBlock> drawn);

 private:
  AgedEdge FindOpenEdge(std::span<const CapBlock> drawn, size_t open, size_t place) const;
};

// The edge at `place` among the `open` ones, in the order in which edges are kept.
AgedEdge CapWork::FindOpenEdge(std::span<const CapBlock> drawn, size_t open, size_t place) const {
  // Ages are counted in equal steps: few edges share a step.
  constexpr uint64_t kMostSteps = 1024;
  std::array<size_t, kMostSteps> count;
  const int steps = static_cast<int>(std::min(open / 4 + 1, kMostSteps));
  std::fill_n(count.begin(), steps, 0);
  const auto low = static_cast<double>(span.low);
  const double scale = steps / std::max(static_cast<double>(span.high) - low, 1e-30);
  const auto step_of = [&](double age) {
    const double step = (age - low) * scale;
    return step > 0.0 ? static_cast<int>(std::min(step, steps - 1.0)) : 0;
  };
  for (const int32_t b : blocks) ForOpenAges(drawn[b], [&](double age) { ++count[step_of(age)]; });
  int step = 0;
  for (; count[step] <= place; ++step) place -= count[step];
  absl::InlinedVector<double, 16> ages;
  ages.reserve(count[step]);
  for (const int32_t b : blocks) {
    ForOpenAges(drawn[b], [&](double age) {
      if (step_of(age) == step) ages.push_back(age);
    });
  }
  std::nth_element(ages.begin(), ages.begin() + static_cast<int64_t>(place), ages.end());
  const double age = ages[place];
  place -= static_cast<size_t>(std::count_if(ages.begin(), ages.end(), [&](double other) { return other < age; }));
  absl::InlinedVector<AgedEdge, 2> same;
  for (const int32_t b : blocks) {
    ForOpenEdges(drawn[b], static_cast<size_t>(b), age, [&](const AgedEdge& edge) { same.push_back(edge); });
  }
  std::sort(same.begin(), same.end());
  return same[place];
}

// It looks at most kMostRuns times. Let N(a) be the number of edges younger than a, which is what every run finds for
// the ends of its span, whatever these are.
//
// A span is too old where N(low) > allowed, and too young where it drops nothing, N(high) <= allowed, and high < 1;
// otherwise it holds the first dropped edge, or high is 1 and none is dropped, and the search ends. After a span that
// is too old the next one ends at its low: N(high) > allowed, so neither it nor any later one is too young. After one
// that is too young the next one begins at its high: N(low) <= allowed, so neither it nor any later one is too old.
// All that fail thus fail in one way. The last span begins at 0 or ends at 1: N(0) = 0 is not above what is allowed,
// and an end at 1 is not too young.
void CapWork::Look(std::span<const CapBlock> drawn) {
  uint64_t certain = 0;
  size_t open = 0;
  for (const int32_t b : blocks) {
    certain += drawn[b].certain;
    ForOpenAges(drawn[b], [&](double) { ++open; });
  }
  certain -= forced;
  const bool drops = certain + open > allowed;
  const bool last = ++runs + 1 == CapSearch::kMostRuns;  // the next one is
  const double edges = static_cast<double>(allowed);
  first_dropped = {INFINITY, 0, 0, 0};
  if (drops && certain <= allowed) first_dropped = FindOpenEdge(drawn, open, allowed - certain);
  const double tau = std::get<0>(first_dropped);
  if (drops && (certain > allowed || tau < static_cast<double>(span.low))) {
    const double wanted = last ? 0.0 : std::max(0.0, edges - 6.0 * std::sqrt(edges) - 64.0);
    const double share = std::min(0.8, wanted / static_cast<double>(std::max<uint64_t>(certain, 1)));
    span = {static_cast<float>(share * static_cast<double>(span.low)), span.low};
  } else if (!drops && span.high < 1.0f) {
    const double wanted = 1.1 * (edges + 6.0 * std::sqrt(edges) + 64.0);
    const double share = std::max(1.25, wanted / static_cast<double>(certain + open + 1));
    const double high = last ? 1.0 : std::min(1.0, share * static_cast<double>(span.high));
    span = {span.high, static_cast<float>(high)};
  } else {
    found = true;
    cap->capped = drops;
  }
}

CapSearch::CapSearch() = default;
CapSearch::CapSearch(CapSearch&&) noexcept = default;
CapSearch& CapSearch::operator=(CapSearch&&) noexcept = default;
CapSearch::~CapSearch() = default;

void CapSearch::ReleaseAbove(size_t bytes) {
  size_t kept = blocks_.capacity() * sizeof(CapBlock) + works_.capacity() * sizeof(CapWork);
  for (const CapWork& work : works_) {
    kept += (work.heads.capacity() + work.blocks.capacity() + work.piles.capacity()) * sizeof(Pile::Place);  // or less
  }
  if (kept > bytes) *this = {};
  blocks_.clear();
  caps_ = next_ = 0;
}

void CapSearch::Start(ThreadPool& pool, std::span<EdgeCap> caps, bool optimistic, Call& call) {
  caps_ = caps.size();
  next_ = 0;
  unchecked_ = false;
  if (caps.empty()) return;
  if (works_.size() < caps_) works_.resize(caps_);
  for (size_t c = 0; c < caps_; ++c) works_[c].Reset();
  blocks_.clear();
  for (HeadPlan& head : call.heads) {
    if (head.problem->cap >= 0 && head.drawn == nullptr) {
      works_[head.problem->cap].forced += CountHeadEdges(*head.problem, head.index);
    }
    if (!head.capped || caps[head.problem->cap].keep != CapRule::kRandom) continue;
    if (caps[head.problem->cap].max_edges == kNoCap) {
      head.capped = false;
      continue;
    }
    works_[head.problem->cap].heads.push_back(&head);
  }
  for (size_t c = 0; c < caps.size(); ++c) {
    CapWork& work = works_[c];
    if (work.heads.empty()) continue;
    work.cap = &caps[c];
    const uint64_t others = work.forced;
    work.forced = 0;
    uint64_t pairs = 0;
    for (const HeadPlan* head : work.heads) {
      work.forced += CountForced(*head, 0, head->n);
      pairs += static_cast<uint64_t>(head->n) * static_cast<uint64_t>(head->n);
    }
    const uint64_t taken = others + work.forced;
    work.allowed = caps[c].max_edges > taken ? caps[c].max_edges - taken : 0;
    const bool binds = work.allowed < pairs - work.forced;
    const EdgeEstimate estimate = binds ? EstimateHeads(pool, *call.kernels, work.heads) : EdgeEstimate();
    if (!binds || (optimistic && estimate.IsSlack(static_cast<double>(work.allowed)))) {
      for (HeadPlan* head : work.heads) head->capped = false;
      unchecked_ |= binds;
      continue;
    }
    work.span = GuessSpan(estimate, work.allowed, pairs);
    blocks_.resize(call.block_head.size());
    for (const HeadPlan* head : work.heads) {
      for (int64_t b = 0; b < head->blocks(); ++b) {
        work.blocks.push_back(static_cast<int32_t>(head->first_block + b));
        CapBlock& block = blocks_[work.blocks.back()];
        block.head = head;
        block.row0 = b * head->block_rows;
        block.rows = static_cast<int>(std::min<int64_t>(head->block_rows, head->n - block.row0));
      }
    }
  }
  SkipIdle();
}

void CapSearch::SkipIdle() {
  while (next_ < caps_ && works_[next_].blocks.empty()) ++next_;
}

bool CapSearch::done() const { return next_ == caps_; }

int64_t CapSearch::blocks() const { return static_cast<int64_t>(works_[next_].blocks.size()); }

void CapSearch::Next(ThreadPool& pool, std::span<Worker> workers, int64_t blocks, const Call& call) {
  CapWork& work = works_[next_];
  const size_t first = work.next;
  if (first == 0) {  // what an earlier run of this search kept is not needed
    for (size_t w = work.piles.size(); w < workers.size(); ++w) work.piles.push_back(workers[w].kept.place());
    for (size_t w = 0; w < workers.size(); ++w) workers[w].kept.DropFrom(work.piles[w]);
  }
  work.next = std::min(work.blocks.size(), first + static_cast<size_t>(blocks));
  int64_t pairs = 0;
  for (size_t b = first; b < work.next; ++b) pairs += blocks_[work.blocks[b]].rows * blocks_[work.blocks[b]].head->n;
  pool.For(static_cast<int64_t>(work.next - first), pairs * kPairWork, [&](int64_t i, int worker) {
    DrawCapBlock(call, work.span, workers[worker], blocks_[work.blocks[first + static_cast<size_t>(i)]]);
  });
  if (work.next < work.blocks.size()) return;
  work.next = 0;
  work.Look(blocks_);
  if (!work.found) return;
  ++next_;
  SkipIdle();
}

BlockEdges CapSearch::Take(const Call& call, int64_t block, Worker& worker) {
  const CapWork& work = works_[call.HeadOf(block).problem->cap];
  return FinishCapBlock(call, work.first_dropped, static_cast<size_t>(block), worker, blocks_[block]);
}

}  // namespace edgewise::cpu_attention
