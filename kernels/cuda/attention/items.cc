#include "kernels/cuda/attention/items.h"

#include <algorithm>
#include <span>
#include <variant>

#include "kernels/cuda/attention/lists.h"
#include "kernels/pattern_count.h"

namespace edgewise::cuda {
namespace {

// Calls cut(first, queries) for the queries begin..end-1 in runs of at most `most`, cut at its multiples.
template <typename Cut>
void CutQueries(int32_t begin, int32_t end, int32_t most, const Cut& cut) {
  while (begin < end) {
    const int32_t next = std::min(end, (begin / most + 1) * most);
    cut(begin, next - begin);
    begin = next;
  }
}

// Adds the items of one problem of kind kTiles.
class TileCutter {
 public:
  TileCutter(const AttentionProblem& problem, int32_t index, const AttentionInputs& inputs, Staging& staging,
             std::vector<TileItem>& items)
      : problem_(problem),
        index_(index),
        num_heads_(inputs.num_heads),
        heads_of_key_(inputs.num_heads / inputs.key_value_heads()),
        most_rows_(inputs.phase == Phase::kDecode ? kWarpQueries : kTileQueries),
        runs_(inputs.runs_as_windows),
        staging_(staging),
        items_(items) {}

  void AddPairs(const AllPairs& pairs) {
    const int32_t first = problem_.first_query, end = problem_.tokens;
    if (pairs.reach != AllPairs::kFar) {
      AddRuns(first, end, -1, [&](int32_t i) { return KeysOf(pairs, problem_.positions, end, i); });
      return;
    }
    CutQueries(first, end, most_rows_, [&](int32_t query, int32_t queries) {
      AddForHeads({index_, 0, query, queries, pairs.causal ? query + queries : end, pairs.causal ? 1 : 0});
    });
  }

  void AddGroups(const GroupedKeys& groups) {
    const int32_t* keys = staging_.Add(std::span<const int32_t>(groups.keys));
    std::vector<int32_t> seen;  // keys that each query sees
    for (size_t g = 0; g + 1 < groups.group_begin.size(); ++g) {
      const auto first = groups.keys.begin() + groups.key_offsets[g],
                 last = groups.keys.begin() + groups.key_offsets[g + 1];
      for (int32_t i = groups.group_begin[g]; i < groups.group_begin[g + 1]; ++i) {
        seen.push_back(static_cast<int32_t>((groups.causal ? std::upper_bound(first, last, i) : last) - first));
      }
    }
    const int32_t* limits = groups.causal ? staging_.Add(std::span<const int32_t>(seen)) : nullptr;
    for (size_t g = 0; g + 1 < groups.group_begin.size(); ++g) {
      const int32_t* list = groups.keys.data() + groups.key_offsets[g];
      const auto count = static_cast<int32_t>(groups.key_offsets[g + 1] - groups.key_offsets[g]);
      const int64_t run = runs_ ? RunLength(list, count) : 0;
      int32_t begin = groups.group_begin[g];
      const int32_t end = groups.group_begin[g + 1];
      const auto seen_by = [&](int32_t query) { return seen[query - problem_.first_query]; };
      int32_t lists = begin;  // the first query that sees more than the run
      while (run > 0 && lists < end && seen_by(lists) <= run) ++lists;
      AddRuns(begin, lists, -1, [&](int32_t i) { return KeyRun{list[0], list[0] + seen_by(i)}; });
      CutQueries(lists, end, most_rows_, [&](int32_t first, int32_t queries) {
        TileItem item = {index_, 0, first, queries, seen_by(first + queries - 1), 0};
        if (count > 0) item.keys = keys + groups.key_offsets[g];
        if (groups.causal) item.limits = limits + (first - problem_.first_query);
        AddForHeads(item);
      });
    }
  }

