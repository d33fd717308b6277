// The edges and softmax weights of a call, brought to the host where a report asks for them.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_EDGE_GRAPH_H_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_EDGE_GRAPH_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/attention.h"
#include "kernels/cuda/attention/rounds.h"
#include "kernels/cuda/device/runtime.h"

namespace edgewise::cuda {

// Waits for the stream and fills the graphs of problem `index` of a call that was enqueued: all of them where it was
// drawn, else the weights of the edges that its report already has. `rounds`: the call's.
absl::Status FillGraph(Device& device, const AttentionProblem& problem, int32_t index, DrawRounds& rounds);

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_EDGE_GRAPH_H_
