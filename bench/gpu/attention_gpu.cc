#include "bench/gpu/attention_gpu.h"

#include <cuda_runtime.h>

#include <string>
#include <utility>
#include <vector>

#include "bench/gpu/attention_check.h"
#include "bench/gpu/attention_runs.h"
#include "kernels/attention.h"
#include "kernels/cuda/device/runtime.h"

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

template <typename T>
cudaError_t ToDevice(T* to, const std::vector<T>& from) {
  return cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice);
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

EDGEWISE_BENCH_EXPORT int EdgewiseBenchDraw(EdgewiseBench* bench, const EdgewiseBenchCall* call, int64_t most,
                                            int64_t* edges) {
  absl::Status status = bench->runs.device()->Use();
  if (status.ok()) status = WaitForAll();
  if (status.ok()) status = bench->runs.Draw(*call, most, edges);
  return Done(bench, status);
}

EDGEWISE_BENCH_EXPORT int EdgewiseBenchListEdges(EdgewiseBench* bench, int32_t* row_edges, int32_t* keys) {
  absl::Status status = bench->runs.device()->Use();
  for (const HeadEdges& head : std::exchange(bench->runs.drawn(), {})) {
    std::vector<int32_t> counts;
    for (size_t i = 1; i < head.row_offsets.size(); ++i) {
      counts.push_back(static_cast<int32_t>(head.row_offsets[i] - head.row_offsets[i - 1]));
    }
    if (status.ok()) status = cuda::CudaStatus(ToDevice(row_edges, counts), "edges of rows");
    if (status.ok()) status = cuda::CudaStatus(ToDevice(keys, head.keys), "keys of edges");
    row_edges += counts.size();
    keys += head.keys.size();
  }
  return Done(bench, status);
}
