#include "kernels/cuda/attention/attention.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/attention/edge_graph.h"
#include "kernels/cuda/attention/items.h"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/lists.h"
#include "kernels/cuda/attention/rounds.h"
#include "kernels/cuda/device/cancel_flags.h"
#include "kernels/cuda/ops/gemm.h"
#include "kernels/cuda/ops/rows.h"
#include "kernels/draw/event_rule.h"
#include "kernels/host/pattern_count.h"
#include "kernels/kv_page.h"

namespace edgewise::cuda {
namespace {

constexpr int32_t kMaxDim = 256;  // of a head's queries and values
constexpr int32_t kMaxDimLittleShared = 128;
constexpr int64_t kLittleShared = 160 << 10;  // bytes a block; A100 and H100 have more

absl::Status CheckShapes(const Device& device, const AttentionInputs& inputs,
                         std::span<const AttentionProblem> problems) {
  const int32_t most = device.shared_memory() < kLittleShared ? kMaxDimLittleShared : kMaxDim;
  if (inputs.head_dim > most || inputs.value_dim > most) {
    return absl::InvalidArgumentError(absl::StrCat("head_dim is ", std::max(inputs.head_dim, inputs.value_dim),
                                                   "; the kernels take at most ", most, " on ", device.name()));
  }
  if (inputs.head_dim % kHeadAlignment != 0 || inputs.value_dim % kHeadAlignment != 0) {
    return absl::InvalidArgumentError(absl::StrCat("heads of ", inputs.head_dim, " and ", inputs.value_dim,
                                                   " columns; the kernels take multiples of ", kHeadAlignment));
  }
  if (static_cast<int64_t>(problems.size()) * inputs.num_heads >= kMaxProblemHeads) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a call of attention has ", problems.size(), " sequences of ", inputs.num_heads, " heads"));
  }
  for (const AttentionProblem& problem : problems) {
    if (problem.pages != nullptr && (problem.report->wanted.graph || KindOf(problem.pattern) != PatternKind::kTiles)) {
      return absl::InvalidArgumentError(
          "keys and values in pages are for queries that share keys, and for reports without a graph");
    }
    if (problem.tokens >= kMaxTokens) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a sequence has ", problem.tokens, " tokens; the CUDA kernels take fewer than ", kMaxTokens));
    }
    const auto* drawn = std::get_if<DrawnRows>(&problem.pattern);
    if (drawn == nullptr) continue;
    const int64_t shared = EventRowBytes(problem.tokens, drawn->law == Law::kPoissonMulti) + kSharedApart;
    if (shared > device.shared_memory()) {
      return absl::ResourceExhaustedError(absl::StrCat("a drawn sequence has ", problem.tokens, " tokens; that takes ",
                                                       shared, " bytes of shared memory, and a block has ",
                                                       device.shared_memory(), " on ", device.name()));
    }
  }
  return absl::OkStatus();
}

// Whether the wide tile kernel may take the call: of the device, only its sm_XX decides.
bool IsWideCall(const Device& device, const DeviceCall& call, bool bf16, Phase phase) {
  return device.major() == 9 && device.minor() == 0 && call.head_dim == call.value_dim &&
         (call.head_dim == 64 || (bf16 && call.head_dim == 128)) && call.distance_bias == nullptr &&
         phase != Phase::kDecode;
}

// The positions that kernels look up; empty where token i is at position i.
std::span<const int32_t> Positions(const AttentionProblem& problem) {
  if (problem.positions == nullptr) return {};
  const std::span<const int32_t> positions(problem.positions, problem.tokens);
  return positions.back() == problem.tokens - 1 ? std::span<const int32_t>() : positions;
}

std::span<const float* const> PagesOf(const AttentionProblem& problem) {
  if (problem.pages == nullptr) return {};
  return {problem.pages, static_cast<size_t>((problem.tokens + KvPage::kTokens - 1) / KvPage::kTokens)};
}

// Bytes of the arrays of a DeviceEventHead, each a multiple of 16.
int64_t EventTableBytes(int64_t tokens, int64_t rank, int guide_bits) {
  return 4 * (rank + 12 * tokens + 2 + (int64_t{1} << guide_bits)) + 2 * tokens * rank + 10 * 16;
}