  void AddGiven(const HeadEdges& edges, int32_t head) {
    const int32_t* keys = staging_.Add(std::span<const int32_t>(edges.keys));
    const int64_t shift = FirstGivenRow(problem_, edges);
    const auto row_of = [&](int32_t i) {
      const int64_t begin = edges.row_offsets[i - shift], end = edges.row_offsets[i - shift + 1];
      return std::span(edges.keys).subspan(begin, end - begin);
    };
    const auto is_run = [&](int32_t i) {
      const auto row = row_of(i);
      return runs_ && RunLength(row.data(), std::ssize(row)) == std::ssize(row);
    };
    std::vector<int32_t> seen;
    for (int32_t i = problem_.first_query; i < problem_.tokens; ++i) {
      seen.push_back(static_cast<int32_t>(row_of(i).size()));
    }
    const int32_t* limits = staging_.Add(std::span<const int32_t>(seen));
    TileItem item = {};
    std::span<const int32_t> longest;
    const auto finish = [&] {
      if (item.queries > 0) items_.push_back(item);
      item = {};
      longest = {};
    };
    for (int32_t i = problem_.first_query; i < problem_.tokens; ++i) {
      if (is_run(i)) {
        finish();
        const int32_t begin = i;
        while (i + 1 < problem_.tokens && is_run(i + 1)) ++i;
        AddRuns(begin, i + 1, head, [&](int32_t query) {
          const auto row = row_of(query);
          return row.empty() ? KeyRun{} : KeyRun{row.front(), row.back() + 1};
        });
        continue;
      }
      const auto row = row_of(i);
      const auto shared = static_cast<int64_t>(std::min(row.size(), longest.size()));
      const bool joins = item.queries > 0 && item.queries < most_rows_ &&
                         std::equal(row.begin(), row.begin() + shared, longest.begin());
      if (!joins) {
        finish();
        item = {index_, head, i, 0, 0, 0, nullptr, limits + (i - problem_.first_query)};
      }
      ++item.queries;
      if (row.size() > longest.size()) {
        longest = row;
        item.num_keys = static_cast<int32_t>(row.size());
        item.keys = keys + edges.row_offsets[i - shift];
      }
    }
    finish();
  }

 private:
  void AddForHeads(TileItem item) {
    const int32_t together = std::clamp(most_rows_ / item.queries, 1, heads_of_key_);
    for (item.head = 0; item.head < num_heads_; item.head += item.heads) {
      item.heads = std::min(together, heads_of_key_ - item.head % heads_of_key_);
      items_.push_back(item);
    }
  }

  // Queries begin..end - 1, which see run_of(query). head: below 0: all.
  template <typename RunOf>
  void AddRuns(int32_t begin, int32_t end, int32_t head, const RunOf& run_of) {
    std::vector<int32_t> starts, limits;
    for (int32_t i = begin; i < end; ++i) {
      const KeyRun run = run_of(i);
      starts.push_back(run.size() > 0 ? run.begin : 0);
      limits.push_back(run.size() > 0 ? run.end : 0);
    }
    const int32_t* device_starts = staging_.Add(std::span<const int32_t>(starts));
    const int32_t* device_limits = staging_.Add(std::span<const int32_t>(limits));
    CutQueries(begin, end, most_rows_, [&](int32_t first, int32_t queries) {
      TileItem item = {index_, head, first, queries, 0, 0, nullptr, device_limits + (first - begin)};
      item.starts = device_starts + (first - begin);
      item.first_key = problem_.tokens;
      for (int32_t i = first - begin; i < first - begin + queries; ++i) {
        if (limits[i] > 0) item.first_key = std::min(item.first_key, starts[i]);
        item.num_keys = std::max(item.num_keys, limits[i]);
      }
      item.first_key = std::min(item.first_key, item.num_keys);
      if (head < 0) {
        AddForHeads(item);
      } else {
        items_.push_back(item);
      }
    });
  }

