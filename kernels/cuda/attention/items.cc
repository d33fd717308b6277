#include "kernels/cuda/attention/items.h"

#include <algorithm>
#include <span>
#include <utility>
#include <variant>

#include "kernels/host/pattern_count.h"

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

// Whether of the keys every kTileKeys from the first on are neighbours.
bool AreRuns(std::span<const int32_t> keys) {
  for (size_t i = 1; i < keys.size(); ++i) {
    if (i % kTileKeys != 0 && keys[i] != keys[i - 1] + 1) return false;
  }
  return true;
}

// Adds the items of one problem of kind kTiles.
class TileCutter {
 public:
  TileCutter(const AttentionProblem& problem, int32_t index, const AttentionInputs& inputs, bool wide, Staging& staging,
             std::vector<TileItem>& items)
      : problem_(problem),
        index_(index),
        num_heads_(inputs.num_heads),
        heads_of_key_(inputs.num_heads / inputs.key_value_heads()),
        most_rows_(inputs.phase == Phase::kDecode ? kWarpQueries
                   : wide                         ? kWideQueries
                                                  : kTileQueries),
        runs_(inputs.runs_as_windows),
        staging_(staging),
        items_(items),
        first_item_(items.size()),
        seen_(problem.tokens - problem.first_query) {}

  void AddPairs(const AllPairs& pairs) {
    const int32_t first = problem_.first_query, end = problem_.tokens;
    if (pairs.reach == AllPairs::kFar) {
      return CutQueries(first, end, most_rows_, [&](int32_t query, int32_t queries) {
        AddForHeads({index_, 0, query, queries, pairs.causal ? query + queries : end, pairs.causal ? 1 : 0},
                    most_rows_);
      });
    }
    for (int32_t i = first; i < end; ++i) Seen(i) = KeysOf(pairs, problem_.positions, end, i);
    Cut(first, end, most_rows_, nullptr);
    StageSeen();
  }

  void AddGroups(const GroupedKeys& groups) {
    const int32_t* keys = staging_.Add(std::span<const int32_t>(groups.keys));
    for (size_t g = 0; g + 1 < groups.group_begin.size(); ++g) {
      const int32_t begin = groups.group_begin[g], end = groups.group_begin[g + 1];
      const auto list =
          std::span(groups.keys).subspan(groups.key_offsets[g], groups.key_offsets[g + 1] - groups.key_offsets[g]);
      const int64_t run = runs_ ? RunLength(list.data(), std::ssize(list)) : 0;
      int32_t lists = begin;  // the first query that sees more than the run
      for (int32_t i = begin; i < end; ++i) {
        const auto seen =
            groups.causal ? std::upper_bound(list.begin(), list.end(), i) - list.begin() : std::ssize(list);
        Seen(i) = {0, static_cast<int32_t>(seen)};
        if (run == 0 || seen > run) continue;
        Seen(i) = {list[0], list[0] + Seen(i).end};
        lists = i + 1;
      }
      Cut(begin, lists, most_rows_, nullptr);
      Cut(lists, end, most_rows_ <= kTileQueries || AreRuns(list) ? most_rows_ : kTileQueries,
          list.empty() ? nullptr : keys + groups.key_offsets[g]);
    }
    StageSeen();
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
    first_item_ = items_.size();
    for (int32_t begin = problem_.first_query, end = begin; begin < problem_.tokens; begin = end) {
      auto longest = row_of(begin);
      const bool runs = is_run(begin);
      for (; end < problem_.tokens && is_run(end) == runs; ++end) {
        const auto row = row_of(end);
        const auto size = static_cast<int32_t>(row.size());
        const int32_t first = runs && size > 0 ? row.front() : 0;
        if (!runs && !std::equal(row.begin(), row.begin() + std::min(row.size(), longest.size()), longest.begin()))
          break;
        if (row.size() > longest.size()) longest = row;
        Seen(end) = {first, first + size};
      }
      Cut(begin, end, std::min(most_rows_, kTileQueries),
          runs || longest.empty() ? nullptr : keys + (longest.data() - edges.keys.data()), head);
    }
    StageSeen();
  }

 private:
  KeyRun& Seen(int32_t query) { return seen_[query - problem_.first_query]; }

