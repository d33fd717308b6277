#include "bench/gpu/attention_gpu.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/gpu/sampled_rows.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_items.h"
#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/memberships.h"
#include "kernels/cuda/runtime.h"

namespace edgewise::bench {
namespace {

using cuda::CudaStatus;
using cuda::DeviceBlock;
using cuda::DeviceMemory;

constexpr int kClusters = 128;
constexpr int kWarmRuns = 2;
constexpr int kCheckedHeads = 4;

float Scale(const EdgewiseBenchCall& call) { return 1.0f / std::sqrt(static_cast<float>(call.head_dim)); }
int64_t Rows(const EdgewiseBenchCall& call) { return call.batch * call.n; }
int64_t Width(const EdgewiseBenchCall& call) { return static_cast<int64_t>(call.heads) * call.head_dim; }

AttentionInputs Inputs(const EdgewiseBenchCall& call) {
  AttentionInputs inputs;
  inputs.q = ConstMatrix(call.q, Rows(call), Width(call));
  inputs.k = ConstMatrix(call.k, Rows(call), Width(call));
  inputs.v = ConstMatrix(call.v, Rows(call), Width(call));
  inputs.memberships = {call.x, call.y, call.query_bound, call.key_bound, Rows(call), call.rank};
  inputs.num_heads = call.heads;
  inputs.head_dim = call.head_dim;
  inputs.scale = Scale(call);
  return inputs;
}

// For whoever filled the operands on a stream of their own, too.
absl::Status WaitForAll() { return CudaStatus(cudaDeviceSynchronize(), "synchronize"); }

// A DeviceCall of its own, whose lists stay as long as it lives: kernels are launched without the backend's host part.
struct KernelCall {
  cuda::DeviceCall call = {};
  DeviceMemory problems, items, counts;
};

}  // namespace
}  // namespace edgewise::bench

using namespace edgewise;         // NOLINT: the struct below is C's
using namespace edgewise::bench;  // NOLINT

struct EdgewiseBench {
  EdgewiseBench(int ordinal, bool bf16) : bf16(bf16) { error = Start(ordinal); }

  ~EdgewiseBench() {
    if (device != nullptr) static_cast<void>(device->Synchronize());
    for (cudaEvent_t event : events) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }

