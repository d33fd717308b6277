#include "bench/gpu/attention_gpu.h"

#include <cuda_runtime.h>

#include <string>
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

// edges(what is drawn of a head [batch * heads], its number), of a bench that has drawn.
template <typename Edges>
int ForHeads(EdgewiseBench* bench, const Edges& edges) {
  absl::Status status = bench->runs.device()->Use();
  std::vector<HeadEdges>& drawn = bench->runs.drawn();
  for (size_t h = 0; h < drawn.size() && status.ok(); ++h) {
    status = cuda::CudaStatus(edges(drawn[h], static_cast<int64_t>(h)), "edges");
  }
  return Done(bench, status);
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

EDGEWISE_BENCH_EXPORT int EdgewiseBenchCountEdges(EdgewiseBench* bench, const EdgewiseBenchCall* call,
                                                  int32_t* row_edges) {
  absl::Status status = bench->runs.device()->Use();
  if (status.ok()) status = WaitForAll();
  if (status.ok()) status = bench->runs.Draw(*call);
  if (!status.ok()) return Done(bench, status);
  return ForHeads(bench, [&](const HeadEdges& head, int64_t h) {
    std::vector<int32_t> counts;
    for (int64_t i = 0; i < call->n; ++i) {
      counts.push_back(static_cast<int32_t>(head.row_offsets[i + 1] - head.row_offsets[i]));
    }
    return ToDevice(row_edges + h * call->n, counts);
  });
}

EDGEWISE_BENCH_EXPORT int EdgewiseBenchListEdges(EdgewiseBench* bench, int32_t* keys) {
  const int result = ForHeads(bench, [&](const HeadEdges& head, int64_t) {
    int32_t* const to = keys;
    keys += head.keys.size();
    return ToDevice(to, head.keys);
  });
  bench->runs.drawn().clear();
  return result;
}
