#include "kernels/cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>

#include "absl/status/status.h"
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

// Keys that all rows of a block finish before the next: some fifty edges of a row, which is enough to fill batches of 16
// and, where edges are many, few enough keys to stay in the fastest cache. Depends on the block's edges alone.
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
  if (multiplicity != nullptr && std::any_of(multiplicity, multiplicity + edges.count, [](int32_t m) { return m > 1; })) {
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

// Calls visit(keys, count, multiplicity or null) for one row.
template <typename Visit>
void VisitRow(const Call& call, const HeadWork& head, const BlockEdges& edges, int row, Worker& worker,
              const Visit& visit) {
  if (edges.offsets != nullptr) {
    const int64_t begin = edges.offsets[row];
    visit(edges.keys + begin, edges.offsets[row + 1] - begin,
          edges.multiplicity == nullptr ? nullptr : edges.multiplicity + begin);
  } else if (edges.all) {
    for (int64_t key = 0; key < head.n; ++key) worker.row_keys[key] = static_cast<int32_t>(key);
    visit(worker.row_keys, head.n, static_cast<const float*>(nullptr));
  } else {
    const int64_t count =
        call.kernels->list_bits(edges.bits + row * edges.bit_words, edges.bit_words, 0, worker.row_keys);
    visit(worker.row_keys, count, static_cast<const float*>(nullptr));
  }
}

double ExpectedEdges(const Call& call, const HeadWork& head, int64_t row0, int rows, const BlockEdges& edges,
                     Worker& worker) {
  if (head.drawn == nullptr) return static_cast<double>(edges.count);
  const Law law = head.drawn->law;
  double sum = 0.0;
  for (int64_t row = row0; row < row0 + rows; ++row) {
    sum += call.kernels->expected_row(head.tables, RowOf(head, row), law == Law::kBernoulli ? 0 : 1);
    if (!HasForced(head)) continue;
    std::fill(worker.position_bits, worker.position_bits + head.tables.words, 0);
    AddForced(head, row, worker.position_bits);
    PackBits(head, worker.position_bits, worker.packed_bits);
    const int64_t count = call.kernels->list_bits(worker.packed_bits, head.tables.words, 0, worker.row_keys);
    for (int64_t e = 0; e < count; ++e) sum += 1.0 - EdgeProbability(law, RateOf(head, row, worker.row_keys[e]));
  }
  return sum;
}

// Keeps one block's edges and softmax weights for the report.
void RecordGraph(const Call& call, const HeadWork& head, const AttendBlock& attended, const BlockEdges& edges,
                 Worker& worker, BlockResult& result) {
  std::vector<float> scores;
  for (int r = 0; r < attended.rows; ++r) {
    VisitRow(call, head, edges, r, worker, [&](const int32_t* keys, int64_t count, const float* multiplicity) {
      result.row_edges.push_back(count);
      result.keys.insert(result.keys.end(), keys, keys + count);
      scores.resize(static_cast<size_t>(count) + 16);
      const int64_t offsets[2] = {0, count};
      AttendBlock row = attended;
      row.q = attended.q + r * attended.depth;
      row.offsets = offsets;
      row.edges = keys;
      if (count > 0) call.kernels->scores(row, 0, scores.data());
      double sum = 0.0;
      for (int64_t e = 0; e < count; ++e) {
        scores[e] = std::exp2(scores[e] - attended.max_score[r]) * (multiplicity == nullptr ? 1.0f : multiplicity[e]);
        sum += scores[e];
      }
      for (int64_t e = 0; e < count; ++e) result.weights.push_back(static_cast<float>(scores[e] / sum));
      if (head.drawn != nullptr ? head.drawn->law == Law::kPoissonMulti
                                : head.given != nullptr && !head.given->multiplicity.empty()) {
        for (int64_t e = 0; e < count; ++e) {
          result.multiplicity.push_back(multiplicity == nullptr ? 1 : static_cast<int32_t>(multiplicity[e]));
        }
      }
    });
  }
}

void Report(const Call& call, const HeadWork& head, const AttendBlock& attended, const BlockEdges& edges, int64_t row0,
            Worker& worker, BlockResult& result) {
  result.edges = edges.count;
  AttentionReport& report = *head.problem->report;
  for (int r = 0; r < attended.rows; ++r) {
    bool any = edges.all;
    if (edges.offsets != nullptr) {
      any = edges.offsets[r + 1] > edges.offsets[r];
    } else if (!edges.all) {
      for (int64_t word = 0; word < edges.bit_words && !any; ++word) any = edges.bits[r * edges.bit_words + word] != 0;
    }
    if (!any) ++result.isolated;
  }
  if (report.want_key_degrees) {
    uint32_t* degrees = report.heads[head.head].key_degrees.data();
    for (int r = 0; r < attended.rows; ++r) {
      VisitRow(call, head, edges, r, worker, [&](const int32_t* keys, int64_t count, const float*) {
        for (int64_t e = 0; e < count; ++e) {
          std::atomic_ref<uint32_t>(degrees[keys[e]]).fetch_add(1, std::memory_order_relaxed);
        }
      });
    }
  }
  if (report.want_graph) RecordGraph(call, head, attended, edges, worker, result);
  if (report.want_expected) result.expected = ExpectedEdges(call, head, row0, attended.rows, edges, worker);
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
  if (edges.multiplicity == nullptr && static_cast<double>(edges.count) >= (depth <= 32 ? kDenseShareShallow : kDenseShare) * pairs) {
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
    const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
    for (int t = 0; t < head_dim; ++t) out[t] = worker.sums[r * depth + t] * inverse;
  }
  Report(call, head, attend, edges, row0, worker, call.results[block]);
}

void CollectReports(Call& call) {
  for (const HeadWork& head : call.heads) {
    AttentionReport& report = *head.problem->report;
    HeadReport& out = report.heads[head.head];
    HeadEdges& graph = out.graph;
    if (report.want_graph) graph.row_offsets.push_back(0);
    for (int64_t b = head.first_block; b < head.first_block + head.blocks(); ++b) {
      BlockResult& result = call.results[b];
      out.edges += result.edges;
      out.isolated += result.isolated;
      out.expected += result.expected;
      if (!report.want_graph) continue;
      for (int64_t count : result.row_edges) graph.row_offsets.push_back(graph.row_offsets.back() + count);
      graph.keys.insert(graph.keys.end(), result.keys.begin(), result.keys.end());
      graph.multiplicity.insert(graph.multiplicity.end(), result.multiplicity.begin(), result.multiplicity.end());
      graph.weights.insert(graph.weights.end(), result.weights.begin(), result.weights.end());
      result = BlockResult();
    }
  }
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
    for (EdgeCap& cap : caps) cap.capped = false;
    Call call = MakeCall(isa, inputs, problems, out);
    PrepareHeads(pool, shared, call);
    while (static_cast<int>(workers.size()) < pool.num_threads()) workers.push_back(std::make_unique<Worker>());
    for (int w = 0; w < pool.num_threads(); ++w) workers[w]->Prepare(call);
    if (!caps.empty()) ApplyCaps(pool, workers, caps, call);
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
