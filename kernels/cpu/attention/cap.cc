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

// One block of rows under a cap.
struct CapBlock {
  const Head* head = nullptr;
  int64_t row0 = 0;
  int rows = 0;
  EdgeLists* kept = nullptr;
  uint64_t certain = 0;        // edges younger than the span, forced ones included: in `kept`, or
  std::vector<uint64_t> bits;  // [rows, words], where they are many
  std::vector<ParallelEdge> parallel;
  std::vector<OpenPair> open;
  std::vector<double> ages;  // as open; -1: forced
  AgedEvents events;         // of a head that is drawn by events: all that may stay, in place of bits and parallel
};

// Copies the lists of a worker, which have room for more.
void TakeLists(const EdgeLists& lists, int rows, EdgeLists& kept) {
  kept.offsets = lists.offsets;
  kept.keys.assign(lists.keys.begin(), lists.keys.begin() + lists.offsets[rows]);
}

// Ages of events as ticks of 2^-31: an event is younger than tau iff it has fewer ticks.
uint32_t TicksOf(double tau) { return static_cast<uint32_t>(std::ceil(tau * 0x1p31)); }

// Of a head that is drawn by events. Open pairs are the edges with an age in the span.
void DrawEventCapBlock(const Call& call, float low, float high, Worker& worker, CapBlock& block) {
  const Head& head = *block.head;
  DrawAgedEvents(call, head, block.row0, block.rows, TicksOf(std::min(1.0, static_cast<double>(high))), worker,
                 block.events);
  block.open.clear();
  block.ages.clear();
  const AgedEvents& events = block.events;
  const uint32_t certain = TicksOf(static_cast<double>(low));
  uint64_t edges = 0;
  for (size_t e = 0; e < events.keys.size(); ++e) {  // rows are short: loops over each would guess their ends wrong
    const bool edge = events.keys[e] >= 0;
    edges += edge ? 1 : 0;
    if (!edge || events.ages[e] < certain) continue;
    const auto row = std::upper_bound(events.ends.begin(), events.ends.end(), static_cast<int64_t>(e));
    block.open.push_back({static_cast<int32_t>(row - events.ends.begin()), events.keys[e], 0.0f, false, 0});
    block.ages.push_back(static_cast<double>(events.ages[e]) * 0x1p-31);
  }
  block.certain = CountForced(head, block.row0, block.rows) + edges - block.open.size();
}

void DrawCapBlock(const Call& call, float low, float high, Worker& worker, CapBlock& block) {
  if (block.head->by_events) return DrawEventCapBlock(call, low, high, worker, block);
  const Law law = block.head->drawn->law;
  DrawBlock(call, *block.head, block.row0, block.rows, SpanOf(law, low, high), worker);
  DrawnBlock& drawn = worker.drawn;
  const auto count = static_cast<int64_t>(drawn.count);
  const int64_t words = block.head->tables.words;
  const bool many = drawn.bits != nullptr && count >= block.rows * words * kManyPerWord;
  block.certain = drawn.count;
  block.parallel = std::move(drawn.parallel);
  block.open.clear();
  block.ages.clear();
  for (const OpenPair& pair : drawn.open) {
    double age = -1.0;
    if (!pair.forced) {
      if (!IsEdge(law, pair.uniform, pair.rate)) continue;
      age = EdgeAge(law, pair.uniform, pair.rate);
      if (high < 1.0f && !(age < static_cast<double>(high))) continue;  // not all edges of that age are here
    }
    block.open.push_back(pair);
    block.ages.push_back(age);
  }
  block.bits.clear();
  if (many) {
    block.bits.assign(drawn.bits, drawn.bits + block.rows * words);
    return;
  }
  if (drawn.bits != nullptr) ListBits(call, *block.head, block.rows, drawn.bits, worker.lists);
  block.kept->keys.reserve(static_cast<size_t>(count) + block.open.size());
  TakeLists(worker.lists, block.rows, *block.kept);
}

// A drawn edge in the order in which edges are kept.
using AgedEdge = std::tuple<double, size_t, int32_t, int32_t>;  // age, block, row, key

