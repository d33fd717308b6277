#include "kernels/cpu/attention/attention.h"

#include <algorithm>
#include <new>

#include "kernels/cpu/attention/report.h"
#include "kernels/cpu/attention/work.h"

namespace edgewise {
namespace cpu_attention {
namespace {

constexpr size_t kKeptBytes = size_t{64} << 20;  // of each memory, between calls

// Heads of one problem come one after the other.
void SetPattern(const AttentionProblem& problem, Call& call, Head& head) {
  head.drawn = std::get_if<DrawnRows>(&problem.pattern);
  if (head.drawn != nullptr) return;
  const auto* given = std::get_if<ExplicitEdges>(&problem.pattern);
  if (given == nullptr) {
    if (head.index == 0) call.plans.push_back(PlanProblem(problem, head.depth));
    head.plan = call.plans.back().get();
    return;
  }
  const HeadEdges& edges = (*given->heads)[head.index];
  const bool single =
      std::all_of(edges.multiplicity.begin(), edges.multiplicity.end(), [](int32_t count) { return count == 1; });
  if (!given->compact || !single) {
    head.given = &edges;
    return;
  }
  call.plans.push_back(PlanGiven(problem, edges));
  head.plan = call.plans.back().get();
}

void SetBias(const AttentionInputs& inputs, const AttentionProblem& problem, Head& head) {
  BiasView& bias = head.bias;
  bias.key_positions = problem.positions;
  if (inputs.distance_bias != nullptr) {
    const int64_t span = inputs.distance_span;
    bias.distance = inputs.distance_bias + head.index * (2 * span - 1) + span - 1;
  }
  if (problem.bias != nullptr) {
    bias.length = problem.bias->length;
    bias.values = problem.bias->values;
    bias.buckets = problem.bias->buckets;
    if (bias.buckets != nullptr) bias.table = problem.bias->table + head.index * 256;
  }
  head.biased = bias.distance != nullptr || bias.values != nullptr || bias.buckets != nullptr;
}

Call MakeCall(const CpuKernels& kernels, const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
              Matrix out) {
  Call call;
  call.kernels = &kernels;
  call.inputs = &inputs;
  call.out = out;
  for (const AttentionProblem& problem : problems) {
    problem.report->heads.assign(static_cast<size_t>(inputs.num_heads), HeadReport());
    for (int h = 0; h < inputs.num_heads; ++h) {
      Head head;
      head.problem = &problem;
      head.index = h;
      head.n = problem.tokens;
      head.first_query = problem.first_query;
      head.depth = (std::max(inputs.head_dim, inputs.value_dim) + 15) / 16 * 16;
      head.block_rows = BlockRows(head.n, head.depth);
      SetPattern(problem, call, head);
      SetBias(inputs, problem, head);
      head.capped = problem.cap >= 0 && head.drawn != nullptr;
      head.first_block = static_cast<int64_t>(call.block_head.size());
      call.block_head.insert(call.block_head.end(), static_cast<size_t>(head.blocks()),
                             static_cast<int32_t>(call.heads.size()));
      call.heads.push_back(head);
      if (problem.report->wanted.key_degrees) problem.report->heads[h].key_degrees.assign(problem.tokens, 0);
    }
  }
  call.reports.resize(call.block_head.size());
  call.kept.resize(call.block_head.size());
  return call;
}

void PrepareWorkers(const Call& call, std::span<Worker> workers) {
  int64_t columns = 0;
  int depth = 0;
  for (const Head& head : call.heads) {
    columns = std::max(columns, head.columns);
    depth = std::max(depth, head.depth);
  }
  for (Worker& worker : workers) worker.Prepare(columns, depth);
}

// Nanoseconds of one thread, roughly.
int64_t WorkOf(const Call& call) {
  int64_t work = 0;
  for (const Head& head : call.heads) {
    if (head.plan == nullptr) {
      work += (head.n - head.first_query) * (head.n + 100);
    } else {
      for (const KeyGroup& group : head.plan->groups) work += group.cost() * kCostNanoseconds;
    }
    if (work >= ThreadPool::kSharedWork) break;
  }
  return work;
}

// Whether the rest of a problem may be left out. Ledgers and graphs are made from all of its blocks.
bool IsCancelled(const AttentionProblem& problem) {
  return problem.cancel != nullptr && problem.cancel->cancelled() && problem.cap < 0 && !problem.report->wanted.graph;
}

void AttendBlocks(ThreadPool& pool, std::span<Worker> workers, Call& call) {
  const auto blocks = static_cast<int64_t>(call.block_head.size());
  pool.For(blocks, WorkOf(call), [&](int64_t item, int worker) {
    const int64_t block = blocks - 1 - item;  // causal patterns: the longest rows first
    const Head& head = call.HeadOf(block);
    if (IsCancelled(*head.problem)) return;
    if (head.plan != nullptr) return AttendItem(call, block, workers[worker]);
    AttendRows(call, block, workers[worker]);
  });
}

// Whether the edges reported stay within every cap.
bool WithinCaps(std::span<const AttentionProblem> problems, std::span<const EdgeCap> caps) {
  std::vector<uint64_t> edges(caps.size(), 0);
  for (const AttentionProblem& problem : problems) {
    if (problem.cap < 0) continue;
    for (const HeadReport& head : problem.report->heads) edges[problem.cap] += head.edges;
  }
  for (size_t c = 0; c < caps.size(); ++c) {
    if (edges[c] > caps[c].max_edges) return false;
  }
  return true;
}

}  // namespace
}  // namespace cpu_attention

absl::Status CpuAttend(const CpuKernels& kernels, ThreadPool& pool, AttentionScratch& scratch,
                       const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                       std::span<EdgeCap> caps, Matrix out) {
  using namespace cpu_attention;
  try {
    if (scratch.workers.empty()) scratch.workers = std::vector<Worker>(static_cast<size_t>(pool.num_threads()));
    for (const bool optimistic : {true, false}) {
      for (EdgeCap& cap : caps) cap.capped = false;
      Call call = MakeCall(kernels, inputs, problems, out);
      PrepareHeads(pool, scratch.heads, call);
      PrepareWorkers(call, scratch.workers);
      const bool unchecked = !caps.empty() && ApplyCaps(pool, scratch.workers, caps, optimistic, call);
      AttendBlocks(pool, scratch.workers, call);
      CollectReports(call);
      if (!unchecked || WithinCaps(problems, caps)) break;
    }
    scratch.ReleaseAbove(kKeptBytes);
  } catch (const std::bad_alloc&) {
    scratch = AttentionScratch();
    return absl::ResourceExhaustedError("attention: out of memory");
  }
  return absl::OkStatus();
}

}  // namespace edgewise