  // Adds the items, of at most `most` rows, of queries begin..end - 1, which have a list of keys, for one head or for
  // all.
  void Cut(int32_t begin, int32_t end, int32_t most, const int32_t* keys, int32_t head = -1) {
    CutQueries(begin, end, most, [&](int32_t first, int32_t queries) {
      TileItem item = {index_, head, first, queries, 0, 0, keys};
      item.first_key = problem_.tokens;
      for (int32_t i = first; i < first + queries; ++i) {
        if (Seen(i).size() == 0) Seen(i) = {};
        if (Seen(i).size() > 0) item.first_key = std::min(item.first_key, Seen(i).begin);
        item.num_keys = std::max(item.num_keys, Seen(i).end);
      }
      item.first_key = std::min(item.first_key, item.num_keys);
      head < 0 ? AddForHeads(item, most) : items_.push_back(item);
    });
  }

  void AddForHeads(TileItem item, int32_t most) {
    const int32_t together = std::clamp(most / item.queries, 1, heads_of_key_);
    for (item.head = 0; item.head < num_heads_; item.head += item.heads) {
      item.heads = std::min(together, heads_of_key_ - item.head % heads_of_key_);
      items_.push_back(item);
    }
  }

  // Stages the runs of all queries, for the items since first_item_.
  void StageSeen() {
    std::vector<int32_t> places;
    for (const KeyRun& seen : seen_) places.push_back(seen.begin);
    for (const KeyRun& seen : seen_) places.push_back(seen.end);
    const int32_t* staged = staging_.Add(std::span<const int32_t>(places));
    for (TileItem& item : std::span(items_).subspan(first_item_)) {
      item.starts = staged + (item.first_query - problem_.first_query);
      item.limits = item.starts + seen_.size();
    }
  }

  const AttentionProblem& problem_;
  const int32_t index_, num_heads_, heads_of_key_;
  const int32_t most_rows_;  // of an item; of a wide one where the wide tile kernel may take the problem
  const bool runs_;
  Staging& staging_;
  std::vector<TileItem>& items_;
  size_t first_item_;
  std::vector<KeyRun> seen_;  // by each query, of its item's list
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

}  // namespace

PatternKind KindOf(const AttentionPattern& pattern) {
  if (std::holds_alternative<DrawnRows>(pattern)) return PatternKind::kDrawn;
  const auto* given = std::get_if<ExplicitEdges>(&pattern);
  if (given == nullptr || (given->compact && IsSingle(*given))) return PatternKind::kTiles;
  return PatternKind::kGiven;
}

void AddRowItems(const AttentionProblem& problem, int32_t index, int32_t num_heads, DeviceProblem& staged,
                 RowItems& items) {
  const bool drawn = staged.kind == PatternKind::kDrawn;
  staged.may_be_dense = MayBeDense(problem);
  for (int32_t head = 0; head < num_heads; ++head) {
    const auto add = [&](int32_t most, std::vector<RowItem>& to) {
      CutQueries(problem.first_query, problem.tokens, most, [&](int32_t first, int32_t queries) {
        to.push_back({index, head, first, queries});
      });
    };
    const bool dense = !drawn && staged.may_be_dense && IsDenseGiven(problem, head);
    if (!dense) add(kRowsPerItem, items.rows);
    if (dense || drawn) add(kTileQueries, items.dense);
  }
}

void StageRowItems(RowItems& items, std::span<const DeviceProblem> staged, Staging& staging, DeviceCall& call) {
  for (std::vector<RowItem>* list : {&items.rows, &items.dense}) {
    std::stable_sort(list->begin(), list->end(), [&](const RowItem& a, const RowItem& b) {
      return staged[a.problem].tokens > staged[b.problem].tokens;
    });
  }
  call.row_items = staging.Add(std::span<const RowItem>(items.rows));
  call.num_row_items = static_cast<uint32_t>(items.rows.size());
  call.dense_items = staging.Add(std::span<const RowItem>(items.dense));
  call.num_dense_items = std::ssize(items.dense);
}

void AddTileItems(const AttentionProblem& problem, int32_t index, const AttentionInputs& inputs, bool wide,
                  Staging& staging, std::vector<TileItem>& items) {
  const size_t before = items.size();
  TileCutter cutter(problem, index, inputs, wide, staging, items);
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
    if (is_narrow(a) != is_narrow(b)) return is_narrow(b);
    if (IsWide(a) != IsWide(b)) return IsWide(a);
    const int32_t keys_a = a.num_keys - a.first_key, keys_b = b.num_keys - b.first_key;
    if (!IsWide(a) || keys_a != keys_b) return keys_a > keys_b;
    return std::pair(a.problem, a.head) < std::pair(b.problem, b.head);
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
