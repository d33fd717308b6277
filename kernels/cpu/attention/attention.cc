#include "kernels/cpu/attention/attention.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/attention/report.h"
#include "kernels/cpu/attention/work.h"

namespace edgewise {
namespace cpu_attention {
namespace {

constexpr int64_t kProductsPerNanosecond = 64;   // of memberships, of one thread, roughly
constexpr size_t kKeptBytes = size_t{64} << 20;  // of each memory, between calls

// An empty plan with the memory of an older one.
CompactPlan& NextPlan(int64_t most_pairs, Call& call) {
  if (call.used_plans == call.plans.size()) call.plans.push_back(std::make_unique<CompactPlan>());
  CompactPlan& plan = *call.plans[call.used_plans++];
  plan.causal = plan.shared = false;
  plan.windows = nullptr;
  plan.given = nullptr;
  plan.groups.clear();
  plan.items.assign(1, 0);
  plan.most_pairs = most_pairs;
  return plan;
}

// Heads of one problem come one after the other. `most_pairs`: of a plan's groups.
void SetPattern(const AttentionProblem& problem, bool runs, int64_t most_pairs, Call& call, HeadPlan& head) {
  head.drawn = std::get_if<DrawnRows>(&problem.pattern);
  if (head.drawn != nullptr) return;
  const auto* given = std::get_if<ExplicitEdges>(&problem.pattern);
  if (given == nullptr) {
    if (head.index == 0) PlanProblem(problem, head.operands.depth, runs, NextPlan(most_pairs, call));
    head.plan = call.plans[call.used_plans - 1].get();
    return;
  }
  const HeadEdges& edges = (*given->heads)[head.index];
  const bool single =
      std::all_of(edges.multiplicity.begin(), edges.multiplicity.end(), [](int32_t count) { return count == 1; });
  if (!given->compact || !single) {
    head.given = &edges;
    return;
  }
  PlanGiven(problem, edges, runs, NextPlan(most_pairs, call));
  head.plan = call.plans[call.used_plans - 1].get();
}

void SetBias(const AttentionInputs& inputs, const AttentionProblem& problem, HeadPlan& head) {
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
}

// `share`: of the pairs of all problems, how many a group of rows may have.
void StartCall(const CpuKernels& kernels, const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
               Matrix out, double share, Call& call) {
  double pairs = 0.0;
  for (const AttentionProblem& problem : problems) {
    pairs += static_cast<double>(problem.tokens - problem.first_query) * problem.tokens * inputs.num_heads;
  }
  const int64_t most_pairs = share < 1.0 ? static_cast<int64_t>(share * pairs) : INT64_MAX;
  call.used_plans = 0;
  call.heads.clear();
  call.block_head.clear();
  call.kept.clear();
  call.expected.clear();
  call.kernels = &kernels;
  call.inputs = &inputs;
  call.out = out;
  for (const AttentionProblem& problem : problems) {
    problem.report->heads.assign(static_cast<size_t>(inputs.num_heads), HeadReport());
    for (int h = 0; h < inputs.num_heads; ++h) {
      HeadPlan& head = call.heads.emplace_back();
      head.problem = &problem;
      head.index = h;
      head.n = problem.tokens;
      head.first_query = problem.first_query;
      head.operands.depth = (std::max(inputs.head_dim, inputs.value_dim) + 15) / 16 * 16;
      head.block_rows = BlockRows(head.n, head.operands.depth, kNearEdges);
      SetPattern(problem, inputs.runs_as_windows, most_pairs, call, head);
      SetBias(inputs, problem, head);
      head.capped = problem.cap >= 0 && head.drawn != nullptr;
      head.first_block = static_cast<int64_t>(call.block_head.size());
      call.block_head.insert(call.block_head.end(), static_cast<size_t>(head.blocks()),
                             static_cast<int32_t>(call.heads.size()) - 1);
      for (int64_t row = 0; problem.report->wanted.expected && head.drawn != nullptr && row < head.n;
           row += kExpectedRows) {
        call.expected.push_back({static_cast<int32_t>(call.heads.size()) - 1, row});
      }
      if (problem.report->wanted.key_degrees) problem.report->heads[h].key_degrees.assign(problem.tokens, 0);
    }
  }
  call.reports.assign(call.block_head.size(), BlockReport());
}

void PrepareWorkers(const Call& call, std::span<Worker> workers) {
  int64_t columns = 0;
  int depth = 0;
  for (const HeadPlan& head : call.heads) {
    columns = std::max(columns, head.columns);
    depth = std::max(depth, head.operands.depth);
  }
  for (Worker& worker : workers) worker.Prepare(columns, depth);
}

// Nanoseconds of one thread, roughly.
int64_t WorkOf(const Call& call) {
  int64_t work = 0;
  for (const HeadPlan& head : call.heads) {
    if (head.plan == nullptr) {
      work += (head.n - head.first_query) * (head.n + 100);
    } else {
      for (const KeyGroup& group : head.plan->groups) work += group.cost() * kCostNanoseconds;
    }
    if (work >= ThreadPool::kSharedWork) break;
  }
  return work;
}

int64_t WorkOf(std::span<const ExpectedPart> parts, const Call& call) {
  int64_t work = 0;
  for (const ExpectedPart& part : parts) {
    const HeadPlan& head = call.heads[part.head];
    work += kExpectedRows * head.columns * head.tables.rank / kProductsPerNanosecond;
    if (work >= ThreadPool::kSharedWork) break;
  }
  return work;
}

// Whether the rest of a problem may be left out. Ledgers and graphs are made from all of its blocks.
bool IsCancelled(const AttentionProblem& problem) {
  return problem.cancel != nullptr && problem.cancel->cancelled() && problem.cap < 0 && !problem.report->wanted.graph;
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

using cpu_attention::BlockEdges;
using cpu_attention::Call;
using cpu_attention::HeadPlan;
using cpu_attention::Worker;

void AttentionScratch::ReleaseAbove(size_t bytes_each) {
  heads.ReleaseAbove(bytes_each);
  events.ReleaseAbove(bytes_each);
  for (Worker& worker : workers) {
    worker.call_memory.ReleaseAbove(bytes_each);
    worker.block_memory.ReleaseAbove(bytes_each);
    worker.extra_memory.ReleaseAbove(bytes_each);
    worker.event_memory.ReleaseAbove(bytes_each);
    worker.kept.ReleaseAbove(bytes_each);
  }
  if (call.heads.capacity() * sizeof(HeadPlan) > bytes_each) call = Call();
  call.kept.clear();
  search.ReleaseAbove(bytes_each);
}

CpuAttention::CpuAttention(const CpuKernels& kernels, ThreadPool& pool, AttentionScratch& scratch,
                           const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                           std::span<EdgeCap> caps, Matrix out)
    : kernels_(kernels), pool_(pool), scratch_(scratch), inputs_(inputs), problems_(problems), caps_(caps), out_(out) {
  if (scratch_.workers.empty()) scratch_.workers = std::vector<Worker>(static_cast<size_t>(pool.num_threads()));
}

void CpuAttention::Begin(bool optimistic) {
  for (EdgeCap& cap : caps_) cap.capped = false;
  Call& call = scratch_.call;
  const double share = share_ < 1.0 ? share_ / pool_.num_threads() : 1.0;
  cpu_attention::StartCall(kernels_, inputs_, problems_, out_, share, call);
  chunks_ = cpu_attention::LayOutHeads(pool_, scratch_.heads, scratch_.events, call);
  filled_ = 0;
  prepared_ = false;
  optimistic_ = optimistic;
}

// Fills some chunks. Behind the last one the blocks are ready to be computed.
void CpuAttention::Prepare(int64_t count) {
  Call& call = scratch_.call;
  count = std::min(count, chunks_ - filled_);
  cpu_attention::FillChunks(pool_, call, filled_, count);
  filled_ += count;
  if (filled_ < chunks_) return;
  cpu_attention::PrepareWorkers(call, scratch_.workers);
  scratch_.search.Start(pool_, caps_, optimistic_, call);
  probable_.Start(pool_, caps_, optimistic_, call);
  left_ = static_cast<int64_t>(call.block_head.size());
  prepared_ = true;
  attended_ = false;
  counted_ = 0;
}

bool CpuAttention::Next(double share) {
  Call& call = scratch_.call;
  const auto part = [&](int64_t blocks) {
    return std::clamp(static_cast<int64_t>(share * static_cast<double>(blocks)), int64_t{1}, blocks);
  };
  if (share_ == 0.0) {
    share_ = share;
    Begin(true);
  }
  if (!prepared_) Prepare(part(std::max<int64_t>(1, chunks_)));
  if (!prepared_) return false;
  while (!scratch_.search.done()) {
    scratch_.search.Next(pool_, scratch_.workers, part(scratch_.search.blocks()), call);
    if (share < 1.0) return false;
  }
  while (!probable_.done()) {
    probable_.Next(pool_, scratch_.workers, part(probable_.blocks()), call);
    if (share < 1.0) return false;
  }
  if (!attended_) {
    AttendBlocks(std::min(left_, part(static_cast<int64_t>(call.block_head.size()))));
    if (left_ > 0) return false;
    cpu_attention::CollectReports(call);
    if ((scratch_.search.unchecked() || probable_.unchecked()) && !cpu_attention::WithinCaps(problems_, caps_)) {
      Begin(false);
      return share < 1.0 ? false : Next(share);
    }
    attended_ = true;
    if (share < 1.0 && !call.expected.empty()) return false;
  }
  const auto parts = static_cast<int64_t>(call.expected.size());
  if (parts > 0) CountParts(std::min(parts - counted_, part(parts)));
  if (counted_ < parts) return false;
  cpu_attention::CollectExpected(call);
  scratch_.ReleaseAbove(cpu_attention::kKeptBytes);
  return true;
}

// From the end: of causal patterns, the longest rows first.
void CpuAttention::AttendBlocks(int64_t count) {
  Call& call = scratch_.call;
  pool_.For(count, cpu_attention::WorkOf(call), [&](int64_t item, int worker) {
    const int64_t block = left_ - 1 - item;
    const HeadPlan& head = call.HeadOf(block);
    if (cpu_attention::IsCancelled(*head.problem)) return;
    if (head.plan != nullptr) return cpu_attention::AttendItem(call, block, scratch_.workers[worker]);
    BlockEdges capped;
    if (head.capped) {
      const bool random = caps_[head.problem->cap].keep == CapRule::kRandom;
      capped = random ? scratch_.search.Take(call, block, scratch_.workers[worker]) : call.kept[block];
    }
    cpu_attention::AttendRows(call, block, capped, scratch_.workers[worker]);
  });
  left_ -= count;
}

void CpuAttention::CountParts(int64_t count) {
  Call& call = scratch_.call;
  const auto parts = std::span(call.expected).subspan(counted_, count);
  pool_.For(count, cpu_attention::WorkOf(parts, call), [&](int64_t item, int worker) {
    const CancelFlag* const cancel = call.heads[parts[item].head].problem->cancel;
    if (cancel != nullptr && cancel->cancelled()) return;
    cpu_attention::CountExpected(call, scratch_.workers[worker], parts[item]);
  });
  counted_ += count;
}

}  // namespace edgewise
