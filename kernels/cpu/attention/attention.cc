#include "kernels/cpu/attention/attention.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>

#include "absl/status/status.h"
#include "kernels/cpu/attention/report.h"
#include "kernels/cpu/attention/work.h"

namespace edgewise {
namespace cpu_attention {
namespace {

// Scratch memory that a thread keeps between calls.
constexpr size_t kKeptBytes = size_t{64} << 20;

const AttentionKernels& KernelsOf(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return Avx512AttentionKernels();
  if (isa == Isa::kAvx2) return Avx2AttentionKernels();
#endif
  (void)isa;
  return GenericAttentionKernels();
}

// Heads of one problem come one after the other.
void SetPattern(const AttentionProblem& problem, Call& call, HeadWork& head) {
  head.drawn = std::get_if<DrawnRows>(&problem.pattern);
  if (head.drawn != nullptr) return;
  const auto* given = std::get_if<ExplicitEdges>(&problem.pattern);
  if (given == nullptr) {
    if (head.head == 0) call.plans.push_back(PlanProblem(problem, head.depth));
    head.plan = call.plans.back().get();
    return;
  }
  const HeadEdges& edges = (*given->heads)[head.head];
  const bool single =
      std::all_of(edges.multiplicity.begin(), edges.multiplicity.end(), [](int32_t count) { return count == 1; });
  if (!given->compact || !single) {
    head.given = &edges;
    return;
  }
  call.plans.push_back(PlanGiven(problem, edges));
  head.plan = call.plans.back().get();
}

void SetBias(const AttentionInputs& inputs, const AttentionProblem& problem, HeadWork& head) {
  BiasView& bias = head.bias;
  bias.key_positions = problem.positions;
  if (inputs.distance_bias != nullptr) {
    const int64_t span = inputs.distance_span;
    bias.distance = inputs.distance_bias + head.head * (2 * span - 1) + span - 1;
  }
  if (problem.bias != nullptr) {
    bias.length = problem.bias->length;
    bias.values = problem.bias->values;
    bias.buckets = problem.bias->buckets;
    if (bias.buckets != nullptr) bias.table = problem.bias->table + head.head * 256;
  }
  head.biased = bias.distance != nullptr || bias.values != nullptr || bias.buckets != nullptr;
}

Call MakeCall(Isa isa, const AttentionInputs& inputs, std::span<const AttentionProblem> problems, Matrix out) {
  Call call;
  call.kernels = &KernelsOf(isa);
  call.inputs = &inputs;
  call.problems = problems;
  call.out = out;
  int64_t blocks = 0;
  for (const AttentionProblem& problem : problems) {
    problem.report->heads.assign(static_cast<size_t>(inputs.num_heads), HeadReport());
    for (int h = 0; h < inputs.num_heads; ++h) {
      HeadWork head;
      head.problem = &problem;
      head.head = h;
      head.n = problem.tokens;
      head.first_query = problem.first_query;
      head.depth = (std::max(inputs.head_dim, inputs.value_dim) + 15) / 16 * 16;
      head.block_rows = BlockRows(head.n, head.depth);
      SetPattern(problem, call, head);
      SetBias(inputs, problem, head);
      head.capped = problem.cap >= 0 && head.drawn != nullptr;
      head.first_block = blocks;
      blocks += head.blocks();
      call.block_head.insert(call.block_head.end(), static_cast<size_t>(head.blocks()),
                             static_cast<int32_t>(call.heads.size()));
      call.heads.push_back(head);
      if (problem.report->wanted.key_degrees) problem.report->heads[h].key_degrees.assign(problem.tokens, 0);
    }
  }
  call.results.resize(static_cast<size_t>(blocks));
  call.kept.resize(static_cast<size_t>(blocks));
  return call;
}

// Whether the call is done before a second thread would be awake.
bool IsSmall(const Call& call) {
  int64_t cost = 0;
  for (const HeadWork& head : call.heads) {
    if (head.plan == nullptr) return false;
    for (const KeyGroup& group : head.plan->groups) cost += CostOf(group);
    if (cost >= kItemCost) return false;
  }
  return true;
}

// Whether nobody wants what is left to do of a problem. Ledgers and graphs are made of what a problem reports.
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

void Worker::GrowAttend(int64_t floats, int64_t keys) {
  const auto grow = [](auto& memory, int64_t& size, int64_t count) {
    if (count <= size) return;
    memory.reset();
    size = 0;
    using T = std::remove_reference_t<decltype(*memory)>;
    memory.reset(static_cast<T*>(std::aligned_alloc(64, Memory::Rounded(static_cast<size_t>(count) * sizeof(T)))));
    if (memory == nullptr) throw std::bad_alloc();
    size = count;
  };
  grow(attend, attend_floats, floats);
  grow(attend_keys, attend_key_count, keys);
}

void Worker::Prepare(const Call& call) {
  int64_t columns = 0;
  int depth = 0;
  for (const HeadWork& head : call.heads) {
    columns = std::max(columns, head.columns);
    depth = std::max(depth, head.depth);
  }
  const int64_t words = columns / 64;
  draw.capacity = std::max(kTileRows * (columns + 64), columns + kDrawGroup + 64);
  for (const bool take : {false, true}) {
    size_t bytes = 0;
    const auto place = [&](auto*& pointer, int64_t count) {
      bytes += Memory::Rounded(static_cast<size_t>(count) * sizeof(*pointer));
      if (take) pointer = memory.Take<std::remove_reference_t<decltype(*pointer)>>(count);
    };
    place(draw.column, draw.capacity + 64);
    place(draw.byte, draw.capacity + 64);
    place(draw.accept, draw.capacity + 64);
    place(draw.batch_row, draw.capacity / 16 + 64);
    place(draw.batch_lanes, draw.capacity / 16 + 64);
    place(draw.tie_query, draw.capacity + 64);
    place(draw.tie, draw.capacity + 64);
    place(draw.tie_low, draw.capacity + 64);
    place(position_bits, kBlockRows * words);
    place(packed_bits, kBlockRows * words);
    place(row_keys, columns + kDrawGroup + 64);
    place(q, static_cast<int64_t>(kBlockRows) * depth);
    place(sums, static_cast<int64_t>(kBlockRows) * depth);
    place(weight_sum, kBlockRows);
    place(max_score, kBlockRows);
    if (!take) memory.Reserve(bytes);
  }
}

}  // namespace cpu_attention

absl::Status CpuAttend(Isa isa, ThreadPool& pool, const AttentionInputs& inputs,
                       std::span<const AttentionProblem> problems, std::span<EdgeCap> caps, Matrix out) {
  using namespace cpu_attention;
  // The caller's thread owns the scratch of its calls; a backend is called by one thread at a time.
  thread_local Memory shared;
  thread_local std::vector<std::unique_ptr<Worker>> workers;
  std::atomic<bool> failed = false;
  try {
    for (const bool hopeful : {true, false}) {
      for (EdgeCap& cap : caps) cap.capped = false;
      Call call = MakeCall(isa, inputs, problems, out);
      PrepareHeads(pool, shared, call);
      while (static_cast<int>(workers.size()) < pool.num_threads()) workers.push_back(std::make_unique<Worker>());
      for (int w = 0; w < pool.num_threads(); ++w) workers[w]->Prepare(call);
      const bool hoped = !caps.empty() && ApplyCaps(pool, workers, caps, hopeful, call);
      std::vector<std::unique_ptr<Worker>>& scratch = workers;  // thread_local: named here, used by the pool's threads
      const auto blocks = static_cast<int64_t>(call.block_head.size());
      const auto attend = [&](int64_t item, int worker) {
        const int64_t block = blocks - 1 - item;  // causal patterns: the longest rows first
        const HeadWork& head = call.heads[call.block_head[block]];
        if (IsCancelled(*head.problem)) return;
        try {
          if (head.plan != nullptr) {
            AttendItem(call, block, *scratch[worker]);
          } else {
            AttendOneBlock(call, block, *scratch[worker]);
          }
        } catch (const std::bad_alloc&) {
          failed = true;
        }
      };
      if (IsSmall(call)) {
        for (int64_t item = 0; item < blocks; ++item) attend(item, 0);
      } else {
        pool.For(blocks, attend);
      }
      if (failed) throw std::bad_alloc();
      CollectReports(call);
      if (!hoped || WithinCaps(problems, caps)) break;
    }
    shared.ReleaseAbove(kKeptBytes);
    for (auto& worker : workers) worker->memory.ReleaseAbove(kKeptBytes);
  } catch (const std::bad_alloc&) {
    shared.ReleaseAbove(0);
    workers.clear();
    return absl::ResourceExhaustedError("attention: out of memory");
  }
  return absl::OkStatus();
}

}  // namespace edgewise