  absl::Status Start(int ordinal) {
    absl::StatusOr<std::shared_ptr<cuda::Device>> opened = cuda::Device::Open(ordinal);
    if (!opened.ok()) return opened.status();
    device = *std::move(opened);
    attention = std::make_unique<cuda::Attention>(*device, bf16);
    for (cudaEvent_t& event : events) {
      if (absl::Status status = CudaStatus(cudaEventCreate(&event), "event"); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<KernelCall> MakeKernelCall(const EdgewiseBenchCall& call, bool given) const;
  absl::Status MakeMembershipWeights(const EdgewiseBenchCall& call);
  absl::Status Attend(const EdgewiseBenchCall& call, int kind, std::vector<AttentionReport>& reports);
  absl::Status RunGiven(const EdgewiseBenchCall& call, const KernelCall& kernels);
  absl::Status RunMemberships(const EdgewiseBenchCall& call);
  absl::Status Time(int kind, std::span<const EdgewiseBenchCall> calls, int first, int repeats, double* milliseconds);
  absl::Status Run(int kind, const EdgewiseBenchCall& call) {
    double milliseconds = 0.0;
    return Time(kind, {&call, 1}, 0, 1, &milliseconds);
  }
  absl::Status PeakBytes(int kind, const EdgewiseBenchCall& call, int64_t* bytes);
  absl::Status Check(int kind, const EdgewiseBenchCall& call, double* error);
  absl::Status Download(const EdgewiseBenchCall& call, int32_t sequence, int32_t head, HeadOperands& operands) const;

  const bool bf16;
  absl::Status error;
  std::string message;
  std::shared_ptr<cuda::Device> device;
  std::unique_ptr<cuda::Attention> attention;
  std::unique_ptr<MembershipWeights> membership_weights;
  int32_t weights_heads = 0, weights_head_dim = 0;
  DeviceMemory memberships;  // what kEdgewiseMemberships writes
  int64_t membership_floats = 0;
  cudaEvent_t events[2] = {nullptr, nullptr};
};

// The problems as the backend's host makes them; `given`: over call.row_offsets and keys, else drawn.
absl::StatusOr<KernelCall> EdgewiseBench::MakeKernelCall(const EdgewiseBenchCall& call, bool given) const {
  KernelCall kernels;
  std::vector<cuda::DeviceProblem> problems(call.batch);
  std::vector<cuda::RowItem> items;
  for (int32_t b = 0; b < call.batch; ++b) {
    cuda::DeviceProblem& problem = problems[b];
    problem = {};
    problem.first_row = problem.query_row = problem.out_row = b * call.n;
    problem.tokens = static_cast<int32_t>(call.n);
    problem.kind = given ? cuda::PatternKind::kGiven : cuda::PatternKind::kDrawn;
    problem.cap = -1;
    problem.count = static_cast<int64_t>(b) * call.heads;
    problem.law = Law::kBernoulli;
    problem.key.seed = call.seed + b;
    problem.row_offsets = given ? call.row_offsets + static_cast<int64_t>(b) * call.heads * (call.n + 1) : nullptr;
    problem.given_keys = given ? call.keys : nullptr;
    AttentionProblem shape;
    shape.tokens = problem.tokens;
    cuda::AddRowItems(shape, b, call.heads, items);
  }
  const std::vector<cuda::HeadCounts> counts(static_cast<size_t>(call.batch) * call.heads);
  auto on_device = DeviceMemory::Copy(device, std::span<const cuda::DeviceProblem>(problems));
  if (!on_device.ok()) return on_device.status();
  kernels.problems = *std::move(on_device);
  on_device = DeviceMemory::Copy(device, std::span<const cuda::RowItem>(items));
  if (!on_device.ok()) return on_device.status();
  kernels.items = *std::move(on_device);
  on_device = DeviceMemory::Copy(device, std::span<const cuda::HeadCounts>(counts));
  if (!on_device.ok()) return on_device.status();
  kernels.counts = *std::move(on_device);
  cuda::DeviceCall& of = kernels.call;
  of.q = call.q;
  of.k = call.k;
  of.v = call.v;
  of.q_stride = of.k_stride = of.v_stride = of.out_stride = Width(call);
  of.out = call.out;
  of.num_heads = call.heads;
  of.head_dim = of.value_dim = call.head_dim;
  of.scale = Scale(call);
  of.x = call.x;
  of.y = call.y;
  of.query_bound = call.query_bound;
  of.key_bound = call.key_bound;
  of.membership_rows = Rows(call);
  of.rank = call.rank;
  of.problems = kernels.problems.as<cuda::DeviceProblem>();
  of.row_items = kernels.items.as<cuda::RowItem>();
  of.num_row_items = static_cast<int64_t>(items.size());
  of.counts = static_cast<cuda::HeadCounts*>(kernels.counts.data());
  return kernels;
}

// Random weights of a membership network of these heads, and room for what it computes.
absl::Status EdgewiseBench::MakeMembershipWeights(const EdgewiseBenchCall& call) {
  if (membership_weights == nullptr || weights_heads != call.heads || weights_head_dim != call.head_dim) {
    std::mt19937 random(29);
    std::normal_distribution<float> normal;
    const auto fill = [&](size_t size, float scale) {
      std::vector<float> values(size);
      for (float& value : values) value = scale * normal(random);
      return values;
    };
    const auto d = static_cast<size_t>(call.head_dim);
    const float scale = Scale(call);
    const std::vector<float> weight0 = fill(d * d, scale), weight1 = fill(d * d, scale), bias = fill(d, 0.0f);
    const std::vector<float> clusters = fill(call.heads * kClusters * d, 0.3f * scale);  // small, as initialised
    auto weights = cuda::PrepareMemberships(
        device, {call.heads, call.head_dim, kClusters, weight0, bias, weight1, bias, clusters, {}});
    if (!weights.ok()) return weights.status();
    membership_weights = *std::move(weights);
    weights_heads = call.heads;
    weights_head_dim = call.head_dim;
  }
  const int64_t floats = 2 * call.heads * Rows(call) * (membership_weights->rank() + 1);
  if (floats <= membership_floats) return absl::OkStatus();
  membership_floats = 0;
  auto memory = DeviceMemory::Create(device, floats * static_cast<int64_t>(sizeof(float)));
  if (!memory.ok()) return memory.status();
  memberships = *std::move(memory);
  membership_floats = floats;
  return absl::OkStatus();
}

absl::Status EdgewiseBench::Attend(const EdgewiseBenchCall& call, int kind, std::vector<AttentionReport>& reports) {
  std::vector<AttentionProblem> problems(call.batch);
  reports.resize(call.batch);
  for (int32_t b = 0; b < call.batch; ++b) {
    problems[b].first_row = problems[b].out_row = b * call.n;
    problems[b].tokens = static_cast<int32_t>(call.n);
    problems[b].report = &reports[b];
    if (kind == kEdgewiseAllPairs) {
      problems[b].pattern = AllPairs{};
    } else {
      problems[b].pattern = DrawnRows{.key = {call.seed + b, 0, 0, 0}};
    }
  }
  return attention->Attend(Inputs(call), problems, {}, Matrix(call.out, Rows(call), Width(call)));
}

absl::Status EdgewiseBench::RunGiven(const EdgewiseBenchCall& call, const KernelCall& kernels) {
  cuda::DeviceCall of = kernels.call;
  DeviceBlock rounded;
  if (bf16) {  // as the backend does in every call
    const int64_t values = (Rows(call) * Width(call) + 127) / 128 * 128;
    absl::StatusOr<DeviceBlock> block =
        DeviceBlock::Create(*device, 2 * values * static_cast<int64_t>(sizeof(*of.k16)));
    if (!block.ok()) return block.status();
    rounded = *std::move(block);
    auto* k16 = rounded.as<__nv_bfloat16>();
    auto* v16 = k16 + values;
    absl::Status status =
        CudaStatus(cuda::RoundRows(device->stream(), call.k, Width(call), Rows(call), Width(call), k16), "rounding");
    if (!status.ok()) return status;
    status =
        CudaStatus(cuda::RoundRows(device->stream(), call.v, Width(call), Rows(call), Width(call), v16), "rounding");
    if (!status.ok()) return status;
    of.k16 = k16;
    of.v16 = v16;
  }
  return CudaStatus(cuda::AttendRows(device->stream(), of), "attention over rows");
}

absl::Status EdgewiseBench::RunMemberships(const EdgewiseBenchCall& call) {
  const int64_t rows = Rows(call), rank = membership_weights->rank(), heads = call.heads;
  auto* x = static_cast<float*>(memberships.data());
  float* y = x + heads * rows * rank;
  float* query_bound = y + heads * rows * rank;
  const AttentionInputs inputs = Inputs(call);
  return cuda::ComputeMemberships(*device, *membership_weights, inputs.q, inputs.k,
                                  {x, y, query_bound, query_bound + heads * rows, rows, static_cast<int32_t>(rank)});
}

absl::Status EdgewiseBench::Time(int kind, std::span<const EdgewiseBenchCall> calls, int first, int repeats,
                                 double* milliseconds) {
  absl::Status status = device->Use();
  if (status.ok() && kind == kEdgewiseMemberships) status = MakeMembershipWeights(calls[0]);
  std::vector<KernelCall> kernels;
  for (size_t c = 0; c < calls.size() && kind == kEdgewiseGiven && status.ok(); ++c) {
    absl::StatusOr<KernelCall> made = MakeKernelCall(calls[c], true);
    status = made.status();
    if (status.ok()) kernels.push_back(*std::move(made));
  }
  std::vector<AttentionReport> reports;
  if (status.ok()) status = WaitForAll();
  if (status.ok()) status = CudaStatus(cudaEventRecord(events[0], device->stream()), "event");
  for (int r = 0; r < repeats && status.ok(); ++r) {
    const size_t c = static_cast<size_t>(first + r) % calls.size();
    if (kind == kEdgewiseGiven) {
      status = RunGiven(calls[c], kernels[c]);
    } else if (kind == kEdgewiseMemberships) {
      status = RunMemberships(calls[c]);
    } else {
      status = Attend(calls[c], kind, reports);
    }
  }
  if (status.ok()) status = CudaStatus(cudaEventRecord(events[1], device->stream()), "event");
  const absl::Status waited = device->Synchronize();  // before the lists are freed, whatever happened
  if (status.ok()) status = waited;
  const absl::Status collected = attention->Collect();
  if (status.ok()) status = collected;
  float elapsed = 0.0f;
  if (status.ok()) status = CudaStatus(cudaEventElapsedTime(&elapsed, events[0], events[1]), "time");
  *milliseconds = static_cast<double>(elapsed) / repeats;
  return status;
}

absl::Status EdgewiseBench::PeakBytes(int kind, const EdgewiseBenchCall& call, int64_t* bytes) {
  *bytes = -1;
#ifdef EDGEWISE_CUDA_EMULATED
  return Run(kind, call);
#else
  absl::Status status;
  for (int r = 0; r < kWarmRuns && status.ok(); ++r) status = Run(kind, call);
  if (!status.ok()) return status;
  cudaMemPool_t pool = nullptr;
  uint64_t before = 0, zero = 0, most = 0;
  status = CudaStatus(cudaDeviceGetDefaultMemPool(&pool, device->ordinal()), "memory pool");
  if (!status.ok()) return status;
  status = CudaStatus(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &before), "memory in use");
  if (!status.ok()) return status;
  status = CudaStatus(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &zero), "most memory in use");
  if (status.ok()) status = Run(kind, call);
  if (!status.ok()) return status;
  status = CudaStatus(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &most), "most memory in use");
  *bytes = static_cast<int64_t>(most > before ? most - before : 0);
  return status;
#endif
}

