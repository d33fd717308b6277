// Patterns whose queries share their keys: all pairs, grouped keys, and given edges that came from them. A group of
// rows is computed by dense tiles of 64 keys: of its list, gathered tile by tile, or of the sequence.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/cpu/attention/report.h"
#include "kernels/cpu/attention/work.h"
#include "kernels/host/pattern_count.h"

namespace edgewise::cpu_attention {
namespace {

// Most rows that share the packing of a tile, where tiles are not prepared; whole strips.
constexpr int kGroupRows = 516;
// Most rows of a group of causal pairs: groups differ in cost, and threads should end together.
constexpr int kCausalRows = 348;

// Rows first..end - 1 with their list, or with runs of the tokens begin..count - 1, in equal parts of at most
// `most_rows`, and within plan.most_pairs.
void AddGroup(int64_t first, int64_t end, const int32_t* keys, int64_t count, int most_rows, CompactPlan& plan,
              int64_t begin = 0) {
  const int64_t strips = plan.most_pairs / std::max<int64_t>(1, count - begin) / kStripRows;
  const int64_t most = std::clamp<int64_t>(strips * kStripRows, kStripRows, most_rows);
  const int64_t parts = (end - first + most - 1) / most;
  if (parts == 0) return;
  const int64_t part = ((end - first + parts - 1) / parts + kStripRows - 1) / kStripRows * kStripRows;
  for (int64_t row = first; row < end; row += part) {
    const int64_t rows = std::min<int64_t>(part, end - row);
    plan.groups.push_back({static_cast<int32_t>(row), static_cast<int32_t>(rows), keys, count, begin});
  }
}

// Whether groups read aligned runs of 16 keys, as packed tiles have them, more than twice per key.
bool ShareTiles(const CompactPlan& plan, int64_t tokens) {
  constexpr int64_t kRun = 16;
  int64_t left = 2 * tokens;
  for (const KeyGroup& group : plan.groups) {
    if (group.keys == nullptr) left -= (group.count - group.begin) / kRun * kRun;
    for (int64_t place = group.keys == nullptr ? group.count : 0; place + kRun <= group.count; place += kRun) {
      const int32_t* keys = group.keys + place;
      if (keys[0] % kRun == 0 && keys[kRun - 1] - keys[0] == kRun - 1) left -= kRun;
      if (left < 0) return true;
    }
  }
  return left < 0;
}

void MakeItems(CompactPlan& plan) {
  int64_t cost = 0;
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    cost += plan.groups[g].cost();
    if (cost < kItemCost && g + 1 < plan.groups.size()) continue;
    plan.items.push_back(static_cast<int32_t>(g) + 1);
    cost = 0;
  }
}

// The tokens of its group's runs that a query sees.
KeyRun RunOf(const AttentionProblem& problem, const CompactPlan& plan, const KeyGroup& group, int32_t query) {
  const auto begin = static_cast<int32_t>(group.begin), end = static_cast<int32_t>(group.count);
  if (plan.windows != nullptr) return KeysOf(*plan.windows, problem.positions, problem.tokens, query);
  if (plan.given == nullptr) return {begin, plan.causal ? std::clamp(query + 1, begin, end) : end};
  const int64_t* offsets = plan.given->row_offsets.data() + query - plan.given_first;
  if (offsets[0] == offsets[1]) return {begin, begin};
  const int32_t first = plan.given->keys[offsets[0]];
  return {first, first + static_cast<int32_t>(offsets[1] - offsets[0])};
}

// Narrows begin and count of a group of runs to what its rows see.
void FitRuns(const AttentionProblem& problem, const CompactPlan& plan, KeyGroup& group) {
  KeyRun all{problem.tokens, 0};
  for (int32_t query = group.first; query < group.first + group.rows; ++query) {
    const KeyRun run = RunOf(problem, plan, group, query);
    if (run.size() == 0) continue;
    all = {std::min(all.begin, run.begin), std::max(all.end, run.end)};
  }
  group.count = all.end;
  group.begin = std::min(all.begin, all.end);
}

// Given rows begin..end - 1: neighbours that are the beginnings of one list.
void PlanLists(const HeadEdges& given, int64_t begin, int64_t end, CompactPlan& plan) {
  int64_t first = begin;
  const int32_t* keys = nullptr;  // the longest row since `first`
  int64_t count = 0;
  for (int64_t query = begin; query < end; ++query) {
    const int64_t* offsets = given.row_offsets.data() + query - plan.given_first;
    const int32_t* row = given.keys.data() + offsets[0];
    const int64_t size = offsets[1] - offsets[0];
    const size_t common = static_cast<size_t>(std::min(size, count));
    if (common > 0 && std::memcmp(row, keys, common * sizeof(int32_t)) != 0) {
      AddGroup(first, query, keys, count, kGroupRows, plan);
      first = query;
      count = 0;
    }
    if (size > count || count == 0) {
      keys = row;
      count = size;
    }
  }
  AddGroup(first, end, keys, count, kGroupRows, plan);
}

// Sets which keys each row of a group sees.
void SetLimits(const AttentionProblem& problem, const CompactPlan& plan, const KeyGroup& group, Worker& worker,
               AttendBlock& attend) {
  const bool runs = group.keys == nullptr;
  if (!plan.causal && plan.given == nullptr && plan.windows == nullptr && group.begin == 0) return;
  attend.limits = worker.limits;
  if (runs) attend.starts = worker.starts;
  int64_t seen = 0;
  for (int32_t r = 0; r < group.rows; ++r) {
    const int32_t query = group.first + r;
    if (runs) {
      const KeyRun run = RunOf(problem, plan, group, query);
      worker.starts[r] = run.begin;
      seen = run.end;
    } else if (plan.given != nullptr) {
      const int64_t* offsets = plan.given->row_offsets.data() + query - plan.given_first;
      seen = offsets[1] - offsets[0];
    } else if (r == 0) {
      seen = std::upper_bound(group.keys, group.keys + group.count, query) - group.keys;
    } else {
      while (seen < group.count && group.keys[seen] <= query) ++seen;
    }
    worker.limits[r] = static_cast<int32_t>(seen);
  }
}

// The places in its group's keys that a row sees: from, up to.
int64_t StartOf(const AttendBlock& attended, int32_t r) { return attended.starts == nullptr ? 0 : attended.starts[r]; }
int64_t LimitOf(const AttendBlock& attended, const KeyGroup& group, int32_t r) {
  return attended.limits == nullptr ? group.count : attended.limits[r];
}

// Adds the number of rows of the group that see each of its keys.
void AddDegrees(const KeyGroup& group, const AttendBlock& attended, uint32_t* degrees) {
  std::vector<int32_t> steps(static_cast<size_t>(group.count) + 1, 0);  // of the degrees, from one key to the next
  for (int32_t r = 0; r < group.rows; ++r) {
    ++steps[StartOf(attended, r)];
    --steps[LimitOf(attended, group, r)];
  }
  int32_t seen = 0;
  for (int64_t place = 0; place < group.count; ++place) {
    seen += steps[place];
    const int64_t key = group.keys == nullptr ? place : group.keys[place];
    if (seen > 0) {
      std::atomic_ref<uint32_t>(degrees[key]).fetch_add(static_cast<uint32_t>(seen), std::memory_order_relaxed);
    }
  }
}

void ReportGroup(const Call& call, const HeadPlan& head, const KeyGroup& group, const AttendBlock& attended,
                 Worker& worker, BlockReport& block) {
  AttentionReport& report = *head.problem->report;
  const auto seen = [&](int32_t r) { return LimitOf(attended, group, r) - StartOf(attended, r); };
  for (int32_t r = 0; r < group.rows; ++r) {
    block.edges += static_cast<uint64_t>(seen(r));
    if (seen(r) == 0) ++block.isolated;
  }
  if (report.wanted.key_degrees) AddDegrees(group, attended, report.heads[head.index].key_degrees.data());
  if (!report.wanted.graph) return;
  const int32_t* keys = group.keys;
  if (keys == nullptr) {
    for (int64_t key = 0; key < group.count; ++key) worker.row_keys[key] = static_cast<int32_t>(key);
    keys = worker.row_keys;
  }
  const HeadEdges* given = head.plan->given;
  const bool multi = given != nullptr && !given->multiplicity.empty();
  for (int32_t r = 0; r < group.rows; ++r) {
    RecordRow(call, attended, r, {keys + StartOf(attended, r), seen(r), nullptr}, multi, block);
  }
}

// Blocks run from the last to the first.
const float* KeysAfter(const Call& call, int64_t block) {
  if (block == 0) return nullptr;
  const HeadPlan& next = call.HeadOf(block - 1);
  if (next.plan == nullptr || next.plan->windows != nullptr || next.operands.pages == nullptr) return nullptr;
  return next.operands.pages[0] + next.operands.k_in_page;
}

}  // namespace

