#include "bench/gpu/attention_check.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "bench/row_errors.h"
#include "kernels/cuda/device/runtime.h"

namespace edgewise::bench {
namespace {

using cuda::CudaStatus;

constexpr int kCheckedHeads = 4;
constexpr int64_t kCheckedRows = 8;

// One head of one sequence, packed rows in host memory.
struct HeadOperands {
  std::vector<float> q, k, v, out;  // [n, head_dim]
  std::vector<float> x, y;          // [n, rank]
};

absl::Status Download(const EdgewiseBenchCall& call, int32_t sequence, int32_t head, HeadOperands& operands) {
  const int64_t n = call.n, d = call.head_dim;
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

void CompareRows(const EdgewiseBenchCall& call, const HeadOperands& operands, int kind, int32_t sequence, int32_t head,
                 RowErrors& errors) {
  const int64_t n = call.n, d = call.head_dim;
  AttentionInputs inputs;
  inputs.q = ConstMatrix(operands.q.data(), n, d);
  inputs.k = ConstMatrix(operands.k.data(), n, d);
  inputs.v = ConstMatrix(operands.v.data(), n, d);
  inputs.num_heads = 1;
  inputs.head_dim = call.head_dim;
  inputs.scale = Scale(call);
  const DrawnRows drawn = {.key = {call.seed + sequence, 0, 0, 0}};
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < std::min(n, kCheckedRows); ++row) {
    rows.push_back(std::min(n - 1, row * n / kCheckedRows + row));
  }
  std::vector<std::vector<int32_t>> keys(rows.size());
  if (kind == kEdgewiseAllPairs) {
    std::fill(keys.begin(), keys.end(), AllKeys(n));
  } else {
    keys = DrawnKeys(drawn, static_cast<uint32_t>(head), rows, operands.x.data(), operands.y.data(), n, call.rank);
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    CompareRow(inputs, 0, rows[r], keys[r], ConstMatrix(operands.out.data(), n, d), errors);
  }
}

}  // namespace

absl::Status Check(AttentionRuns& runs, int kind, const EdgewiseBenchCall& call, double* error) {
  absl::Status status = runs.device()->Use();
  if (!status.ok()) return status;
  const size_t bytes = static_cast<size_t>(Rows(call) * Width(call)) * sizeof(float);
  status = CudaStatus(cudaMemset(call.out, 0xFF, bytes), "memset");  // NaN
  if (status.ok()) status = runs.Run(kind, call);
  RowErrors errors;
  const int32_t heads = call.batch * call.heads, checked = std::min(heads, kCheckedHeads);
  for (int32_t c = 0; c < checked && status.ok(); ++c) {
    const int32_t which = checked == 1 ? 0 : c * (heads - 1) / (checked - 1);
    const int32_t sequence = which / call.heads, head = which % call.heads;
    HeadOperands operands;
    status = Download(call, sequence, head, operands);
    if (status.ok()) CompareRows(call, operands, kind, sequence, head, errors);
  }
  *error = errors.largest_difference / (errors.largest_value > 0.0 ? errors.largest_value : 1.0);
  return status;
}

}  // namespace edgewise::bench