absl::Status EdgewiseBench::Download(const EdgewiseBenchCall& call, int32_t sequence, int32_t head,
                                     HeadOperands& operands) const {
  const int64_t n = call.n, d = call.head_dim;
  operands.n = n;
  operands.head_dim = call.head_dim;
  operands.rank = call.rank;
  const int64_t first = sequence * n * Width(call) + head * d;
  for (const auto& [from, to] : {std::pair(call.q, &operands.q),
                                 {call.k, &operands.k},
                                 {call.v, &operands.v},
                                 {static_cast<const float*>(call.out), &operands.out}}) {
    to->resize(n * d);
    const size_t row = d * sizeof(float);
    absl::Status status = CudaStatus(
        cudaMemcpy2D(to->data(), row, from + first, Width(call) * sizeof(float), row, n, cudaMemcpyDeviceToHost),
        "copy");
    if (!status.ok()) return status;
  }
  if (call.x == nullptr) return absl::OkStatus();
  const int64_t member = (head * Rows(call) + sequence * n) * call.rank;
  for (const auto& [from, to] : {std::pair(call.x, &operands.x), {call.y, &operands.y}}) {
    to->resize(n * call.rank);
    absl::Status status =
        CudaStatus(cudaMemcpy(to->data(), from + member, to->size() * sizeof(float), cudaMemcpyDeviceToHost), "copy");
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status EdgewiseBench::Check(int kind, const EdgewiseBenchCall& call, double* error) {
  absl::Status status = device->Use();
  if (!status.ok()) return status;
  const size_t bytes = static_cast<size_t>(Rows(call) * Width(call)) * sizeof(float);
  status = CudaStatus(cudaMemset(call.out, 0xFF, bytes), "memset");  // NaN
  if (status.ok()) status = Run(kind, call);
  RowErrors errors;
  const int32_t heads = call.batch * call.heads, checked = std::min(heads, kCheckedHeads);
  for (int32_t c = 0; c < checked && status.ok(); ++c) {
    const int32_t which = checked == 1 ? 0 : c * (heads - 1) / (checked - 1);
    const int32_t sequence = which / call.heads, head = which % call.heads;
    HeadOperands operands;
    status = Download(call, sequence, head, operands);
    const RandomKey key = {call.seed + sequence, 0, 0, 0};
    if (!status.ok()) break;
    CompareRows(operands, Scale(call), static_cast<uint32_t>(head), kind == kEdgewiseAllPairs ? nullptr : &key, errors);
  }
  *error = errors.largest_difference / (errors.largest_value > 0.0 ? errors.largest_value : 1.0);
  return status;
}

namespace {

int Done(EdgewiseBench* bench, const absl::Status& status) {
  bench->error = status;
  return status.ok() ? 0 : 1;
}

// Lists or counts the edges of every sequence; each(kernel call, problem).
template <typename Each>
int ForSequences(EdgewiseBench* bench, const EdgewiseBenchCall* call, const Each& each) {
  absl::Status status = bench->device->Use();
  if (status.ok()) status = WaitForAll();
  absl::StatusOr<KernelCall> kernels =
      status.ok() ? bench->MakeKernelCall(*call, false) : absl::StatusOr<KernelCall>(status);
  status = kernels.status();
  for (int32_t b = 0; b < call->batch && status.ok(); ++b) {
    status = CudaStatus(each(kernels->call, b), "edges");
  }
  if (status.ok()) status = bench->device->Synchronize();
  return Done(bench, status);
}

}  // namespace

#define EDGEWISE_BENCH_EXPORT __attribute__((visibility("default")))

EDGEWISE_BENCH_EXPORT EdgewiseBench* EdgewiseBenchOpen(int ordinal, int bf16) {
  return new EdgewiseBench(ordinal, bf16 != 0);
}

EDGEWISE_BENCH_EXPORT void EdgewiseBenchClose(EdgewiseBench* bench) { delete bench; }

EDGEWISE_BENCH_EXPORT const char* EdgewiseBenchError(const EdgewiseBench* bench) {
  auto* mutable_bench = const_cast<EdgewiseBench*>(bench);
  mutable_bench->message = bench->error.ok() ? "" : bench->error.ToString();
  return bench->message.c_str();
}

EDGEWISE_BENCH_EXPORT int EdgewiseBenchTime(EdgewiseBench* bench, int kind, const EdgewiseBenchCall* calls,
                                            int num_calls, int first, int repeats, double* milliseconds) {
  return Done(bench, bench->Time(kind, {calls, static_cast<size_t>(num_calls)}, first, repeats, milliseconds));
}

EDGEWISE_BENCH_EXPORT int EdgewiseBenchPeakBytes(EdgewiseBench* bench, int kind, const EdgewiseBenchCall* call,
                                                 int64_t* bytes) {
  return Done(bench, bench->PeakBytes(kind, *call, bytes));
}

EDGEWISE_BENCH_EXPORT int EdgewiseBenchCheck(EdgewiseBench* bench, int kind, const EdgewiseBenchCall* call,
                                             double* error) {
  return Done(bench, bench->Check(kind, *call, error));
}

EDGEWISE_BENCH_EXPORT int EdgewiseBenchCountEdges(EdgewiseBench* bench, const EdgewiseBenchCall* call,
                                                  int32_t* row_edges) {
  return ForSequences(bench, call, [&](const cuda::DeviceCall& of, int32_t b) {
    return cuda::CountRowEdges(bench->device->stream(), of, b, row_edges + b * call->heads * call->n);
  });
}

EDGEWISE_BENCH_EXPORT int EdgewiseBenchListEdges(EdgewiseBench* bench, const EdgewiseBenchCall* call,
                                                 const int64_t* row_offsets, int32_t* keys) {
  return ForSequences(bench, call, [&](const cuda::DeviceCall& of, int32_t b) {
    return cuda::ListEdges(bench->device->stream(), of, b, row_offsets + b * call->heads * (call->n + 1), keys,
                           nullptr);
  });
}
