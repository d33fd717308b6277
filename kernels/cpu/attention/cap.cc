// Edge caps: the drawn edges that an allowance keeps (docs/maths.md, "The exact split under a cap"). The age of the
// first dropped edge is known to within about a percent before any edge is drawn. Edges that are certainly younger are
// kept as they are drawn; only the few edges near that age are compared. So memory follows the allowance. Where the
// guess was wrong, the edges are drawn again with the next guess.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "kernels/cpu/attention/draw.h"
#include "kernels/cpu/attention/estimate.h"
#include "kernels/cpu/attention/events.h"
#include "kernels/cpu/attention/work.h"
#include "kernels/pattern_count.h"

namespace edgewise::cpu_attention {
namespace {

// Where a word has this many edges on average, bits take no more memory than lists.
constexpr int64_t kManyPerWord = 2;

// One block of rows under a cap. Arrays are in Worker::kept.
struct CapBlock {
  const Head* head = nullptr;
  int64_t row0 = 0;
  int rows = 0;
  BlockEdges* kept = nullptr;  // of the call
  // Edges younger than the span, forced ones included, as bits or as lists with room for the open edges.
  uint64_t certain = 0;
  uint64_t* bits = nullptr;    // [rows, words], or
  int64_t* offsets = nullptr;  // [rows + 1] into
  int32_t* keys = nullptr;
  std::span<OpenPair> open;  // pairs that are edges, and
  double* ages = nullptr;    // as open; -1: forced. Or
  std::span<OpenEvent> events;
  std::vector<ParallelEdge> parallel;
};

// Ages of events as ticks of 2^-31: an event is younger than tau iff it has fewer ticks.
uint32_t TicksOf(double tau) { return static_cast<uint32_t>(std::ceil(tau * 0x1p31)); }
double AgeOf(const OpenEvent& event) { return static_cast<double>(event.age) * 0x1p-31; }

// The ages between which the first dropped edge is looked for.
struct AgeSpan {
  float low = 0.0f, high = 1.0f;
};

// Takes the open pairs that are edges with an age in the span.
void TakeOpenPairs(const AgeSpan& span, Worker& worker, CapBlock& block) {
  const std::vector<OpenPair>& drawn = worker.drawn.open;
  const Law law = block.head->drawn->law;
  block.open = {worker.kept.Take<OpenPair>(static_cast<int64_t>(drawn.size())), drawn.size()};
  block.ages = worker.kept.Take<double>(static_cast<int64_t>(drawn.size()));
  size_t size = 0;
  for (const OpenPair& pair : drawn) {
    double age = -1.0;
    if (!pair.forced) {
      if (!IsEdge(law, pair.uniform, pair.rate)) continue;
      age = EdgeAge(law, pair.uniform, pair.rate);
      if (span.high < 1.0f && !(age < static_cast<double>(span.high))) continue;  // not all edges of that age are here
    }
    block.open[size] = pair;
    block.ages[size++] = age;
  }
  block.open = block.open.first(size);
}

// Copies the worker's lists.
void TakeLists(const EdgeLists& lists, int64_t more, Worker& worker, CapBlock& block) {
  const int64_t count = lists.offsets[block.rows];
  block.offsets = worker.kept.Take<int64_t>(block.rows + 1);
  block.keys = worker.kept.Take<int32_t>(count + more);
  std::copy_n(lists.offsets.data(), block.rows + 1, block.offsets);
  std::copy_n(lists.keys.data(), count, block.keys);
}

void DrawCapBlock(const Call& call, const AgeSpan& span, Worker& worker, CapBlock& block) {
  const Head& head = *block.head;
  DrawnBlock& drawn = worker.drawn;
  block.open = {};
  block.events = {};
  block.bits = nullptr;
  if (head.by_events) {
    const auto ticks = [](float tau) { return TicksOf(std::min(1.0, static_cast<double>(tau))); };
    DrawEventBlock(call, head, block.row0, block.rows, {ticks(span.low), ticks(span.high)}, worker);
    const size_t events = drawn.events.size();
    block.events = {worker.kept.Take<OpenEvent>(static_cast<int64_t>(events)), events};
    std::copy(drawn.events.begin(), drawn.events.end(), block.events.begin());
  } else {
    DrawBlock(call, head, block.row0, block.rows, SpanOf(head.drawn->law, span.low, span.high), worker);
    TakeOpenPairs(span, worker, block);
  }
  block.certain = drawn.count;
  block.parallel = std::move(drawn.parallel);
  const int64_t words = head.tables.words;
  if (drawn.bits != nullptr) {
    if (static_cast<int64_t>(drawn.count) >= block.rows * words * kManyPerWord) {
      block.bits = worker.kept.Take<uint64_t>(block.rows * words);
      std::copy_n(drawn.bits, block.rows * words, block.bits);
      return;
    }
    ListBits(call, head, block.rows, drawn.bits, worker.lists);
  }
  TakeLists(worker.lists, static_cast<int64_t>(block.open.size() + block.events.size()), worker, block);
}

// A drawn edge in the order in which edges are kept.
using AgedEdge = std::tuple<double, size_t, int32_t, int32_t>;  // age, block, row, key

// Adds the open events before `first_dropped`, whose age is tau, to the certain ones.
void AddOpenEvents(const AgedEdge& first_dropped, double tau, size_t index, Worker& worker, CapBlock& block) {
  std::vector<ParallelEdge>& added = worker.added;
  added.clear();
  for (auto event = block.events.begin(); event < block.events.end();) {
    ParallelEdge edge = {event->row, event->key, event->before};
    bool known = true;
    do {
      const double age = AgeOf(*event);
      const bool keeps = event->known ? age < tau : AgedEdge(age, index, edge.row, edge.key) < first_dropped;
      known &= event->known || !keeps;
      edge.count += keeps ? 1 : 0;
      ++event;
    } while (event < block.events.end() && event->row == edge.row && event->key == edge.key);
    if (!known) added.push_back(edge);
    if (edge.count > 1) block.parallel.push_back(edge);
  }
  InsertEdges(added, block.rows, block.offsets, block.keys);
}

// Adds the open edges before `first_dropped`, whose age is tau, to the certain ones.
void FinishBlock(const Call& call, const AgedEdge& first_dropped, double tau, size_t index, Worker& worker,
                 CapBlock& block) {
  const Head& head = *block.head;
  if (head.by_events) {
    AddOpenEvents(first_dropped, tau, index, worker, block);
  } else {
    size_t size = 0;
    for (size_t i = 0; i < block.open.size(); ++i) {
      const OpenPair pair = block.open[i];
      if (!pair.forced && !(AgedEdge(block.ages[i], index, pair.row, pair.key) < first_dropped)) continue;
      block.open[size++] = pair;
      block.certain += pair.forced ? 0 : 1;
    }
    AddOpenPairs(head, block.rows, block.open.first(size), tau, block.bits, block.offsets, block.keys, block.parallel,
                 worker.added);
  }
  BlockEdges& kept = *block.kept;
  kept = {};
  kept.bits = block.bits;
  kept.count = block.certain;
  if (block.bits != nullptr && !block.parallel.empty()) {
    ListBits(call, head, block.rows, block.bits, worker.lists);
    TakeLists(worker.lists, 0, worker, block);
  }
  if (block.bits == nullptr || !block.parallel.empty()) {
    kept.offsets = block.offsets;
    kept.keys = block.keys;
    kept.count = static_cast<uint64_t>(block.offsets[block.rows]);
  }
  if (block.parallel.empty()) return;
  auto* const multiplicity = worker.kept.Take<float>(static_cast<int64_t>(kept.count));
  SetMultiplicity(head, block.rows, block.parallel, block.bits, kept.offsets, kept.keys, multiplicity);
  kept.multiplicity = multiplicity;
}

AgeSpan GuessSpan(const EdgeEstimate& estimate, uint64_t allowed) {
  const double edges = static_cast<double>(allowed);
  const double all = estimate.Edges(1.0);
  const double error = all > edges ? edges / all * std::sqrt(estimate.variance()) : std::sqrt(estimate.variance());
  const double room = 3.0 * (std::sqrt(edges) + error) + 16.0;  // drawing again costs more than open edges, but is rare
  return {static_cast<float>(estimate.TauOf(edges - room)), static_cast<float>(estimate.TauOf(edges + room))};
}

}  // namespace

// The search of one cap: runs over its blocks that draw between two ages, until the first dropped edge is found between
// them, and a last run that keeps the edges before it.
struct CapWork {
  EdgeCap* cap = nullptr;
  std::vector<Head*> heads;
  std::vector<CapBlock> blocks;  // in the order in which edges of one age are kept
  uint64_t forced = 0;
  uint64_t allowed = 0;  // beside the forced edges
  EdgeEstimate estimate;