void PlanProblem(const AttentionProblem& problem, int depth, bool runs, CompactPlan& plan) {
  if (const auto* grouped = std::get_if<GroupedKeys>(&problem.pattern)) {
    plan.causal = grouped->causal;
    for (size_t g = 0; g + 1 < grouped->group_begin.size(); ++g) {
      const int32_t first = grouped->group_begin[g], end = grouped->group_begin[g + 1];
      const int32_t* keys = grouped->keys.data() + grouped->key_offsets[g];
      const int64_t count = grouped->key_offsets[g + 1] - grouped->key_offsets[g];
      const int64_t run = runs ? RunLength(keys, count) : 0;
      // The queries that see no key beyond the run.
      const int32_t lists = run == 0          ? first
                            : run == count    ? end
                            : grouped->causal ? std::clamp(keys[run], first, end)
                                              : first;
      if (lists > first) AddGroup(first, lists, nullptr, keys[0] + run, kGroupRows, plan, keys[0]);
      AddGroup(lists, end, keys, count, kGroupRows, plan);
    }
    plan.shared = ShareTiles(plan, problem.tokens);
  } else {
    const auto& all = std::get<AllPairs>(problem.pattern);
    plan.causal = all.causal;
    const int64_t n = problem.tokens;
    const int block_rows = BlockRows(n, depth, kNearTiles);
    AddGroup(problem.first_query, n, nullptr, n, plan.causal ? std::min(block_rows, kCausalRows) : block_rows, plan);
    plan.shared = plan.groups.size() > 1;
    if (all.reach != AllPairs::kFar) {
      plan.windows = &all;
      for (KeyGroup& group : plan.groups) FitRuns(problem, plan, group);
    }
  }
  MakeItems(plan);
}

