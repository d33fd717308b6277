// Patterns whose queries share their keys: all pairs, grouped keys, and given edges that came from them. A group of
// rows is computed by dense tiles of 64 keys of its list, which are gathered tile by tile.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/cpu/attention/report.h"
#include "kernels/cpu/attention/work.h"
#include "kernels/pattern_count.h"

namespace edgewise::cpu_attention {
namespace {

// Most rows that share the packing of a tile, where tiles are not prepared; a multiple of 12.
constexpr int kGroupRows = 516;
// Most rows of a group of causal pairs: groups differ in cost, and threads should end together.
constexpr int kCausalRows = 348;

// Rows first..end - 1 with their list, in equal parts of at most `most_rows`.
void AddGroup(int64_t first, int64_t end, const int32_t* keys, int64_t count, int most_rows, CompactPlan& plan) {
  const int64_t parts = (end - first + most_rows - 1) / most_rows;
  if (parts == 0) return;
  const int64_t part = ((end - first + parts - 1) / parts + 11) / 12 * 12;  // whole strips
  for (int64_t row = first; row < end; row += part) {
    const int64_t rows = std::min<int64_t>(part, end - row);
    plan.groups.push_back({static_cast<int32_t>(row), static_cast<int32_t>(rows), keys, count});
  }
}

// Whether groups read aligned runs of 16 keys, as packed tiles have them, more than twice per key.
bool ShareTiles(const CompactPlan& plan, int64_t tokens) {
  constexpr int64_t kRun = 16;
  int64_t left = 2 * tokens;
  for (const KeyGroup& group : plan.groups) {
    for (int64_t place = 0; place + kRun <= group.count; place += kRun) {
      const int32_t* keys = group.keys + place;
      if (keys[0] % kRun == 0 && keys[kRun - 1] - keys[0] == kRun - 1) left -= kRun;
      if (left < 0) return true;
    }
  }
  return false;
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

// The number of keys of its list that each row of a group sees; null: all.
const int32_t* LimitsOf(const CompactPlan& plan, const KeyGroup& group, Worker& worker) {
  if (!plan.causal && plan.given == nullptr) return nullptr;
  int64_t seen = 0;
  for (int32_t r = 0; r < group.rows; ++r) {
    const int64_t query = group.first + r;
    if (plan.given != nullptr) {
      const int64_t* offsets = plan.given->row_offsets.data() + query - plan.given_first;
      seen = offsets[1] - offsets[0];
    } else if (group.keys == nullptr) {
      seen = std::min(group.count, query + 1);
    } else if (r == 0) {
      seen = std::upper_bound(group.keys, group.keys + group.count, static_cast<int32_t>(query)) - group.keys;
    } else {
      while (seen < group.count && group.keys[seen] <= query) ++seen;
    }
    worker.limits[r] = static_cast<int32_t>(seen);
  }
  return worker.limits;
}

// Adds the number of rows of the group that see each of its keys.
void AddDegrees(const KeyGroup& group, const int32_t* limits, uint32_t* degrees) {
  std::vector<uint32_t> end_here(static_cast<size_t>(group.count) + 1, 0);
  for (int32_t r = 0; r < group.rows; ++r) ++end_here[limits == nullptr ? group.count : limits[r]];
  uint32_t seen = 0;
  for (int64_t place = group.count; place-- > 0;) {
    seen += end_here[place + 1];
    const int64_t key = group.keys == nullptr ? place : group.keys[place];
    if (seen > 0) std::atomic_ref<uint32_t>(degrees[key]).fetch_add(seen, std::memory_order_relaxed);
  }
}

void ReportGroup(const Call& call, const Head& head, const KeyGroup& group, const AttendBlock& attended, Worker& worker,
                 BlockReport& block) {
  AttentionReport& report = *head.problem->report;
  const auto seen = [&](int32_t r) {
    return attended.limits == nullptr ? group.count : static_cast<int64_t>(attended.limits[r]);
  };
  for (int32_t r = 0; r < group.rows; ++r) {
    block.edges += static_cast<uint64_t>(seen(r));
    if (seen(r) == 0) ++block.isolated;
  }
  if (report.wanted.key_degrees) AddDegrees(group, attended.limits, report.heads[head.index].key_degrees.data());
  if (!report.wanted.graph) return;
  const int32_t* keys = group.keys;
  if (keys == nullptr) {
    for (int64_t key = 0; key < group.count; ++key) worker.row_keys[key] = static_cast<int32_t>(key);
    keys = worker.row_keys;
  }
  const HeadEdges* given = head.plan->given;
  const bool multi = given != nullptr && !given->multiplicity.empty();
  for (int32_t r = 0; r < group.rows; ++r) RecordRow(call, attended, r, {keys, seen(r), nullptr}, multi, block);
}

}  // namespace

std::unique_ptr<CompactPlan> PlanProblem(const AttentionProblem& problem, int depth) {
  auto plan = std::make_unique<CompactPlan>();
  if (const auto* grouped = std::get_if<GroupedKeys>(&problem.pattern)) {
    plan->causal = grouped->causal;
    for (size_t g = 0; g + 1 < grouped->group_begin.size(); ++g) {
      const int64_t begin = grouped->key_offsets[g];
      AddGroup(grouped->group_begin[g], grouped->group_begin[g + 1], grouped->keys.data() + begin,
               grouped->key_offsets[g + 1] - begin, kGroupRows, *plan);
    }
    plan->shared = ShareTiles(*plan, problem.tokens);
  } else {
    plan->causal = std::get<AllPairs>(problem.pattern).causal;
    const int64_t n = problem.tokens;
    const int block_rows = BlockRows(n, depth);
    AddGroup(problem.first_query, n, nullptr, n, plan->causal ? std::min(block_rows, kCausalRows) : block_rows, *plan);
    plan->shared = plan->groups.size() > 1;
  }
  MakeItems(*plan);
  return plan;
}

std::unique_ptr<CompactPlan> PlanGiven(const AttentionProblem& problem, const HeadEdges& given) {
  auto plan = std::make_unique<CompactPlan>();
  plan->given = &given;
  plan->given_first = FirstGivenRow(problem, given);
  int64_t first = problem.first_query;
  const int32_t* keys = nullptr;  // the longest row since `first`
  int64_t count = 0;
  for (int64_t query = first; query < problem.tokens; ++query) {
    const int64_t* offsets = given.row_offsets.data() + query - plan->given_first;
    const int32_t* row = given.keys.data() + offsets[0];
    const int64_t size = offsets[1] - offsets[0];
    const size_t common = static_cast<size_t>(std::min(size, count));
    if (common > 0 && std::memcmp(row, keys, common * sizeof(int32_t)) != 0) {
      AddGroup(first, query, keys, count, kGroupRows, *plan);
      first = query;
      count = 0;
    }
    if (size > count || count == 0) {
      keys = row;
      count = size;
    }
  }
  AddGroup(first, problem.tokens, keys, count, kGroupRows, *plan);
  plan->shared = ShareTiles(*plan, problem.tokens);
  MakeItems(*plan);
  return plan;
}

void AttendItem(Call& call, int64_t block, Worker& worker) {
  const Head& head = call.HeadOf(block);
  const CompactPlan& plan = *head.plan;
  const int64_t item = block - head.first_block;
  float* scratch = nullptr;
  worker.block_memory.Lay([&](const auto& place) { place(scratch, DenseScratchFloats(head.depth)); });
  for (int32_t g = plan.items[item]; g < plan.items[item + 1]; ++g) {
    const KeyGroup& group = plan.groups[g];
    AttendBlock attend = OperandsOf(call, head, group.first, ComputedRows(head, group.first, group.rows), worker);
    attend.keys = group.count;
    attend.list = group.keys;
    attend.limits = LimitsOf(plan, group, worker);
    attend.scratch = scratch;
    attend.k_tiles = head.k_tiles;
    const int columns = call.value_dim();
    attend.out = call.out.row(head.problem->out_row + group.first - head.first_query) + head.index * columns;
    attend.out_stride = call.out.stride;
    attend.out_columns = columns;
    if (attend.rows > 0) call.kernels->attend_dense(attend);
    ReportGroup(call, head, group, attend, worker, call.reports[block]);
  }
  if (head.problem->report->wanted.expected) {
    call.reports[block].expected = static_cast<double>(call.reports[block].edges);
  }
}

}  // namespace edgewise::cpu_attention