  const AttentionProblem& problem_;
  const int32_t index_, num_heads_, heads_of_key_;
  const int32_t most_rows_;  // of an item
  const bool runs_;
  Staging& staging_;
  std::vector<TileItem>& items_;
};

bool IsSingle(const ExplicitEdges& given) {
  return std::all_of(given.heads->begin(), given.heads->end(),
                     [](const HeadEdges& head) { return head.multiplicity.empty(); });
}

bool MayBeDense(const AttentionProblem& problem) {
  if (const auto* drawn = std::get_if<DrawnRows>(&problem.pattern)) return drawn->law != Law::kPoissonMulti;
  return IsSingle(std::get<ExplicitEdges>(problem.pattern));
}

bool IsDenseGiven(const AttentionProblem& problem, int32_t head) {
  const HeadEdges& given = (*std::get<ExplicitEdges>(problem.pattern).heads)[head];
  const int64_t shift = FirstGivenRow(problem, given);
  const int64_t edges = given.row_offsets[problem.tokens - shift] - given.row_offsets[problem.first_query - shift];
  return HeadIsDense(problem.tokens - problem.first_query, problem.tokens, static_cast<uint64_t>(edges));
}

// Queries of a slot that fits.
int32_t SlotQueries(const DeviceProblem& staged, int64_t most_bytes) {
  int32_t queries = staged.tokens;
  while (queries > kTileQueries && SlotBytes(staged, queries) > most_bytes) {
    queries = std::max(kTileQueries, queries / 2 / kTileQueries * kTileQueries);
  }
  return queries;
}

// The part that gets a slot of so many bytes.
RowPart& PartWithRoom(int64_t bytes, int64_t most_bytes, RowItems& items) {
  if (items.parts.back().slots > 0 && items.parts.back().bytes + bytes > most_bytes) {
    items.parts.push_back({std::ssize(items.rows), 0, std::ssize(items.dense), 0, std::ssize(items.slots), 0, 0});
  }
  return items.parts.back();
}

}  // namespace

PatternKind KindOf(const AttentionPattern& pattern) {
  if (std::holds_alternative<DrawnRows>(pattern)) return PatternKind::kDrawn;
  const auto* given = std::get_if<ExplicitEdges>(&pattern);
  if (given == nullptr || (given->compact && IsSingle(*given))) return PatternKind::kTiles;
  return PatternKind::kGiven;
}

void AddRowItems(const AttentionProblem& problem, int32_t index, int32_t num_heads, int64_t most_bytes,
                 DeviceProblem& staged, RowItems& items) {
  const bool drawn = staged.kind == PatternKind::kDrawn;
  staged.may_be_dense = MayBeDense(problem);
  const auto add = [&](RowItem item, int32_t most, std::vector<RowItem>& to) {
    CutQueries(item.first_query, item.first_query + item.queries, most, [&](int32_t first, int32_t queries) {
      to.push_back({item.problem, item.head, first, queries, item.slot});
    });
  };
  const int32_t at_once = drawn ? SlotQueries(staged, most_bytes) : problem.tokens;
  for (int32_t head = 0; head < num_heads; ++head) {
    CutQueries(problem.first_query, problem.tokens, at_once, [&](int32_t first, int32_t queries) {
      RowItem item = {index, head, first, queries, -1};
      RowPart* part = &items.parts.back();
      if (drawn) {
        const int64_t bytes = SlotBytes(staged, queries);
        part = &PartWithRoom(bytes, most_bytes, items);
        item.slot = static_cast<int32_t>(part->slots++);
        items.splits_heads |= queries < problem.tokens;
        items.slots.push_back({first, queries, static_cast<int32_t>(ListRoom(staged, queries)), part->bytes});
        part->bytes += bytes;
        if (part->first_problem < 0) part->first_problem = index;
        part->last_problem = index;
      }
      const bool dense = !drawn && staged.may_be_dense && IsDenseGiven(problem, head);
      if (!dense) add(item, kRowsPerItem, items.rows);
      if (dense || drawn) add(item, kTileQueries, items.dense);
      part->rows = std::ssize(items.rows) - part->first_row;
      part->dense = std::ssize(items.dense) - part->first_dense;
    });
  }
}

void StageRowItems(RowItems& items, std::span<const DeviceProblem> staged, Staging& staging, DeviceCall& call) {
  const auto sort = [&](std::vector<RowItem>& list, int64_t first, int64_t count) {
    std::stable_sort(list.begin() + first, list.begin() + first + count, [&](const RowItem& a, const RowItem& b) {
      return staged[a.problem].tokens > staged[b.problem].tokens;
    });
  };
  for (const RowPart& part : items.parts) {
    sort(items.rows, part.first_row, part.rows);
    sort(items.dense, part.first_dense, part.dense);
  }
  call.row_items = staging.Add(std::span<const RowItem>(items.rows));
  call.num_row_items = std::ssize(items.rows);
  call.dense_items = staging.Add(std::span<const RowItem>(items.dense));
  call.num_dense_items = std::ssize(items.dense);
  call.slots = staging.Add(std::span<const EdgeSlot>(items.slots));
  call.num_slots = std::ssize(items.slots);
}

DeviceCall PartOf(const DeviceCall& whole, const RowPart& part) {
  DeviceCall call = whole;
  call.row_items += part.first_row;
  call.num_row_items = part.rows;
  call.dense_items += part.first_dense;
  call.num_dense_items = part.dense;
  call.slots += part.first_slot;
  call.num_slots = part.slots;
  return call;
}

void AddTileItems(const AttentionProblem& problem, int32_t index, const AttentionInputs& inputs, Staging& staging,
                  std::vector<TileItem>& items) {
  const size_t before = items.size();
  TileCutter cutter(problem, index, inputs, staging, items);
  if (const auto* groups = std::get_if<GroupedKeys>(&problem.pattern)) {
    cutter.AddGroups(*groups);
  } else if (const auto* given = std::get_if<ExplicitEdges>(&problem.pattern)) {
    for (int32_t head = 0; head < inputs.num_heads; ++head) cutter.AddGiven((*given->heads)[head], head);
  } else {
    cutter.AddPairs(std::get<AllPairs>(problem.pattern));
  }
  if (inputs.phase != Phase::kDecode) return;
  for (TileItem& item : std::span(items).subspan(before)) {
    item.first_part = 0;
    if (PartsOf(item) <= 1) item.first_part = -1;
  }
}

int64_t OrderTileItems(std::vector<TileItem>& items) {
  const auto is_few = [](const TileItem& item) { return RowsOf(item) <= kWarpQueries; };
  const bool most_are = 2 * std::count_if(items.begin(), items.end(), is_few) > std::ssize(items);
  const auto is_narrow = [&](const TileItem& item) { return item.first_part >= 0 || (most_are && is_few(item)); };
  std::stable_sort(items.begin(), items.end(), [&](const TileItem& a, const TileItem& b) {
    return is_narrow(a) != is_narrow(b) ? is_narrow(b) : a.num_keys - a.first_key > b.num_keys - b.first_key;
  });
  return std::count_if(items.begin(), items.end(), is_narrow);
}

std::vector<NarrowRun> PlaceParts(std::span<TileItem> narrow, int64_t most_rows) {
  std::vector<NarrowRun> runs = {{0, 0, 1, 0}};
  for (TileItem& item : narrow) {
    const int32_t parts = PartsOf(item);
    const int64_t rows = item.first_part < 0 ? 0 : int64_t{parts} * RowsOf(item);
    if (runs.back().part_rows > 0 && runs.back().part_rows + rows > most_rows) {
      runs.push_back({runs.back().end, runs.back().end, 1, 0});
    }
    NarrowRun& run = runs.back();
    if (rows > 0) item.first_part = run.part_rows;
    run.part_rows += rows;
    run.most_parts = std::max(run.most_parts, parts);
    ++run.end;
  }
  return runs;
}

void StageGivenRows(const AttentionProblem& problem, int32_t num_heads, Staging& staging, DeviceProblem& staged) {
  const auto& given = std::get<ExplicitEdges>(problem.pattern);
  const bool single = IsSingle(given);
  std::vector<int64_t> row_offsets;
  std::vector<int32_t> keys, multiplicity;
  for (int32_t head = 0; head < num_heads; ++head) {
    const HeadEdges& edges = (*given.heads)[head];
    const int64_t shift = FirstGivenRow(problem, edges);
    const int64_t first = edges.row_offsets[problem.first_query - shift];
    const auto before = static_cast<int64_t>(keys.size());
    for (int64_t row = problem.first_query - shift; row <= problem.tokens - shift; ++row) {
      row_offsets.push_back(before + edges.row_offsets[row] - first);
    }
    keys.insert(keys.end(), edges.keys.begin() + first, edges.keys.end());
    if (!single && edges.multiplicity.empty()) {
      multiplicity.resize(keys.size(), 1);
    } else if (!single) {
      multiplicity.insert(multiplicity.end(), edges.multiplicity.begin() + first, edges.multiplicity.end());
    }
  }
  staged.row_offsets = staging.Add(std::span<const int64_t>(row_offsets));
  staged.given_keys = staging.Add(std::span<const int32_t>(keys));
  staged.multiplicity = staging.Add(std::span<const int32_t>(multiplicity));
}

}  // namespace edgewise::cuda
