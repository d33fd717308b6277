#include "kernels/cpu/attention/cap_block.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/cpu/attention/draw.h"
#include "kernels/cpu/attention/events.h"

namespace edgewise::cpu_attention {
namespace {

// Where a word has this many edges on average, bits take at most twice the memory of lists, and no time to list.
constexpr int64_t kManyPerWord = 1;
constexpr int64_t kFewWords = 1 << 15;  // of a block: taken before it is known whether they are used

// An event is younger than tau iff it has fewer ticks.
uint32_t TicksOf(double tau) { return static_cast<uint32_t>(std::ceil(tau * 0x1p31)); }

// Takes the open pairs that are edges with an age in the span. Without a branch on random numbers.
void TakeOpenPairs(const AgeSpan& span, Worker& worker, CapBlock& block) {
  const std::vector<OpenPair>& drawn = worker.drawn.open;
  const Law law = block.head->drawn->law;
  block.open = {worker.kept.Take<OpenPair>(static_cast<int64_t>(drawn.size())), drawn.size()};
  block.ages = worker.kept.Take<double>(static_cast<int64_t>(drawn.size()));
  size_t size = 0;
  for (const OpenPair& pair : drawn) {
    const double age = pair.forced ? -1.0 : EdgeAge(law, pair.uniform, pair.rate);
    // Below 1 only a pair that is an edge is younger than `high`, and not all edges of that age are here.
    const bool taken =
        span.high < 1.0f ? age < static_cast<double>(span.high) : pair.forced || IsEdge(law, pair.uniform, pair.rate);
    block.open[size] = pair;
    block.ages[size] = age;
    size += taken ? 1 : 0;
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

void DrawEvents(const Call& call, const AgeSpan& span, Worker& worker, CapBlock& block) {
  const auto ticks = [](float tau) { return TicksOf(std::min(1.0, static_cast<double>(tau))); };
  DrawEventBlock(call, *block.head, block.row0, block.rows, {ticks(span.low), ticks(span.high)}, worker);
  const std::vector<OpenEvent>& events = worker.drawn.events;
  block.events = {worker.kept.Take<OpenEvent>(static_cast<int64_t>(events.size())), events.size()};
  std::copy(events.begin(), events.end(), block.events.begin());
  TakeLists(worker.lists, static_cast<int64_t>(events.size()), worker, block);
}

void DrawPairs(const Call& call, const AgeSpan& span, Worker& worker, CapBlock& block) {
  const HeadPlan& head = *block.head;
  const DrawnBlock& drawn = worker.drawn;
  const int64_t words = block.rows * head.tables.words;
  // Bits are drawn where they may stay.
  const Pile::Place place = worker.kept.place();
  uint64_t* const own_bits = worker.position_bits;
  if (words <= kFewWords) worker.position_bits = worker.kept.Take<uint64_t>(words);
  DrawBlock(call, head, block.row0, block.rows, SpanOf(head.drawn->law, span.low, span.high), worker);
  const uint64_t* const kept_bits = std::exchange(worker.position_bits, own_bits);
  const bool many = drawn.bits != nullptr && static_cast<int64_t>(drawn.count) >= words * kManyPerWord;
  if (drawn.bits != nullptr && !many) ListBits(call, head, block.rows, drawn.bits, worker.lists);
  if (many && drawn.bits == kept_bits && kept_bits != own_bits) {
    block.bits = drawn.bits;
  } else {
    worker.kept.DropFrom(place);  // what is drawn there has been listed, or is not used
  }
  TakeOpenPairs(span, worker, block);
  if (!many) {
    TakeLists(worker.lists, static_cast<int64_t>(block.open.size()), worker, block);
  } else if (block.bits == nullptr) {
    block.bits = worker.kept.Take<uint64_t>(words);
    std::copy_n(drawn.bits, words, block.bits);
  }
}

// Adds the open events before `first_dropped` to the certain ones.
void AddOpenEvents(const AgedEdge& first_dropped, size_t index, Worker& worker, CapBlock& block) {
  const double tau = std::get<0>(first_dropped);
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

// Likewise.
void AddOpenPairs(const AgedEdge& first_dropped, size_t index, Worker& worker, CapBlock& block) {
  const double tau = std::get<0>(first_dropped);
  const auto is_kept = [&](size_t i) {
    if (block.ages[i] != tau) return block.ages[i] < tau;
    return AgedEdge(tau, index, block.open[i].row, block.open[i].key) < first_dropped;
  };
  size_t size = 0;
  if (block.head->drawn->law == Law::kPoissonMulti) {
    for (size_t i = 0; i < block.open.size(); ++i) {
      const OpenPair pair = block.open[i];
      const bool kept = is_kept(i);
      block.open[size] = pair;
      size += kept ? 1 : 0;
      block.certain += kept && !pair.forced ? 1 : 0;
    }
    return AddOpenPairs(*block.head, block.rows, block.open.first(size), std::min(tau, 1.0), block.bits, block.offsets,
                        block.keys, block.parallel, worker.added);
  }
  // None is forced, and every edge counts once.
  std::vector<ParallelEdge>& added = worker.added;
  added.resize(block.open.size());
  for (size_t i = 0; i < block.open.size(); ++i) {
    added[size] = {block.open[i].row, block.open[i].key, 1};
    size += is_kept(i) ? 1 : 0;
  }
  added.resize(size);
  block.certain += size;
  AddEdges(*block.head, block.rows, added, block.bits, block.offsets, block.keys);
}

}  // namespace

void DrawCapBlock(const Call& call, const AgeSpan& span, Worker& worker, CapBlock& block) {
  block.open = {};
  block.events = {};
  block.bits = nullptr;
  if (block.head->by_events) {
    DrawEvents(call, span, worker, block);
  } else {
    DrawPairs(call, span, worker, block);
  }
  block.certain = worker.drawn.count;
  block.parallel = std::move(worker.drawn.parallel);
}

BlockEdges FinishCapBlock(const Call& call, const AgedEdge& first_dropped, size_t index, Worker& worker,
                          CapBlock& block) {
  const HeadPlan& head = *block.head;
  if (head.by_events) {
    AddOpenEvents(first_dropped, index, worker, block);
  } else {
    AddOpenPairs(first_dropped, index, worker, block);
  }
  BlockEdges kept;
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
  if (block.parallel.empty()) return kept;
  auto* const multiplicity = worker.kept.Take<float>(static_cast<int64_t>(kept.count));
  SetMultiplicity(head, block.rows, block.parallel, block.bits, kept.offsets, kept.keys, multiplicity);
  kept.multiplicity = multiplicity;
  return kept;
}

}  // namespace edgewise::cpu_attention