void PlanGiven(const AttentionProblem& problem, const HeadEdges& given, bool runs, CompactPlan& plan) {
  plan.given = &given;
  plan.given_first = FirstGivenRow(problem, given);
  const auto is_run = [&](int64_t query) {
    const int64_t* offsets = given.row_offsets.data() + query - plan.given_first;
    const int64_t size = offsets[1] - offsets[0];
    return runs && RunLength(given.keys.data() + offsets[0], size) == size;
  };
  for (int64_t query = problem.first_query; query < problem.tokens;) {
    int64_t end = query + 1;  // of the rows that are alike
    const bool as_runs = is_run(query);
    while (end < problem.tokens && is_run(end) == as_runs) ++end;
    if (as_runs) {
      const size_t before = plan.groups.size();
      AddGroup(query, end, nullptr, problem.tokens, kCausalRows, plan);
      for (size_t g = before; g < plan.groups.size(); ++g) FitRuns(problem, plan, plan.groups[g]);
    } else {
      PlanLists(given, query, end, plan);
    }
    query = end;
  }
  plan.shared = ShareTiles(plan, problem.tokens);
  MakeItems(plan);
}

void AttendItem(Call& call, int64_t block, Worker& worker) {
  const HeadPlan& head = call.HeadOf(block);
  const CompactPlan& plan = *head.plan;
  const int64_t item = block - head.first_block;
  float* scratch = nullptr;
  worker.block_memory.Lay([&](const auto& place) { place(scratch, DenseScratchFloats(head.operands.depth)); });
  for (int32_t g = plan.items[item]; g < plan.items[item + 1]; ++g) {
    const KeyGroup& group = plan.groups[g];
    AttendBlock attend = OperandsOf(head, group.first, ComputedRows(head, group.first, group.rows), worker);
    attend.keys = group.count;
    attend.list = group.keys;
    attend.next_k = KeysAfter(call, block);
    SetLimits(*head.problem, plan, group, worker, attend);
    attend.scratch = scratch;
    if (attend.rows > 0) call.kernels->attend_dense(attend);
    ReportGroup(call, head, group, attend, worker, call.reports[block]);
  }
}

}  // namespace edgewise::cpu_attention
