#include "kernels/host/pattern_count.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <variant>
#include <vector>

namespace edgewise {
namespace {

// The keys of one query: a list, or first..first+count-1.
struct RowKeys {
  const int32_t* keys = nullptr;
  int64_t count = 0;
  const int32_t* multiplicity = nullptr;
  int32_t first = 0;
};

// Calls visit(query, RowKeys) for every query of one head.
template <typename Visit>
void ForRows(const AttentionProblem& problem, int32_t head, const Visit& visit) {
  const int32_t first = problem.first_query, n = problem.tokens;
  if (const auto* given = std::get_if<ExplicitEdges>(&problem.pattern)) {
    const HeadEdges& edges = (*given->heads)[head];
    const int64_t shift = FirstGivenRow(problem, edges);
    for (int32_t i = first; i < n; ++i) {
      const int64_t begin = edges.row_offsets[i - shift], end = edges.row_offsets[i - shift + 1];
      visit(i, RowKeys{edges.keys.data() + begin, end - begin,
                       edges.multiplicity.empty() ? nullptr : edges.multiplicity.data() + begin});
    }
    return;
  }
  if (const auto* grouped = std::get_if<GroupedKeys>(&problem.pattern)) {
    for (size_t g = 0; g + 1 < grouped->group_begin.size(); ++g) {
      const int32_t* keys = grouped->keys.data() + grouped->key_offsets[g];
      const int64_t all = grouped->key_offsets[g + 1] - grouped->key_offsets[g];
      int64_t seen = grouped->causal ? 0 : all;
      for (int32_t i = grouped->group_begin[g]; i < grouped->group_begin[g + 1]; ++i) {
        while (seen < all && keys[seen] <= i) ++seen;
        visit(i, RowKeys{keys, seen});
      }
    }
    return;
  }
  const auto& all = std::get<AllPairs>(problem.pattern);
  for (int32_t i = first; i < n; ++i) {
    const KeyRun run = KeysOf(all, problem.positions, n, i);
    visit(i, RowKeys{nullptr, run.size(), nullptr, run.begin});
  }
}

HeadReport ReportOf(const AttentionProblem& problem, int32_t head) {
  const Wanted& wanted = problem.report->wanted;
  HeadReport report;
  if (wanted.graph) report.graph.row_offsets.push_back(0);
  std::vector<int64_t> steps(wanted.key_degrees ? problem.tokens + 1 : 0, 0);  // of the degrees 0..n-1
  ForRows(problem, head, [&](int32_t, const RowKeys& row) {
    report.edges += static_cast<uint64_t>(row.count);
    report.isolated += row.count == 0 ? 1 : 0;
    if (wanted.key_degrees && row.keys == nullptr && row.count > 0) {
      ++steps[row.first];
      --steps[row.first + row.count];
    } else if (wanted.key_degrees) {
      for (int64_t k = 0; k < row.count; ++k) {
        ++steps[row.keys[k]];
        --steps[row.keys[k] + 1];
      }
    }
    if (!wanted.graph) return;
    std::vector<int32_t>& keys = report.graph.keys;
    const size_t before = keys.size();
    keys.resize(before + row.count);
    if (row.keys == nullptr) {
      std::iota(keys.begin() + static_cast<int64_t>(before), keys.end(), row.first);
    } else {
      std::copy_n(row.keys, row.count, keys.begin() + static_cast<int64_t>(before));
    }
    if (row.multiplicity != nullptr) {
      report.graph.multiplicity.insert(report.graph.multiplicity.end(), row.multiplicity, row.multiplicity + row.count);
    }
    report.graph.row_offsets.push_back(static_cast<int64_t>(keys.size()));
  });
  if (wanted.expected) report.expected = static_cast<double>(report.edges);
  int64_t degree = 0;
  for (int32_t key = 0; wanted.key_degrees && key < problem.tokens; ++key) {
    degree += steps[key];
    report.key_degrees.push_back(static_cast<uint32_t>(degree));
  }
  return report;
}

}  // namespace

KeyRun KeysOf(const AllPairs& pairs, const int32_t* positions, int32_t tokens, int32_t query) {
  KeyRun run{0, pairs.causal ? query + 1 : tokens};
  if (pairs.reach == AllPairs::kFar) return run;
  if (positions == nullptr) {
    run.begin = std::max(0, query - pairs.reach);
    run.end = static_cast<int32_t>(std::min<int64_t>(run.end, int64_t{query} + pairs.reach + 1));
    return run;
  }
  const int64_t place = positions[query];
  run.begin = static_cast<int32_t>(std::lower_bound(positions, positions + query, place - pairs.reach) - positions);
  run.end =
      static_cast<int32_t>(std::upper_bound(positions + query, positions + run.end, place + pairs.reach) - positions);
  return run;
}

int64_t RunLength(const int32_t* keys, int64_t count) {
  if (count > 0 && keys[count - 1] - keys[0] == count - 1) return count;
  int64_t run = 0;
  while (run < count && keys[run] - keys[0] == run) ++run;
  return run;
}

int64_t FirstGivenRow(const AttentionProblem& problem, const HeadEdges& given) {
  return static_cast<int64_t>(given.row_offsets.size()) - 1 == problem.tokens ? 0 : problem.first_query;
}

uint64_t CountHeadEdges(const AttentionProblem& problem, int32_t head) {
  uint64_t edges = 0;
  ForRows(problem, head, [&](int32_t, const RowKeys& row) { edges += static_cast<uint64_t>(row.count); });
  return edges;
}

uint64_t CountEdges(const AttentionProblem& problem, int32_t num_heads) {
  const bool alike = !std::holds_alternative<ExplicitEdges>(problem.pattern);  // for all heads
  uint64_t edges = 0;
  for (int32_t head = 0; head < (alike ? 1 : num_heads); ++head) edges += CountHeadEdges(problem, head);
  return alike ? edges * num_heads : edges;
}

void ReportUndrawn(const AttentionProblem& problem, int32_t num_heads) {
  const bool alike = !std::holds_alternative<ExplicitEdges>(problem.pattern);
  std::vector<HeadReport>& heads = problem.report->heads;
  heads.clear();
  for (int32_t head = 0; head < num_heads; ++head) {
    heads.push_back(alike && head > 0 ? heads[0] : ReportOf(problem, head));
  }
}

}  // namespace edgewise
