#include "kernels/cuda/attention/items.h"

#include <algorithm>
#include <span>
#include <variant>

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

void AddForHeads(int32_t num_heads, TileItem item, std::vector<TileItem>& items) {
  for (item.head = 0; item.head < num_heads; ++item.head) items.push_back(item);
}

void AddGroups(const AttentionProblem& problem, const GroupedKeys& groups, int32_t index, int32_t num_heads,
               int32_t most_queries, Staging& staging, std::vector<TileItem>& items) {
  const int32_t* keys = staging.Add(std::span<const int32_t>(groups.keys));
  std::vector<int32_t> seen;  // keys that each query sees
  if (groups.causal) {
    for (size_t g = 0; g + 1 < groups.group_begin.size(); ++g) {
      const auto first = groups.keys.begin() + groups.key_offsets[g],
                 last = groups.keys.begin() + groups.key_offsets[g + 1];
      for (int32_t i = groups.group_begin[g]; i < groups.group_begin[g + 1]; ++i) {
        seen.push_back(static_cast<int32_t>(std::upper_bound(first, last, i) - first));
      }
    }
  }
  const int32_t* limits = staging.Add(std::span<const int32_t>(seen));
  for (size_t g = 0; g + 1 < groups.group_begin.size(); ++g) {
    const auto count = static_cast<int32_t>(groups.key_offsets[g + 1] - groups.key_offsets[g]);
    CutQueries(groups.group_begin[g], groups.group_begin[g + 1], most_queries, [&](int32_t first, int32_t queries) {
      const int32_t row = first - problem.first_query;
      TileItem item = {index,  0, first, queries, count, 0, count == 0 ? nullptr : keys + groups.key_offsets[g],
                       nullptr};
      if (groups.causal) {
        item.num_keys = seen[row + queries - 1];
        item.limits = limits + row;
      }
      AddForHeads(num_heads, item, items);
    });
  }
}

void AddGivenTiles(const AttentionProblem& problem, const HeadEdges& edges, int32_t index, int32_t head,
                   int32_t most_queries, Staging& staging, std::vector<TileItem>& items) {
  const int32_t* keys = staging.Add(std::span<const int32_t>(edges.keys));
  const int64_t shift = FirstGivenRow(problem, edges);
  std::vector<int32_t> seen;
  for (int32_t i = problem.first_query; i < problem.tokens; ++i) {
    seen.push_back(static_cast<int32_t>(edges.row_offsets[i - shift + 1] - edges.row_offsets[i - shift]));
  }
  const int32_t* limits = staging.Add(std::span<const int32_t>(seen));
  TileItem item = {};
  std::span<const int32_t> longest;
  const auto finish = [&] {
    if (item.queries > 0) items.push_back(item);
  };
  for (int32_t i = problem.first_query; i < problem.tokens; ++i) {
    const int64_t begin = edges.row_offsets[i - shift];
    const auto row = std::span(edges.keys).subspan(begin, seen[i - problem.first_query]);
    const auto shared = static_cast<int64_t>(std::min(row.size(), longest.size()));
    const bool joins = item.queries > 0 && item.queries < most_queries &&
                       std::equal(row.begin(), row.begin() + shared, longest.begin());
    if (!joins) {
      finish();
      item = {index, head, i, 0, 0, 0, nullptr, limits + (i - problem.first_query)};
      longest = {};
    }
    ++item.queries;
    if (row.size() > longest.size()) {
      longest = row;
      item.num_keys = static_cast<int32_t>(row.size());
      item.keys = keys + begin;
    }
  }
  finish();
}

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

void AddTileItems(const AttentionProblem& problem, int32_t index, int32_t num_heads, Phase phase, Staging& staging,
                  std::vector<TileItem>& items) {
  const size_t before = items.size();
  const int32_t most_queries = phase == Phase::kDecode ? kWarpQueries : kTileQueries;
  if (const auto* groups = std::get_if<GroupedKeys>(&problem.pattern)) {
    AddGroups(problem, *groups, index, num_heads, most_queries, staging, items);
  } else if (const auto* given = std::get_if<ExplicitEdges>(&problem.pattern)) {
    for (int32_t head = 0; head < num_heads; ++head) {
      AddGivenTiles(problem, (*given->heads)[head], index, head, most_queries, staging, items);
    }
  } else {
    const bool causal = std::get<AllPairs>(problem.pattern).causal;
    CutQueries(problem.first_query, problem.tokens, most_queries, [&](int32_t first, int32_t queries) {
      AddForHeads(num_heads, {index, 0, first, queries, causal ? first + queries : problem.tokens, causal ? 1 : 0},
                  items);
    });
  }
  if (phase != Phase::kDecode) return;
  for (TileItem& item : std::span(items).subspan(before)) item.first_part = item.num_keys > kPartKeys ? 0 : -1;
}

int64_t OrderTileItems(std::vector<TileItem>& items) {
  const auto is_few = [](const TileItem& item) { return item.queries <= kWarpQueries; };
  const bool most_are = 2 * std::count_if(items.begin(), items.end(), is_few) > std::ssize(items);
  const auto is_narrow = [&](const TileItem& item) { return item.first_part >= 0 || (most_are && is_few(item)); };
  std::stable_sort(items.begin(), items.end(), [&](const TileItem& a, const TileItem& b) {
    return is_narrow(a) != is_narrow(b) ? is_narrow(b) : a.num_keys > b.num_keys;
  });
  return std::count_if(items.begin(), items.end(), is_narrow);
}

std::vector<NarrowRun> PlaceParts(std::span<TileItem> narrow, int64_t most_rows) {
  std::vector<NarrowRun> runs = {{0, 0, 1, 0}};
  for (TileItem& item : narrow) {
    const int32_t parts = PartsOf(item);
    const int64_t rows = item.first_part < 0 ? 0 : int64_t{parts} * item.queries;
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
