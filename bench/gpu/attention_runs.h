// Runs of this project's attention on device memory, timed and measured, behind the C interface of attention_gpu.h.
#ifndef EDGEWISE_BENCH_GPU_ATTENTION_RUNS_H_
#define EDGEWISE_BENCH_GPU_ATTENTION_RUNS_H_

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/gpu/attention_gpu.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/device/device_array.h"
#include "kernels/cuda/device/runtime.h"
#include "kernels/cuda/ops/memberships.h"

namespace edgewise::bench {

inline float Scale(const EdgewiseBenchCall& call) { return 1.0f / std::sqrt(static_cast<float>(call.head_dim)); }
inline int64_t Rows(const EdgewiseBenchCall& call) { return call.batch * call.n; }
inline int64_t Width(const EdgewiseBenchCall& call) { return static_cast<int64_t>(call.heads) * call.head_dim; }

// For whoever filled the operands on a stream of their own, too.
inline absl::Status WaitForAll() { return cuda::CudaStatus(cudaDeviceSynchronize(), "synchronize"); }

// A DeviceCall of its own, whose lists stay as long as it lives: kernels are launched without the backend's host part.
struct KernelCall {
  cuda::DeviceCall call = {};
  cuda::DeviceArray problems, row_items, dense_items;
};

class AttentionRuns {
 public:
  // Start() says whether it can be used.
  explicit AttentionRuns(bool bf16) : bf16_(bf16) {}
  ~AttentionRuns();
  AttentionRuns(const AttentionRuns&) = delete;
  AttentionRuns& operator=(const AttentionRuns&) = delete;

  absl::Status Start(int ordinal);
  // Null before Start() and where it failed.
  cuda::Device* device() const { return device_.get(); }

  // As EdgewiseBenchDraw.
  absl::Status Draw(const EdgewiseBenchCall& call, int64_t most, int64_t* edges);
  // The edges that stay [batch * heads].
  std::vector<HeadEdges>& drawn() { return drawn_; }
  absl::Status Run(int kind, const EdgewiseBenchCall& call) {
    double milliseconds = 0.0;
    return Time(kind, {&call, 1}, 0, 1, &milliseconds);
  }
  // As EdgewiseBenchTime and EdgewiseBenchPeakBytes.
  absl::Status Time(int kind, std::span<const EdgewiseBenchCall> calls, int first, int repeats, double* milliseconds);
  absl::Status PeakBytes(int kind, const EdgewiseBenchCall& call, int64_t* bytes);

 private:
  // A kGiven problem, as the backend's host makes it.
  absl::StatusOr<KernelCall> MakeKernelCall(const EdgewiseBenchCall& call) const;
  absl::Status MakeMembershipWeights(const EdgewiseBenchCall& call);
  absl::Status Attend(const EdgewiseBenchCall& call, int kind, std::vector<AttentionReport>& reports);
  absl::Status RunGiven(const EdgewiseBenchCall& call, const KernelCall& kernels);
  absl::Status RunMemberships(const EdgewiseBenchCall& call);

  const bool bf16_;
  std::shared_ptr<cuda::Device> device_;
  std::unique_ptr<cuda::Attention> attention_;
  std::unique_ptr<MembershipWeights> membership_weights_;
  int32_t weights_heads_ = 0, weights_head_dim_ = 0;
  cuda::DeviceArray memberships_;  // what kEdgewiseMemberships writes
  int64_t membership_floats_ = 0;
  std::vector<HeadEdges> drawn_;
  cudaEvent_t events_[2] = {nullptr, nullptr};
};

}  // namespace edgewise::bench

#endif  // EDGEWISE_BENCH_GPU_ATTENTION_RUNS_H_
