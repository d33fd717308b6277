#include "kernels/cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>

#include "absl/status/status.h"
#include "kernels/cpu/attention_report.h"
#include "kernels/cpu/attention_work.h"

namespace edgewise {
namespace cpu_attention {
namespace {

// Blocks with at least this share of their pairs as edges are computed by dense tiles, the others edge by edge. Decided
// by the realised edges alone, so that equal edges give equal bytes however they came about.
constexpr double kDenseShare = 0.34;
constexpr double kDenseShareShallow = 0.29;  // up to 32 columns, where an edge costs more next to a dense pair
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

// Keys that all rows of a block finish before the next: some fifty edges of a row, which is enough to fill batches of
// 16 and, where edges are many, few enough keys to stay in the fastest cache. Depends on the block's edges alone.
int64_t SegmentOf(uint64_t edges, int rows, int64_t n) {
  constexpr double kEdges = 52.0;
  const int64_t whole = (n + 63) / 64 * 64;
  const double share = static_cast<double>(edges) / (static_cast<double>(rows) * static_cast<double>(n));
  if (share * static_cast<double>(n) <= kEdges) return whole;
  return std::min(whole, (static_cast<int64_t>(kEdges / share) + 63) / 64 * 64);
}

BlockEdges GivenEdges(const HeadEdges& given, int64_t row0, int rows, Worker& worker) {
  const int64_t base = given.row_offsets[row0];
  for (int r = 0; r <= rows; ++r) worker.offsets[r] = given.row_offsets[row0 + r] - base;
  BlockEdges edges;
  edges.offsets = worker.offsets;
  edges.keys = given.keys.data() + base;
  edges.count = static_cast<uint64_t>(worker.offsets[rows]);
  const int32_t* multiplicity = given.multiplicity.empty() ? nullptr : given.multiplicity.data() + base;
  if (multiplicity != nullptr &&
      std::any_of(multiplicity, multiplicity + edges.count, [](int32_t m) { return m > 1; })) {
    worker.multiplicity.assign(multiplicity, multiplicity + edges.count);
    edges.multiplicity = worker.multiplicity.data();
  }
  return edges;
}

BlockEdges EdgesOf(const Call& call, const HeadWork& head, int64_t block, int64_t row0, int rows, Worker& worker) {
  if (head.given != nullptr) return GivenEdges(*head.given, row0, rows, worker);
  BlockEdges edges;
  if (head.drawn == nullptr) {
    edges.all = true;
    edges.count = static_cast<uint64_t>(rows) * static_cast<uint64_t>(head.n);
    return edges;
  }
  if (!head.capped) return DrawBlock(call, head, row0, rows, worker);
  const KeptEdges& kept = call.kept[block];
  edges.offsets = kept.offsets.data();
  edges.keys = kept.keys.data();
  edges.multiplicity = kept.multiplicity.empty() ? nullptr : kept.multiplicity.data();
  edges.count = kept.keys.size();
  return edges;
}

// Lists to bits, for dense tiles.
void MarkBits(const HeadWork& head, int rows, BlockEdges& edges, Worker& worker) {
  const int64_t words = head.tables.words;
  std::fill(worker.packed_bits, worker.packed_bits + rows * words, 0);
  for (int r = 0; r < rows; ++r) {
    for (int64_t e = edges.offsets[r]; e < edges.offsets[r + 1]; ++e) {
      worker.packed_bits[r * words + edges.keys[e] / 64] |= uint64_t{1} << (edges.keys[e] % 64);
    }
  }
  edges.bits = worker.packed_bits;
  edges.bit_words = words;
}

void AttendOneBlock(Call& call, int64_t block, Worker& worker) {
  const HeadWork& head = call.heads[call.block_head[block]];
  const AttentionInputs& inputs = *call.inputs;
  const int64_t row0 = (block - head.first_block) * head.block_rows;
  const int rows = static_cast<int>(std::min<int64_t>(head.block_rows, head.n - row0));
  const int head_dim = inputs.head_dim;
  const int depth = head.depth;

  BlockEdges edges = EdgesOf(call, head, block, row0, rows, worker);
  AttendBlock attend;
  attend.rows = rows;
  attend.depth = depth;
  attend.keys = head.n;
  attend.k = head.k;
  attend.v = head.v;
  attend.k_stride = head.k_stride;
  attend.v_stride = head.v_stride;
  attend.q = worker.q;
  attend.sums = worker.sums;
  attend.weight_sum = worker.weight_sum;
  attend.max_score = worker.max_score;
  const float scale = inputs.scale * 1.44269504088896340736f;  // weights are powers of 2
  std::fill(worker.q + rows * depth, worker.q + std::min(rows + 12, kBlockRows) * depth, 0.0f);  // a strip's end
  for (int r = 0; r < rows; ++r) {
    const float* q = head.q + (row0 + r) * head.q_stride;
    for (int t = 0; t < head_dim; ++t) worker.q[r * depth + t] = q[t] * scale;
    for (int t = head_dim; t < depth; ++t) worker.q[r * depth + t] = 0.0f;
  }
  const double pairs = static_cast<double>(rows) * static_cast<double>(head.n);
  if (edges.multiplicity == nullptr &&
      static_cast<double>(edges.count) >= (depth <= 32 ? kDenseShareShallow : kDenseShare) * pairs) {
    if (edges.offsets != nullptr) MarkBits(head, rows, edges, worker);
    worker.GrowAttend(DenseScratchFloats(depth), 0);
    attend.scratch = worker.attend.get();
    attend.k_tiles = head.k_tiles;
    attend.bits = edges.bits;
    attend.bit_words = edges.bit_words;
    call.kernels->attend_dense(attend);
  } else {
    attend.segment = SegmentOf(edges.count, rows, head.n);
    attend.offsets = edges.offsets;
    attend.edges = edges.keys;
    attend.multiplicity = edges.multiplicity;
    attend.bits = edges.bits;
    attend.bit_words = edges.bit_words;
    // A segment holds no more edges than the block, and no more than its pairs.
    const int64_t most = std::min<int64_t>(static_cast<int64_t>(edges.count), rows * attend.segment);
    const int64_t padded = most + 16 * rows;
    worker.GrowAttend(padded + 64, padded + padded / 16 + 2 * (padded / 8) + 4 * 64);
    attend.scratch = worker.attend.get();
    attend.keys_scratch = worker.attend_keys.get();
    attend.batch_rows = attend.keys_scratch + padded + 64;
    attend.unit_rows = attend.batch_rows + padded / 16 + 64;
    attend.unit_begins = attend.unit_rows + padded / 8 + 64;
    call.kernels->attend_gather(attend);
  }
  for (int r = 0; r < rows; ++r) {
    float* out = call.out.row(head.problem->out_row + row0 + r) + head.head * head_dim;
    const float sum = worker.weight_sum[r];
    float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
    if (!(sum > 0.0f) || !std::isfinite(worker.max_score[r])) {
      // No edges, which gives zeros; or scores beyond float32, which must not pass for an answer.
      VisitRow(call, head, edges, r, worker, [&](const int32_t*, int64_t count, const float*) {
        if (count > 0) inverse = std::nanf("");
      });
    }
    for (int t = 0; t < head_dim; ++t) out[t] = worker.sums[r * depth + t] * inverse;
  }
  Report(call, head, attend, edges, row0, worker, call.results[block]);
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
      head.depth = (inputs.head_dim + 15) / 16 * 16;
      head.block_rows = BlockRows(head.n, head.depth);
      head.drawn = std::get_if<DrawnRows>(&problem.pattern);
      if (const auto* given = std::get_if<ExplicitEdges>(&problem.pattern)) head.given = &(*given->heads)[h];
      head.capped = problem.cap >= 0 && head.drawn != nullptr;
      head.first_block = blocks;
      blocks += head.blocks();
      call.block_head.insert(call.block_head.end(), static_cast<size_t>(head.blocks()),
                             static_cast<int32_t>(call.heads.size()));
      call.heads.push_back(head);
      if (problem.report->want_key_degrees) problem.report->heads[h].key_degrees.assign(problem.tokens, 0);
    }
  }
  call.results.resize(static_cast<size_t>(blocks));
  call.kept.resize(static_cast<size_t>(blocks));
  return call;
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
    place(candidates, columns);
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
      pool.For(static_cast<int64_t>(call.block_head.size()), [&](int64_t block, int worker) {
        try {
          AttendOneBlock(call, block, *scratch[worker]);
        } catch (const std::bad_alloc&) {
          failed = true;
        }
      });
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