  AgeSpan span;
  size_t next = 0;                 // block of this run
  std::vector<Pile::Place> piles;  // [workers] where this run's memory begins
  bool found = false;
  AgedEdge first_dropped{INFINITY, 0, 0, 0};
  double tau = 1.0;

  // Once all blocks are drawn: sets `found`, or the next span.
  void Look();
};

namespace {

// Calls use(edge) for each open edge that is not forced.
template <typename Use>
void ForOpenEdges(const std::vector<CapBlock>& blocks, const Use& use) {
  for (size_t b = 0; b < blocks.size(); ++b) {
    const CapBlock& block = blocks[b];
    for (size_t i = 0; i < block.open.size(); ++i) {
      if (!block.open[i].forced) use(AgedEdge(block.ages[i], b, block.open[i].row, block.open[i].key));
    }
    for (const OpenEvent& event : block.events) {
      if (!event.known) use(AgedEdge(AgeOf(event), b, event.row, event.key));
    }
  }
}

// The edge at `place` in the order in which edges are kept. `ages`: of all open edges.
AgedEdge FindOpenEdge(const std::vector<CapBlock>& blocks, std::vector<double> ages, size_t place) {
  const auto at = ages.begin() + static_cast<int64_t>(place);
  std::nth_element(ages.begin(), at, ages.end());
  const double age = *at;
  const auto younger = std::count_if(ages.begin(), at, [&](double other) { return other < age; });
  std::vector<AgedEdge> same;
  ForOpenEdges(blocks, [&](const AgedEdge& edge) {
    if (std::get<0>(edge) == age) same.push_back(edge);
  });
  std::sort(same.begin(), same.end());
  return same[place - static_cast<size_t>(younger)];
}

}  // namespace

void CapWork::Look() {
  uint64_t certain = 0;
  for (const CapBlock& block : blocks) certain += block.certain;
  certain -= forced;
  std::vector<double> open;  // ages
  ForOpenEdges(blocks, [&](const AgedEdge& edge) { open.push_back(std::get<0>(edge)); });
  const bool drops = certain + open.size() > allowed;
  const double edges = static_cast<double>(allowed);
  if (drops && certain <= allowed) {
    first_dropped = FindOpenEdge(blocks, open, allowed - certain);
  }
  tau = drops ? std::get<0>(first_dropped) : 1.0;
  if (drops && (certain > allowed || tau < static_cast<double>(span.low))) {
    // More edges are younger than `low` than may stay.
    const double wanted = std::max(0.0, edges - 6.0 * std::sqrt(edges) - 64.0);
    const double share = std::min(0.8, wanted / static_cast<double>(std::max<uint64_t>(certain, 1)));
    span = {static_cast<float>(share * static_cast<double>(span.low)), span.low};
  } else if (!drops && span.high < 1.0f) {
    // Fewer edges are younger than `high` than may stay.
    const double wanted = 1.1 * (edges + 6.0 * std::sqrt(edges) + 64.0);
    const double share = std::max(1.25, wanted / static_cast<double>(certain + open.size() + 1));
    span = {span.high, static_cast<float>(std::min(1.0, share * static_cast<double>(span.high)))};
  } else {
    found = true;
    cap->capped = drops;
    return;
  }
  first_dropped = {INFINITY, 0, 0, 0};
}

CapSearch::CapSearch() = default;
CapSearch::~CapSearch() = default;

void CapSearch::Start(ThreadPool& pool, std::span<EdgeCap> caps, bool optimistic, Call& call) {
  works_.clear();
  next_ = 0;
  unchecked_ = false;
  if (caps.empty()) return;
  works_.resize(caps.size());
  for (Head& head : call.heads) {
    if (head.problem->cap >= 0 && head.drawn == nullptr) {
      works_[head.problem->cap].forced += CountHeadEdges(*head.problem, head.index);
    }
    if (!head.capped || caps[head.problem->cap].keep != KeepRule::kRandom) continue;
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
    std::vector<EdgeEstimate> estimates(work.heads.size());
    pool.For(static_cast<int64_t>(work.heads.size()),
             [&](int64_t h, int) { estimates[h] = EdgeEstimate(*work.heads[h]); });
    work.forced = 0;
    for (size_t h = 0; h < work.heads.size(); ++h) {
      work.estimate.Add(estimates[h]);
      work.forced += CountForced(*work.heads[h], 0, work.heads[h]->n);
    }
    const uint64_t taken = others + work.forced;
    work.allowed = caps[c].max_edges > taken ? caps[c].max_edges - taken : 0;
    const double expected = work.estimate.Edges(1.0);
    const double error = std::sqrt(expected) + std::sqrt(work.estimate.variance());
    call.kept.resize(call.block_head.size());
    if (optimistic && expected + 8.0 * error + 64.0 <= static_cast<double>(work.allowed)) {
      for (Head* head : work.heads) head->capped = false;
      work.heads.clear();
      unchecked_ = true;
      continue;
    }
    work.span = GuessSpan(work.estimate, work.allowed);
    for (Head* head : work.heads) {
      for (int64_t b = 0; b < head->blocks(); ++b) {
        CapBlock& block = work.blocks.emplace_back();
        block.head = head;
        block.row0 = b * head->block_rows;
        block.rows = static_cast<int>(std::min<int64_t>(head->block_rows, head->n - block.row0));
        block.kept = &call.kept[head->first_block + b];
      }
    }
  }
  std::erase_if(works_, [](const CapWork& work) { return work.blocks.empty(); });
}

bool CapSearch::done() const { return next_ == works_.size(); }

int64_t CapSearch::blocks() const { return static_cast<int64_t>(works_[next_].blocks.size()); }

void CapSearch::Next(ThreadPool& pool, std::span<Worker> workers, int64_t blocks, const Call& call) {
  CapWork& work = works_[next_];
  const size_t first = work.next;
  if (first == 0 && !work.found) {  // what an earlier run of this search kept is not needed
    for (size_t w = work.piles.size(); w < workers.size(); ++w) work.piles.push_back(workers[w].kept.place());
    for (size_t w = 0; w < workers.size(); ++w) workers[w].kept.DropFrom(work.piles[w]);
  }
  work.next = std::min(work.blocks.size(), first + static_cast<size_t>(blocks));
  pool.For(static_cast<int64_t>(work.next - first), [&](int64_t i, int worker) {
    const size_t b = first + static_cast<size_t>(i);
    if (work.found) return FinishBlock(call, work.first_dropped, work.tau, b, workers[worker], work.blocks[b]);
    DrawCapBlock(call, work.span, workers[worker], work.blocks[b]);
  });
  if (work.next < work.blocks.size()) return;
  work.next = 0;
  if (!work.found) return work.Look();
  work = CapWork();  // frees its memory
  ++next_;
}

}  // namespace edgewise::cpu_attention