void StageBias(const PairwiseBias& bias, int32_t num_heads, Staging& staging, DeviceProblem& staged) {
  const size_t pairs = static_cast<size_t>(bias.length) * bias.length;
  staged.bias_length = bias.length;
  if (bias.values != nullptr) {
    staged.bias_values = staging.Add(std::span(bias.values, pairs));
  } else {
    staged.bias_buckets = staging.Add(std::span(bias.buckets, pairs));
    staged.bias_table = staging.Add(std::span(bias.table, static_cast<size_t>(num_heads) * 256));
  }
}

DeviceCall MakeCall(const AttentionInputs& inputs, Matrix out) {
  DeviceCall call = {};
  call.q = inputs.q.data;
  call.k = inputs.k.data;
  call.v = inputs.v.data;
  call.q_stride = inputs.q.stride;
  call.k_stride = inputs.k.stride;
  call.v_stride = inputs.v.stride;
  call.out = out.data;
  call.out_stride = out.stride;
  call.out_form = out.form;
  call.num_heads = inputs.num_heads;
  call.heads_of_key = inputs.num_heads / inputs.key_value_heads();
  call.head_dim = inputs.head_dim;
  call.value_dim = inputs.value_dim > 0 ? inputs.value_dim : inputs.head_dim;
  call.scale = inputs.scale;
  call.distance_bias = inputs.distance_bias;
  call.special = inputs.distance_bias != nullptr;
  call.distance_span = inputs.distance_span;
  call.x = inputs.memberships.x;
  call.y = inputs.memberships.y;
  call.query_bound = inputs.memberships.query_bound;
  call.key_bound = inputs.memberships.key_bound;
  call.membership_rows = inputs.memberships.rows;
  call.rank = inputs.memberships.rank;
  call.key_rows = inputs.k.rows;
  return call;
}

}  // namespace

absl::Status Attention::Plan(const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                             std::span<EdgeCap> caps, Matrix out, DeviceCall& call, Lists& lists, Results& results,
                             DeviceArray& tables, std::vector<DeviceProblem>& staged) {
  call = MakeCall(inputs, out);
  call.out_slice = static_cast<int32_t>(SliceOf(out.form, out.columns, device_.sm()));
  call.wide = IsWideCall(device_, call, bf16_, inputs.phase);
  staged.resize(problems.size());
  std::vector<TileItem> tile_items;
  std::vector<int32_t> expected;
  for (size_t p = 0; p < problems.size(); ++p) {
    const AttentionProblem& problem = problems[p];
    const auto index = static_cast<int32_t>(p);
    DeviceProblem& of = staged[p];
    of.first_row = problem.first_row;
    of.pages = staging_.Add(PagesOf(problem));
    of.query_row = problem.first_row + problem.query_shift;
    of.out_row = problem.out_row;
    of.tokens = problem.tokens;
    of.first_query = problem.first_query;
    of.positions = staging_.Add(Positions(problem));
    of.kind = KindOf(problem.pattern);
    of.cap = problem.cap;
    of.count = static_cast<int64_t>(p) * inputs.num_heads;
    of.cancel = CancelFlags::WordOf(problem.cancel);
    of.event_head = -1;
    of.wants_graph = problem.report->wanted.graph;
    if (problem.bias != nullptr) StageBias(*problem.bias, inputs.num_heads, staging_, of);
    if (const auto* drawn = std::get_if<DrawnRows>(&problem.pattern)) {
      of.law = drawn->law;
      of.self_loops = drawn->self_loops;
      of.exploration = drawn->exploration;
      of.local_window = drawn->local_window;
      of.key = drawn->key;
      of.way = drawn->way;
      if (problem.report->wanted.expected) expected.push_back(index);
      call.most_tokens = std::max(call.most_tokens, problem.tokens);
      call.multi |= drawn->law == Law::kPoissonMulti;
    }
    if (of.kind == PatternKind::kGiven) StageGivenRows(problem, inputs.num_heads, staging_, of);
    call.special |= call.multi || problem.bias != nullptr || of.multiplicity != nullptr;
    if (of.kind == PatternKind::kTiles) {
      const bool wide = call.wide && problem.bias == nullptr && problem.pages == nullptr;
      AddTileItems(problem, index, inputs, wide, staging_, tile_items);
    }
  }
  call.num_narrow_items = OrderTileItems(tile_items);
  call.num_wide_items = std::count_if(tile_items.begin(), tile_items.end(), IsWide);
  call.num_tile_items = static_cast<int64_t>(tile_items.size()) - call.num_wide_items - call.num_narrow_items;
  lists.narrow_runs = PlaceParts(std::span(tile_items).last(static_cast<size_t>(call.num_narrow_items)),
                                 most_part_floats_ / PartStride(call.value_dim));
  const absl::Status status = PlanEvents(staged, call, tables);
  if (!status.ok()) return status;
  RowItems row_items;
  for (size_t p = 0; p < problems.size(); ++p) {
    if (staged[p].kind == PatternKind::kTiles) continue;
    AddRowItems(problems[p], static_cast<int32_t>(p), inputs.num_heads, staged[p], row_items);
  }
  call.problems = staging_.Add(std::span<const DeviceProblem>(staged));
  call.num_problems = static_cast<int32_t>(staged.size());
  StageRowItems(row_items, staged, staging_, call);
  call.wide_items = staging_.Add(std::span<const TileItem>(tile_items));
  call.tile_items = call.wide_items + call.num_wide_items;
  call.narrow_items = call.tile_items + call.num_tile_items;
  call.num_caps = static_cast<int32_t>(caps.size());
  lists.expected = staging_.Add(std::span<const int32_t>(expected));
  lists.num_expected = static_cast<int32_t>(expected.size());
  return PlanResults(problems, caps, call, lists, results);
}

