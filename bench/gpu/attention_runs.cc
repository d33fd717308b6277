#include "bench/gpu/attention_runs.h"

#include <iterator>
#include <utility>

#include "bench/membership_network.h"
#include "kernels/cuda/attention/items.h"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/device/device_array.h"
#include "kernels/cuda/ops/rows.h"

namespace edgewise::bench {
namespace {

using cuda::CudaStatus;
using cuda::DeviceArray;

constexpr int kWarmRuns = 2;

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

AttentionProblem ProblemOf(const EdgewiseBenchCall& call, int kind, int32_t sequence) {
  AttentionProblem problem;
  problem.first_row = problem.out_row = sequence * call.n;
  problem.tokens = static_cast<int32_t>(call.n);
  if (kind == kEdgewiseAllPairs) {
    problem.pattern = AllPairs{};
  } else {
    problem.pattern = DrawnRows{.key = {call.seed + sequence, 0, 0, 0}};
  }
  return problem;
}

}  // namespace

AttentionRuns::~AttentionRuns() {
  if (device_ != nullptr) static_cast<void>(device_->Synchronize());
  for (cudaEvent_t event : events_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
}

absl::Status AttentionRuns::Start(int ordinal) {
  absl::StatusOr<std::shared_ptr<cuda::Device>> opened = cuda::Device::Open(ordinal);
  if (!opened.ok()) return opened.status();
  device_ = *std::move(opened);
  attention_ = std::make_unique<cuda::Attention>(*device_, bf16_);
  for (cudaEvent_t& event : events_) {
    if (absl::Status status = CudaStatus(cudaEventCreate(&event), "event"); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status AttentionRuns::Draw(const EdgewiseBenchCall& call, int64_t most, int64_t* edges) {
  drawn_.clear();
  std::vector<AttentionReport> reports;
  absl::Status status = Attend(call, kEdgewiseDrawn, reports);
  status.Update(attention_->Collect({}));
  *edges = 0;
  for (const AttentionReport& report : reports) {
    for (const HeadReport& head : report.heads) *edges += static_cast<int64_t>(head.edges);
  }
  if (*edges > most) return status;
  for (int32_t b = 0; b < call.batch && status.ok(); ++b) {  // one by one: a graph takes much memory
    AttentionProblem problem = ProblemOf(call, kEdgewiseDrawn, b);
    reports[b].wanted.graph = true;
    problem.report = &reports[b];
    status = attention_->Attend(Inputs(call), {&problem, 1}, {}, Matrix(call.out, Rows(call), Width(call)));
    status.Update(attention_->Collect({}));
    for (HeadReport& head : reports[b].heads) {
      drawn_.push_back({.row_offsets = std::move(head.graph.row_offsets), .keys = std::move(head.graph.keys)});
    }
    reports[b] = {};
  }
  return status;
}

absl::StatusOr<KernelCall> AttentionRuns::MakeKernelCall(const EdgewiseBenchCall& call) const {
  KernelCall kernels;
  std::vector<cuda::DeviceProblem> problems(call.batch);
  cuda::RowItems items;
  std::vector<HeadEdges> graph(call.heads);  // their offsets say which heads are dense
  for (int32_t b = 0; b < call.batch; ++b) {
    cuda::DeviceProblem& problem = problems[b];
    problem = {};
    problem.first_row = problem.query_row = problem.out_row = b * call.n;
    problem.tokens = static_cast<int32_t>(call.n);
    problem.kind = cuda::PatternKind::kGiven;
    problem.cap = -1;
    problem.event_head = -1;
    problem.row_offsets = call.row_offsets + static_cast<int64_t>(b) * call.heads * (call.n + 1);
    problem.given_keys = call.keys;
    AttentionProblem shape;
    shape.tokens = problem.tokens;
    shape.pattern = ExplicitEdges{.heads = &graph};
    for (size_t h = 0; h < graph.size(); ++h) {
      graph[h].row_offsets.resize(call.n + 1);
      const cudaError_t error = cudaMemcpy(graph[h].row_offsets.data(), problem.row_offsets + h * (call.n + 1),
                                           (call.n + 1) * sizeof(int64_t), cudaMemcpyDeviceToHost);
      if (error != cudaSuccess) return CudaStatus(error, "offsets of given rows");
    }
    cuda::AddRowItems(shape, b, call.heads, problem, items);
  }
  auto on_device = DeviceArray::Copy(*device_, std::span<const cuda::DeviceProblem>(problems));
  if (!on_device.ok()) return on_device.status();
  kernels.problems = *std::move(on_device);
  on_device = DeviceArray::Copy(*device_, std::span<const cuda::RowItem>(items.rows));
  if (!on_device.ok()) return on_device.status();
  kernels.row_items = *std::move(on_device);
  on_device = DeviceArray::Copy(*device_, std::span<const cuda::RowItem>(items.dense));
  if (!on_device.ok()) return on_device.status();
  kernels.dense_items = *std::move(on_device);
  cuda::DeviceCall& of = kernels.call;
  of.q = call.q;
  of.k = call.k;
  of.v = call.v;
  of.q_stride = of.k_stride = of.v_stride = of.out_stride = Width(call);
  of.out = call.out;
  of.num_heads = call.heads;
  of.head_dim = of.value_dim = call.head_dim;
  of.scale = Scale(call);
  of.problems = kernels.problems.as<cuda::DeviceProblem>();
  of.num_problems = call.batch;
  of.row_items = kernels.row_items.as<cuda::RowItem>();
  of.dense_items = kernels.dense_items.as<cuda::RowItem>();
  of.num_dense_items = std::ssize(items.dense);
  of.num_row_items = static_cast<uint32_t>(items.rows.size());
  return kernels;
}

// Random weights of a membership network of these heads, and room for what it computes.
absl::Status AttentionRuns::MakeMembershipWeights(const EdgewiseBenchCall& call) {
  if (membership_weights_ == nullptr || weights_heads_ != call.heads || weights_head_dim_ != call.head_dim) {
    const MembershipNetwork network(call.heads, call.head_dim);
    auto weights = cuda::PrepareMemberships(device_, network.parameters());
    if (!weights.ok()) return weights.status();
    membership_weights_ = *std::move(weights);
    weights_heads_ = call.heads;
    weights_head_dim_ = call.head_dim;
  }
  const int64_t floats = 2 * call.heads * Rows(call) * (membership_weights_->rank() + 1);
  if (floats <= membership_floats_) return absl::OkStatus();
  membership_floats_ = 0;
  auto memory = DeviceArray::Create(*device_, floats * static_cast<int64_t>(sizeof(float)));
  if (!memory.ok()) return memory.status();
  memberships_ = *std::move(memory);
  membership_floats_ = floats;
  return absl::OkStatus();
}

absl::Status AttentionRuns::Attend(const EdgewiseBenchCall& call, int kind, std::vector<AttentionReport>& reports) {
  std::vector<AttentionProblem> problems(call.batch);
  reports.resize(call.batch);
  for (int32_t b = 0; b < call.batch; ++b) {
    problems[b] = ProblemOf(call, kind, b);
    problems[b].report = &reports[b];
  }
  return attention_->Attend(Inputs(call), problems, {}, Matrix(call.out, Rows(call), Width(call)));
}

absl::Status AttentionRuns::RunGiven(const EdgewiseBenchCall& call, const KernelCall& kernels) {
  cuda::DeviceCall of = kernels.call;
  of.bf16 = bf16_;
  DeviceArray rounded;
  if (bf16_) {  // as the backend does in every call
    absl::StatusOr<DeviceArray> block =
        DeviceArray::Create(*device_, 2 * Rows(call) * Width(call) * static_cast<int64_t>(sizeof(*of.k16)));
    if (!block.ok()) return block.status();
    rounded = *std::move(block);
    const int32_t columns = call.head_dim;
    of.k16_stride = of.v16_stride = 2 * columns;
    of.k16_head_stride = of.v16_head_stride = Rows(call) * of.k16_stride;
    auto* const to = rounded.as<__nv_bfloat16>();
    const auto round = [&](const float* from, int32_t begin) {
      const ConstMatrix rows(from, Rows(call), Width(call));
      return cuda::RoundHeads(device_->stream(), rows, columns, to + begin, of.k16_stride, of.k16_head_stride);
    };
    cudaError_t error = round(call.k, 0);
    if (error == cudaSuccess) error = round(call.v, columns);
    if (error != cudaSuccess) return CudaStatus(error, "rounding");
    of.k16 = to;
    of.v16 = to + columns;
  }
  const absl::Status status = CudaStatus(cuda::AttendRows(device_->stream(), of), "attention over rows");
  return status.ok() ? CudaStatus(cuda::AttendTiles(device_->stream(), of), "attention over tiles") : status;
}

absl::Status AttentionRuns::RunMemberships(const EdgewiseBenchCall& call) {
  const int64_t rows = Rows(call), rank = membership_weights_->rank(), heads = call.heads;
  auto* x = static_cast<float*>(memberships_.data());
  float* y = x + heads * rows * rank;
  float* query_bound = y + heads * rows * rank;
  const AttentionInputs inputs = Inputs(call);
  return cuda::ComputeMemberships(*device_, *membership_weights_, inputs.q, inputs.k,
                                  {x, y, query_bound, query_bound + heads * rows, rows, static_cast<int32_t>(rank)});
}

absl::Status AttentionRuns::Time(int kind, std::span<const EdgewiseBenchCall> calls, int first, int repeats,
                                 double* milliseconds) {
  absl::Status status = device_->Use();
  if (status.ok() && kind == kEdgewiseMemberships) status = MakeMembershipWeights(calls[0]);
  std::vector<KernelCall> kernels;
  for (size_t c = 0; c < calls.size() && kind == kEdgewiseGiven && status.ok(); ++c) {
    absl::StatusOr<KernelCall> made = MakeKernelCall(calls[c]);
    status = made.status();
    if (status.ok()) kernels.push_back(*std::move(made));
  }
  std::vector<AttentionReport> reports;
  if (status.ok()) status = WaitForAll();
  if (status.ok()) status = CudaStatus(cudaEventRecord(events_[0], device_->stream()), "event");
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
  if (status.ok()) status = CudaStatus(cudaEventRecord(events_[1], device_->stream()), "event");
  status.Update(attention_->Collect({}));  // waits; before the reports are freed, whatever happened
  float elapsed = 0.0f;
  if (status.ok()) status = CudaStatus(cudaEventElapsedTime(&elapsed, events_[0], events_[1]), "time");
  *milliseconds = static_cast<double>(elapsed) / repeats;
  return status;
}

absl::Status AttentionRuns::PeakBytes(int kind, const EdgewiseBenchCall& call, int64_t* bytes) {
  *bytes = -1;
#ifdef EDGEWISE_CUDA_EMULATED
  return Run(kind, call);
#else
  absl::Status status;
  for (int r = 0; r < kWarmRuns && status.ok(); ++r) status = Run(kind, call);
  if (!status.ok()) return status;
  cudaMemPool_t pool = nullptr;
  uint64_t before = 0, most = 0;  // writing 0 makes the present use the highest
  status = CudaStatus(cudaDeviceGetDefaultMemPool(&pool, device_->ordinal()), "memory pool");
  const auto attribute = [&](auto call, cudaMemPoolAttr which, uint64_t& value) {
    if (status.ok()) status = CudaStatus(call(pool, which, &value), "use of the memory pool");
  };
  attribute(cudaMemPoolSetAttribute, cudaMemPoolAttrUsedMemHigh, most);
  attribute(cudaMemPoolGetAttribute, cudaMemPoolAttrUsedMemCurrent, before);
  if (status.ok()) status = Run(kind, call);
  attribute(cudaMemPoolGetAttribute, cudaMemPoolAttrUsedMemHigh, most);
  *bytes = static_cast<int64_t>(most - before);
  return status;
#endif
}

}  // namespace edgewise::bench
