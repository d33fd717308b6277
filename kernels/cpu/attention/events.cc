#include "kernels/cpu/attention/events.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cpu/attention/draw.h"
#include "kernels/draw/events.h"

namespace edgewise::cpu_attention {
namespace {

constexpr int64_t kFirstCapacity = 8192;  // events of the rows drawn at once; more where a row needs it

// Makes a worker ready for rows of up to `events` events.
void LayEventWorker(const HeadPlan& head, int64_t row_events, Worker& worker) {
  EventScratch& events = worker.events;
  events.capacity = std::max({events.capacity, kFirstCapacity, row_events});
  const int64_t room = events.capacity + 64;
  worker.event_memory.Lay([&](const auto& place) {
    place(events.age, room);
    place(events.place, room);
    place(events.key, room);
    place(events.open, room);
    place(events.open_row, room);
    place(events.accepted, room / 16 + 64);
    place(events.row_begin, kBlockRows + 1);
    place(events.row_events, kBlockRows);
    place(events.edge_key, room);
    place(events.edge_age, room);
    place(worker.event_ends, kBlockRows);
    place(worker.event_bits, (head.n + 63) / 64);
    place(worker.event_keys, room + 2 * head.n);
    place(worker.event_ages, room + 2 * head.n);
    place(events.open_key, room);
    place(events.open_age, room);
    place(events.open_distance, room);
  });
  std::fill(worker.event_bits, worker.event_bits + (head.n + 63) / 64, 0);
}

// Adds the edges of heavy pairs to the events of a row, in worker.event_keys and event_ages. Returns their number.
int64_t AddHeavyPairs(const Call& call, const HeadPlan& head, int64_t row, uint32_t limit, const int32_t* keys,
                      const uint32_t* ages, int64_t count, Worker& worker) {
  const EventTables& tables = head.events;
  std::copy_n(keys, count, worker.event_keys);
  std::copy_n(ages, count, worker.event_ages);
  const bool all = !(tables.mean_gap[row] > 0.0f);
  return count + call.kernels->draw_heavy_pairs(head.event_draw, row, all ? nullptr : tables.heavy,
                                                all ? head.n : tables.heavy_keys, limit, worker.event_keys + count,
                                                worker.event_ages + count);
}

// Calls use(row, keys, ages, count) for each row of a block, with its accepted events younger than `limit`.
template <typename Use>
void ForEventRows(const Call& call, const HeadPlan& head, int64_t row0, int rows, uint32_t limit, Worker& worker,
                  const Use& use) {
  LayEventWorker(head, 0, worker);
  const bool heavy = head.events.heavy_keys > 0 || head.events.heavy_queries > 0;
  for (int row = 0; row < rows;) {
    const int drawn =
        call.kernels->draw_events(head.event_draw, row0 + row, rows - row, limit, worker.events, worker.event_ends);
    if (drawn == 0) {
      LayEventWorker(head, 2 * worker.events.capacity, worker);
      continue;
    }
    int64_t begin = 0;
    for (int i = 0; i < drawn; ++i) {
      const int32_t* keys = worker.events.edge_key + begin;
      const uint32_t* ages = worker.events.edge_age + begin;
      int64_t count = worker.event_ends[i] - begin;
      begin += count;
      if (heavy) {
        count = AddHeavyPairs(call, head, row0 + row + i, limit, keys, ages, count, worker);
        keys = worker.event_keys;
        ages = worker.event_ages;
      }
      use(row + i, keys, ages, count);
    }
    row += drawn;
  }
}

// Lists the keys that come more than once. Forced ones are among `keys` once more than they have events.
void AddParallel(int row, int64_t forced_first, int64_t forced_end, int32_t* keys, int64_t count,
                 std::vector<ParallelEdge>& parallel) {
  std::sort(keys, keys + count);
  for (int64_t e = 0; e < count;) {
    int64_t end = e + 1;
    while (end < count && keys[end] == keys[e]) ++end;
    const bool forced = keys[e] >= forced_first && keys[e] < forced_end;
    const auto times = static_cast<int32_t>(end - e - (forced ? 1 : 0));
    if (times > 1) parallel.push_back({row, keys[e], times});
    e = end;
  }
}

// Appends row `row` of a block: its forced edges and `count` events. The worker is laid for them.
void AppendEventRow(const Call& call, const HeadPlan& head, int64_t row0, int row, const int32_t* keys, int64_t count,
                    Worker& worker) {
  const auto [first, end] = ForcedKeys(head, row0 + row);
  const bool multi = head.drawn->law == Law::kPoissonMulti;
  int32_t* merged = worker.event_keys;
  if (first < end || multi) {
    if (keys != merged) std::copy_n(keys, count, merged);
    keys = merged;
    for (int64_t key = first; key < end; ++key) merged[count++] = static_cast<int32_t>(key);
  }
  EdgeLists& lists = worker.lists;
  const int64_t used = lists.offsets[row];
  const int64_t size = call.kernels->sort_keys(keys, count, head.n, worker.event_bits, lists.Room(used, count + 64));
  lists.offsets[row + 1] = used + size;
  if (multi && size < count) AddParallel(row, first, end, merged, count, worker.drawn.parallel);
}

// Moves those of a row's events that are `low` old or older to worker.drawn.events, and returns the number of the
// others, which are the first of `keys` then.
int64_t TakeOpenEvents(const HeadPlan& head, int row, uint32_t low, const int32_t* keys, const uint32_t* ages,
                       int64_t count, Worker& worker) {
  int64_t certain = count;
  if (keys == worker.event_keys) {  // in no order
    certain = 0;
    for (int64_t e = 0; e < count; ++e) {
      if (ages[e] < low) {
        worker.event_keys[certain++] = keys[e];
      } else {
        worker.drawn.events.push_back({row, keys[e], ages[e]});
      }
    }
    return certain;
  }
  while (certain > 0 && ages[certain - 1] >= low) --certain;
  for (int64_t e = certain; e < count; ++e) {
    OpenEvent& event = worker.drawn.events.emplace_back(OpenEvent{row, keys[e], ages[e]});
    if (head.drawn->law == Law::kPoissonMulti) {
      event.before = static_cast<int32_t>(std::count(keys, keys + certain, keys[e]));
    }
  }
  return certain;
}

// Whether ascending keys hold `key`.
bool HasKey(const int32_t* keys, int64_t count, int32_t key) {
  constexpr int64_t kFew = 256;  // a search would guess wrong more often than a vector takes
  if (count > kFew) return std::binary_search(keys, keys + count, key);
  int32_t found = 0;
  for (int64_t e = 0; e < count; ++e) found |= keys[e] == key ? 1 : 0;
  return found != 0;
}

// Sorts the open events of the last row, from `first` on, finds those that add no edge, and drops them where only edges
// matter.
void SettleOpenEvents(const HeadPlan& head, int row, size_t first, const EdgeLists& lists,
                      std::vector<OpenEvent>& events) {
  const auto begin = events.begin() + static_cast<int64_t>(first);
  if (events.end() - begin > 1) {
    std::sort(begin, events.end(), [](const OpenEvent& a, const OpenEvent& b) {
      return a.key < b.key || (a.key == b.key && a.age < b.age);
    });
  }
  const int32_t* const keys = lists.keys.data() + lists.offsets[row];
  const int64_t count = lists.offsets[row + 1] - lists.offsets[row];
  for (auto event = begin; event < events.end(); ++event) {
    event->known = (event > begin && event[-1].key == event->key) || HasKey(keys, count, event->key);
  }
  if (head.drawn->law == Law::kPoissonMulti) return;
  events.erase(std::remove_if(begin, events.end(), [](const OpenEvent& event) { return event.known; }), events.end());
}

// Whether a head gets room for certificates. Short vectors are multiplied as fast, and of a head under a cap only the
// beginnings of streams are drawn.
bool HasCertificates(const Call& call, const HeadPlan& head) {
  constexpr int kLeastRank = 64;
  return call.kernels->certify_rows != nullptr && call.inputs->memberships.rank >= kLeastRank && !head.capped;
}

}  // namespace

void PlaceEventTables(Call& call, Memory& memory) {
  memory.Lay([&](const auto& place) {
    for (HeadPlan& head : call.heads) {
      head.by_events = head.drawn != nullptr && MayUseEvents(*head.drawn, head.n, call.inputs->memberships.rank);
      if (!head.by_events) continue;
      EventTables& tables = head.events;
      tables.tokens = head.n;
      place(tables.query_bound, head.n);
      place(tables.key_bound, head.n);
      place(tables.places, head.n + 2);
      place(tables.guide, EventGuideSize(head.n));
      place(tables.heavy, head.n);
      place(head.event_split, head.n);
      if (!HasCertificates(call, head)) continue;
      for (CertifiedRows& side : head.certified) {
        place(side.certificates, head.n);
        place(side.rests, head.n * CertificateBytes(call.inputs->memberships.rank));
      }
    }
  });
}

void MeasureEvents(HeadPlan& head) {
  if (!head.by_events) return;
  EventTables& tables = head.events;
  const DrawTables& pairs = head.tables;
  const EventMeans means = edgewise::MeasureEvents(*head.drawn, tables);
  head.by_events = UsesEvents(*head.drawn, means, tables);
  if (!head.by_events) return;
  tables.mean_gap = tables.query_bound;
  FillEventTables(*head.drawn, means, tables);
  EventDraw& draw = head.event_draw;
  draw.tokens = head.n;
  draw.rank = pairs.rank;
  draw.x = head.x;
  draw.y = pairs.y;
  draw.positions = head.gaps ? head.problem->positions : nullptr;
  draw.mean_gap = tables.mean_gap;
  draw.places = tables.places;
  draw.guide = tables.guide;
  draw.guide_shift = 32 - EventGuideBits(head.n);
  draw.law = head.drawn->law;
  draw.exploration = head.drawn->exploration;
  draw.seed[0] = pairs.seed[0];
  draw.seed[1] = pairs.seed[1];
  const RandomKey& key = head.drawn->key;
  draw.events_word = CounterWord(key, static_cast<uint32_t>(head.index), kStreamEvents);
  draw.fractions_word = CounterWord(key, static_cast<uint32_t>(head.index), kStreamEventFractions);
  draw.bytes_word = pairs.bytes_word;
  draw.low_word = pairs.low_word;
  draw.sample = pairs.sample;
}

void DrawEventBlock(const Call& call, const HeadPlan& head, int64_t row0, int rows, const AgeLimits& limits,
                    Worker& worker) {
  DrawnBlock& block = worker.drawn;
  block.bits = nullptr;
  block.parallel.clear();
  block.open.clear();
  block.events.clear();
  EdgeLists& lists = worker.lists;
  lists.offsets.assign(static_cast<size_t>(rows) + 1, 0);
  ForEventRows(call, head, row0, rows, limits.high, worker,
               [&](int row, const int32_t* keys, const uint32_t* ages, int64_t count) {
                 const size_t opens = block.events.size();
                 if (limits.low < limits.high) count = TakeOpenEvents(head, row, limits.low, keys, ages, count, worker);
                 AppendEventRow(call, head, row0, row, keys, count, worker);
                 if (block.events.size() > opens) SettleOpenEvents(head, row, opens, lists, block.events);
               });
  block.count = static_cast<uint64_t>(lists.offsets[rows]);
}

}  // namespace edgewise::cpu_attention
