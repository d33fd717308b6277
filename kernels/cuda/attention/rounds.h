// The drawn edges of an attention call, which are in memory in rounds (call.h).
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_ROUNDS_H_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_ROUNDS_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/device/device_array.h"
#include "kernels/cuda/device/runtime.h"

namespace edgewise::cuda {

// The pool of a call and its rounds: as many as there can be at most, known from shapes alone. Most calls have one, and
// are drawn once. Those of later rounds cost next to nothing where all has been drawn before. Rounds change no byte of
// a result.
struct PoolPlan {
  int64_t words = 0;
  int64_t rounds = 0;   // of a pass; 0: nothing is drawn
  bool splits = false;  // some head's bits may not fit at once
};
// `bytes`: for the pool, unless a row or 64 rows of bits take more than half of it.
PoolPlan PlanPool(std::span<const DeviceProblem> problems, int32_t num_heads, int64_t bytes);

// Enqueues passes over a call's edges on the device's stream. Rounds that find nothing to draw or to read return at
// once. One thread at a time.
class DrawRounds {
 public:
  // Takes the pool and what else drawn rows and heads need, together at most `most_bytes` where PlanPool gives no more.
  // Copies `call`, which has all but that. `problems`: the call's, on the host. `device` must outlive the object.
  absl::Status Start(Device& device, std::span<const DeviceProblem> problems, int64_t most_bytes,
                     const DeviceCall& call);

  // The call with its pool and its last round, which later passes change.
  const DeviceCall& call() const { return call_; }
  // All edges are in memory at once.
  bool single() const { return plan_.rounds <= 1; }

  // Calls use(call) in every round of a pass, for caps that are not settled; ends at the first error. `again`: limits
  // of caps may have been raised.
  cudaError_t ForDrawn(Draws draws, bool again, const UseRound& use);
  // Likewise, with the edges that caps keep. The first time they are counted. `problem`: of that one alone; -1: of all.
  cudaError_t ForKept(const UseRound& use, int32_t problem = -1);

 private:
  cudaError_t Pass(Draws draws, int32_t problem, const UseRound& use, bool kept, bool count);

  const Device* device_ = nullptr;
  DeviceArray memory_;
  DeviceCall call_ = {};
  PoolPlan plan_;
  bool drawn_ = false;  // single(): everything
  bool kept_ = false;   // likewise, and caps have dropped what they drop
  bool counted_ = false;
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_ROUNDS_H_
