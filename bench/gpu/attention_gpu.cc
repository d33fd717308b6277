#include "bench/gpu/attention_gpu.h"

#include <string>

#include "bench/gpu/attention_check.h"
#include "bench/gpu/attention_runs.h"
#include "kernels/cuda/attention/kernels.h"

using namespace edgewise;         // NOLINT: the struct below is C's
using namespace edgewise::bench;  // NOLINT

struct EdgewiseBench {
  EdgewiseBench(int ordinal, bool bf16) : runs(bf16), error(runs.Start(ordinal)) {}

  AttentionRuns runs;
  absl::Status error;
  std::string message;
};

namespace {

int Done(EdgewiseBench* bench, const absl::Status& status) {
  bench->error = status;
  return status.ok() ? 0 : 1;
}

// Lists or counts the edges of every sequence; each(kernel call, problem).
template <typename Each>
int ForSequences(EdgewiseBench* bench, const EdgewiseBenchCall* call, const Each& each) {
  absl::Status status = bench->runs.device()->Use();
  if (status.ok()) status = WaitForAll();
  absl::StatusOr<KernelCall> kernels =
      status.ok() ? bench->runs.MakeKernelCall(*call, false) : absl::StatusOr<KernelCall>(status);
  status = kernels.status();
  for (int32_t b = 0; b < call->batch && status.ok(); ++b) {
    status = cuda::CudaStatus(each(kernels->call, b), "edges");
  }
  if (status.ok()) status = bench->runs.device()->Synchronize();
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
  return Done(bench, bench->runs.Time(kind, {calls, static_cast<size_t>(num_calls)}, first, repeats, milliseconds));
}

EDGEWISE_BENCH_EXPORT int EdgewiseBenchPeakBytes(EdgewiseBench* bench, int kind, const EdgewiseBenchCall* call,
                                                 int64_t* bytes) {
  return Done(bench, bench->runs.PeakBytes(kind, *call, bytes));
}

EDGEWISE_BENCH_EXPORT int EdgewiseBenchCheck(EdgewiseBench* bench, int kind, const EdgewiseBenchCall* call,
                                             double* error) {
  return Done(bench, Check(bench->runs, kind, *call, error));
}

EDGEWISE_BENCH_EXPORT int EdgewiseBenchCountEdges(EdgewiseBench* bench, const EdgewiseBenchCall* call,
                                                  int32_t* row_edges) {
  return ForSequences(bench, call, [&](const cuda::DeviceCall& of, int32_t b) {
    return cuda::CountRowEdges(bench->runs.device()->stream(), of, b, row_edges + b * call->heads * call->n);
  });
}

EDGEWISE_BENCH_EXPORT int EdgewiseBenchListEdges(EdgewiseBench* bench, const EdgewiseBenchCall* call,
                                                 const int64_t* row_offsets, int32_t* keys) {
  return ForSequences(bench, call, [&](const cuda::DeviceCall& of, int32_t b) {
    return cuda::ListEdges(bench->runs.device()->stream(), of, b, row_offsets + b * call->heads * (call->n + 1), keys,
                           nullptr);
  });
}