absl::Status Attention::PlanEvents(std::span<DeviceProblem> staged, DeviceCall& call, DeviceArray& tables) {
  std::vector<DeviceEventHead> heads;
  int64_t bytes = 0, places = 0;
  for (size_t p = 0; p < staged.size(); ++p) {
    DeviceProblem& problem = staged[p];
    if (problem.kind != PatternKind::kDrawn ||
        !MayUseEvents(problem.way, problem.tokens, call.rank, problem.self_loops, problem.local_window)) {
      continue;
    }
    problem.event_head = static_cast<int64_t>(heads.size());
    problem.first_place = std::exchange(places, places + int64_t{call.num_heads} * problem.tokens);
    for (int32_t head = 0; head < call.num_heads; ++head) {
      DeviceEventHead of = {};
      of.problem = static_cast<int32_t>(p);
      of.head = head;
      of.guide_bits = std::max(1, static_cast<int32_t>(std::bit_width(static_cast<uint32_t>(problem.tokens - 1))));
      heads.push_back(of);
      bytes += EventTableBytes(problem.tokens, call.rank, of.guide_bits);
    }
  }
  if (heads.empty()) return absl::OkStatus();
  absl::StatusOr<DeviceArray> memory = DeviceArray::Create(device_, bytes);
  if (!memory.ok()) return memory.status();
  tables = *std::move(memory);
  auto* next = tables.as<unsigned char>();
  for (DeviceEventHead& head : heads) {
    const int64_t n = staged[head.problem].tokens;
    const auto take = [&](auto*& to, int64_t count) {
      to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(next);
      next += (count * static_cast<int64_t>(sizeof(*to)) + 15) / 16 * 16;
    };
    take(head.direction, call.rank);
    take(head.query_certificates, n);
    take(head.key_certificates, n);
    take(head.query_rests, n * call.rank / 4);
    take(head.key_rests, n * call.rank / 4);
    take(head.mean_gap, n);
    take(head.places, n + 2);
    take(head.heavy, n);
    take(head.key_bound, n);
    take(head.guide, int64_t{1} << head.guide_bits);
  }
  call.num_event_heads = static_cast<int64_t>(heads.size());
  call.event_heads = const_cast<DeviceEventHead*>(staging_.Add(std::span<const DeviceEventHead>(heads)));
  return absl::OkStatus();
}