// Keeps the events before `first_dropped`, whose age is tau.
void FinishEventBlock(const Call& call, const AgedEdge& first_dropped, double tau, size_t index, Worker& worker,
                      CapBlock& block) {
  const Head& head = *block.head;
  AgedEvents& events = block.events;
  const uint32_t ticks = TicksOf(tau);
  std::vector<uint32_t>& kept_before = events.ages;  // takes the place of what has been read
  size_t kept = 0;
  for (size_t e = 0; e < events.keys.size(); ++e) {
    const int32_t key = events.keys[e];
    bool keeps = events.ages[e] < ticks;
    if (events.ages[e] == ticks && key >= 0) {
      const auto row = std::upper_bound(events.ends.begin(), events.ends.end(), static_cast<int64_t>(e));
      keeps = AgedEdge(tau, index, static_cast<int32_t>(row - events.ends.begin()), key) < first_dropped;
    }
    kept_before[e] = static_cast<uint32_t>(kept);
    events.keys[kept] = key < 0 ? ~key : key;
    kept += keeps ? 1 : 0;
  }
  kept_before.push_back(static_cast<uint32_t>(kept));
  int64_t most = 0;
  for (int64_t& end : events.ends) {
    end = kept_before[end];
    most = std::max(most, end - (&end == events.ends.data() ? 0 : (&end)[-1]));
  }
  // All rows at once, in another loop: vectors would wait for what was just stored.
  LayEventWorker(head, most, worker);
  block.kept->offsets.assign(static_cast<size_t>(block.rows) + 1, 0);
  for (int32_t row = 0; row < block.rows; ++row) {
    const int64_t begin = row == 0 ? 0 : events.ends[row - 1];
    AppendEventRow(call, head, block.row0, row, events.keys.data() + begin, events.ends[row] - begin, worker,
                   *block.kept, block.parallel);
  }
  if (!block.parallel.empty()) SetMultiplicity(head, block.rows, block.parallel, nullptr, *block.kept);
  block = CapBlock();  // frees its memory for the next
}

// Adds the open edges before `first_dropped`, whose age is tau, to the certain ones.
void FinishBlock(const Call& call, const AgedEdge& first_dropped, double tau, size_t index, Worker& worker,
                 CapBlock& block) {
  if (block.head->by_events) return FinishEventBlock(call, first_dropped, tau, index, worker, block);
  std::vector<OpenPair> kept_open;
  kept_open.reserve(block.open.size());
  for (size_t i = 0; i < block.open.size(); ++i) {
    const OpenPair& pair = block.open[i];
    if (pair.forced || AgedEdge(block.ages[i], index, pair.row, pair.key) < first_dropped) kept_open.push_back(pair);
  }
  const Head& head = *block.head;
  EdgeLists& kept = *block.kept;
  uint64_t* bits = block.bits.empty() ? nullptr : block.bits.data();
  AddOpenPairs(head, block.rows, kept_open, tau, bits, kept, block.parallel, worker.added);
  if (bits != nullptr) {
    ListBits(call, head, block.rows, bits, worker.lists);
    TakeLists(worker.lists, block.rows, kept);
  }
  if (!block.parallel.empty()) SetMultiplicity(head, block.rows, block.parallel, bits, kept);
  block = CapBlock();  // frees its memory for the next
}

// The ages between which the first dropped edge is looked for.
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
  size_t next = 0;  // block of this run
  bool found = false;
  AgedEdge first_dropped{INFINITY, 0, 0, 0};
  double tau = 1.0;

  // Once all blocks are drawn: sets `found`, or the next span.
  void Look();
};

namespace {

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

}  // namespace

void CapWork::Look() {
  uint64_t certain = 0;
  for (const CapBlock& block : blocks) certain += block.certain;
  certain -= forced;
  std::vector<AgedEdge> open = OpenEdges(*this);
  const bool drops = certain + open.size() > allowed;
  const double edges = static_cast<double>(allowed);
  if (drops && certain <= allowed) {
    const auto place = open.begin() + static_cast<int64_t>(allowed - certain);
    std::nth_element(open.begin(), place, open.end());
    first_dropped = *place;
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
    if (!head.capped) continue;
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
  work.next = std::min(work.blocks.size(), first + static_cast<size_t>(blocks));
  pool.For(static_cast<int64_t>(work.next - first), [&](int64_t i, int worker) {
    const size_t b = first + static_cast<size_t>(i);
    if (work.found) return FinishBlock(call, work.first_dropped, work.tau, b, workers[worker], work.blocks[b]);
    DrawCapBlock(call, work.span.low, work.span.high, workers[worker], work.blocks[b]);
  });
  if (work.next < work.blocks.size()) return;
  work.next = 0;
  if (!work.found) return work.Look();
  work = CapWork();  // frees its memory
  ++next_;
}

}  // namespace edgewise::cpu_attention