// Lays out the block that the device writes results to, and copies its first contents there.
absl::Status Attention::PlanResults(std::span<const AttentionProblem> problems, std::span<EdgeCap> caps,
                                    DeviceCall& call, Lists& lists, Results& results) {
  const int64_t heads = call.num_heads;
  results.caps = caps;
  results.num_heads = heads;
  const bool draws = std::any_of(problems.begin(), problems.end(), [](const AttentionProblem& problem) {
    return std::holds_alternative<DrawnRows>(problem.pattern);
  });
  const int64_t counts = draws ? heads * std::ssize(problems) : 0;
  const auto cap_bytes = static_cast<int64_t>(caps.size() * sizeof(DeviceCap));
  results.full = cap_bytes + counts * static_cast<int64_t>(sizeof(DeviceHeadCounts));
  results.degrees = results.full + (counts > 0 ? 8 : 0);
  std::vector<int64_t> first_degrees(problems.size(), -1);
  int64_t degrees = 0;
  for (size_t p = 0; p < problems.size(); ++p) {
    const AttentionProblem& problem = problems[p];
    if (!std::holds_alternative<DrawnRows>(problem.pattern)) continue;
    if (problem.report->wanted.key_degrees) first_degrees[p] = std::exchange(degrees, degrees + heads * problem.tokens);
    problem.report->heads.assign(heads, {});
    results.owed.push_back({problem.report, static_cast<int64_t>(p) * heads, first_degrees[p], problem.tokens});
  }
  if (degrees > 0) lists.first_degrees = staging_.Add(std::span<const int64_t>(first_degrees));
  const int64_t bytes = results.degrees + degrees * static_cast<int64_t>(sizeof(uint32_t));
  if (bytes == 0) return absl::OkStatus();
  absl::StatusOr<DeviceArray> memory = DeviceArray::Create(device_, bytes);
  if (!memory.ok()) return memory.status();
  results.memory = *std::move(memory);
  results.bytes = bytes;
  std::vector<uint64_t> undrawn(caps.size(), 0);
  for (const AttentionProblem& problem : problems) {
    if (problem.cap < 0 || std::holds_alternative<DrawnRows>(problem.pattern)) continue;
    undrawn[problem.cap] += CountEdges(problem, call.num_heads);
  }
  std::vector<DeviceCap> device_caps(caps.size());
  for (size_t c = 0; c < caps.size(); ++c) {
    DeviceCap& cap = device_caps[c];
    cap.undrawn = undrawn[c];
    cap.max_edges = caps[c].max_edges;
    cap.ledger = caps[c].ledger == nullptr ? nullptr : static_cast<const CudaLedger*>(caps[c].ledger)->edges();
    cap.share = caps[c].share;
    cap.cut = {~uint64_t{0}, ~uint64_t{0}, caps[c].keep};
    cap.tau = 1.0;
    cap.limit = kEventAgeOne;
  }
  call.caps = results.memory.as<DeviceCap>();
  call.counts = reinterpret_cast<DeviceHeadCounts*>(results.memory.as<unsigned char>() + cap_bytes);
  call.full = reinterpret_cast<int32_t*>(results.memory.as<unsigned char>() + results.full);
  const absl::Status status =
      CudaStatus(cudaMemsetAsync(results.memory.data(), 0, bytes, device_.stream()), "memory of results");
  return status.ok() ? staging_.Upload(device_caps.data(), cap_bytes, call.caps) : status;
}

absl::Status Attention::RoundKeysAndValues(const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                                           DeviceCall& call) {
  call.bf16 = bf16_;
  if (inputs.q.form == Form::kBfloat16) {
    call.q16 = reinterpret_cast<const __nv_bfloat16*>(inputs.q.data);
    call.q_stride = 2 * inputs.q.stride;
  }
  int64_t first = inputs.k.rows, end = 0;  // the rows that problems read
  for (const AttentionProblem& problem : problems) {
    if (problem.pages != nullptr) continue;
    first = std::min(first, problem.first_row);
    end = std::max(end, problem.first_row + problem.tokens);
  }
  if (!bf16_ || end == 0) return absl::OkStatus();
  if (inputs.k.form == Form::kBfloat16) {
    call.k16 = reinterpret_cast<const __nv_bfloat16*>(inputs.k.data);
    call.v16 = reinterpret_cast<const __nv_bfloat16*>(inputs.v.data);
    call.k16_stride = 2 * inputs.k.stride;
    call.v16_stride = 2 * inputs.v.stride;
    call.k16_head_stride = call.head_dim;
    call.v16_head_stride = call.value_dim;
    return absl::OkStatus();
  }
  // Head by head, the key and the value of a token side by side: who attends to it reads one place.
  call.k16_stride = call.v16_stride = call.head_dim + call.value_dim;
  call.k16_head_stride = call.v16_head_stride = inputs.k.rows * call.k16_stride;
  const int64_t heads = inputs.key_value_heads();
  const absl::StatusOr<void*> rounded =
      rounded_.Take(device_, heads * call.k16_head_stride * static_cast<int64_t>(sizeof(__nv_bfloat16)));
  if (!rounded.ok()) return rounded.status();
  auto* const to = static_cast<__nv_bfloat16*>(*rounded);
  call.k16 = to;
  call.v16 = to + call.head_dim;
  const auto round = [&](const ConstMatrix& rows, int32_t columns, int32_t begin) {
    const ConstMatrix read(rows.row(first), end - first, heads * columns, rows.stride);
    return RoundHeads(device_.stream(), read, columns, to + first * call.k16_stride + begin, call.k16_stride,
                      call.k16_head_stride);
  };
  cudaError_t error = round(inputs.k, call.head_dim, 0);
  if (error == cudaSuccess) error = round(inputs.v, call.value_dim, call.head_dim);
  return CudaStatus(error, "rounding keys and values");
}

absl::Status Attention::Enqueue(const Lists& lists, const Results& results, DrawRounds& rounds) {
  cudaStream_t stream = device_.stream();
  const DeviceCall& call = rounds.call();
  absl::Status status = CudaStatus(FillEventTables(stream, call), "tables of events");
  if (status.ok() && call.num_caps > 0) {
    const absl::StatusOr<DeviceArray> scratch = DeviceArray::Create(device_, CapScratchBytes(call.num_caps));
    if (!scratch.ok()) return scratch.status();
    const bool by_rate = std::any_of(results.caps.begin(), results.caps.end(),
                                     [](const EdgeCap& cap) { return cap.keep == CapRule::kProbable; });
    const DrawPass pass = [&](Draws draws, bool again, const UseRound& use) {
      return rounds.ForDrawn(draws, again, use);
    };
    status = CudaStatus(SelectKept(stream, call, by_rate, scratch->data(), pass), "edge caps");
  }
  if (!status.ok()) return status;
  auto* degrees = reinterpret_cast<uint32_t*>(results.memory.as<unsigned char>() + results.degrees);
  const cudaError_t error = rounds.ForKept([&](const DeviceCall& round) {
    cudaError_t failed = AttendRows(stream, round);
    if (failed == cudaSuccess && status.ok()) status = EnqueueTiles(round, lists.narrow_runs);
    if (failed == cudaSuccess && lists.first_degrees != nullptr) {
      failed = CountKeyDegrees(stream, round, lists.first_degrees, degrees);
    }
    return failed;
  });
  if (status.ok()) status = CudaStatus(error, "attention over rows");
  if (status.ok() && lists.num_expected > 0) {
    status = CudaStatus(CountExpected(stream, call, lists.expected, lists.num_expected), "expected edges");
  }
  return status;
}

absl::Status Attention::EnqueueTiles(const DeviceCall& call, std::span<const NarrowRun> runs) {
  const auto most = std::max_element(runs.begin(), runs.end(),
                                     [](const NarrowRun& a, const NarrowRun& b) { return a.part_rows < b.part_rows; });
  if (!IsFirstRound(call)) {  // the first one took all but drawn heads
    DeviceCall drawn = call;
    drawn.num_wide_items = drawn.num_tile_items = drawn.num_narrow_items = 0;
    return CudaStatus(AttendTiles(device_.stream(), drawn), "attention over dense heads");
  }
  DeviceArray memory;
  if (most->part_rows > 0) {
    absl::StatusOr<DeviceArray> rows = DeviceArray::Create(
        device_, most->part_rows * PartStride(call.value_dim) * static_cast<int64_t>(sizeof(float)));
    if (!rows.ok()) return rows.status();
    memory = *std::move(rows);
  }
  DeviceCall of_run = call;
  of_run.part_rows = memory.as<float>();
  for (const NarrowRun& run : runs) {
    of_run.narrow_items = call.narrow_items + run.begin;
    of_run.num_narrow_items = run.end - run.begin;
    of_run.most_parts = run.most_parts;
    absl::Status status = CudaStatus(AttendTiles(device_.stream(), of_run), "attention over tiles");
    if (!status.ok()) return status;
    of_run.num_wide_items = of_run.num_tile_items = of_run.num_dense_items = 0;  // the first run took them
  }
  return absl::OkStatus();
}

absl::Status Attention::Attend(const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                               std::span<EdgeCap> caps, Matrix out) {
  absl::Status status = CheckShapes(device_, inputs, problems);
  if (!status.ok()) return status;
  Results results;
  DeviceCall call;
  Lists lists;
  DeviceArray tables;
  std::vector<DeviceProblem> staged;
  status = Plan(inputs, problems, caps, out, call, lists, results, tables, staged);
  status.Update(staging_.Commit());  // always: Plan began to stage
  if (status.ok()) status = RoundKeysAndValues(inputs, problems, call);
  if (!status.ok()) return status;
  DrawRounds rounds;
  status = rounds.Start(device_, staged, most_edge_bytes_, call);
  if (status.ok()) status = Enqueue(lists, results, rounds);
  if (!status.ok()) return status;
  if (results.bytes > 0) pending_.push_back(std::move(results));
  for (size_t p = 0; p < problems.size(); ++p) {
    if (!std::holds_alternative<DrawnRows>(problems[p].pattern)) ReportUndrawn(problems[p], call.num_heads);
    if (!problems[p].report->wanted.graph) continue;
    status = FillGraph(device_, problems[p], static_cast<int32_t>(p), rounds);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Attention::Collect(std::vector<Staging::ToHost> copies) {
  std::vector<std::vector<unsigned char>> written;
  for (const Results& results : pending_) {
    written.emplace_back(results.bytes);
    copies.push_back({written.back().data(), results.memory.data(), results.bytes});
  }
  absl::Status status = staging_.Download(copies);
  if (!status.ok()) return status;
  for (size_t call = 0; call < pending_.size(); ++call) {
    const Results& results = pending_[call];
    const unsigned char* host = written[call].data();
    const auto* device_caps = reinterpret_cast<const DeviceCap*>(host);
    for (size_t c = 0; c < results.caps.size(); ++c) {
      results.caps[c].capped = device_caps[c].capped != 0;
      if (device_caps[c].failed != 0) status = absl::InternalError("cuda: more edges of one age than a cap can order");
    }
    const auto* counts = reinterpret_cast<const DeviceHeadCounts*>(host + results.caps.size() * sizeof(DeviceCap));
    if (!results.owed.empty() && *reinterpret_cast<const int32_t*>(host + results.full) != 0) {
      status = absl::InternalError("cuda: heads have drawn more edges than the rounds have room for");
    }
    for (const Results::Owed& owed : results.owed) {
      for (int64_t h = 0; h < results.num_heads; ++h) {
        HeadReport& head = owed.report->heads[h];
        head.edges = counts[owed.count + h].edges;
        head.isolated = counts[owed.count + h].isolated;
        if (owed.report->wanted.expected) head.expected = counts[owed.count + h].expected;
        if (owed.degrees < 0) continue;
        const auto* degrees =
            reinterpret_cast<const uint32_t*>(host + results.degrees) + owed.degrees + h * owed.tokens;
        head.key_degrees.assign(degrees, degrees + owed.tokens);
      }
    }
  }
  pending_.clear();
  return status;
}

}  // namespace edgewise::cuda
