// Captures of streams and the graphs that they give. A captured stream's work is recorded and run when the graph is
// launched. What CUDA forbids on a captured stream, or this emulator does not know there, ends the process.
#include <algorithm>

#include "tests/cuda/emulator/runtime_state.h"

struct CUgraph_st {
  std::vector<emulator::Work> work;
};
struct CUgraphExec_st {
  std::vector<emulator::Work> work;
};

namespace emulator {
namespace {

std::set<const void*>& Live() {
  static auto* const live = new std::set<const void*>;
  return *live;
}

template <typename T>
void CheckLive(T* graph) {
  if (!Live().contains(graph)) FailCall("no graph %p", static_cast<const void*>(graph));
}

template <typename T>
cudaError_t Destroy(T* graph) {
  Device& d = TheDevice();
  const std::lock_guard lock(d.mutex);  // also on a device that is lost
  CheckLive(graph);
  Live().erase(graph);
  --d.graphs.live;
  delete graph;
  return d.lost ? cudaErrorIllegalAddress : cudaSuccess;
}

}  // namespace

cudaError_t Enqueue(Device& d, cudaStream_t stream, Work work) {
  const auto capture = d.captures.find(stream);
  if (capture == d.captures.end()) return work.run(d);
  capture->second.work.push_back(std::move(work));
  return cudaSuccess;
}

void CheckNotCaptured(Device& d, const char* call, cudaStream_t stream) {
  if (Captures(d, stream)) FailCall("stream %p is captured: %s is not allowed", static_cast<void*>(stream), call);
}

void CheckNoCapture(Device& d, const char* call) {
  if (!d.captures.empty()) FailCall("a stream is captured: %s is not allowed", call);
}

void CheckAllowed(Device& d, const char* call) {
  for (const auto& [stream, capture] : d.captures) {
    if (capture.mode == cudaStreamCaptureModeRelaxed) continue;
    if (capture.mode == cudaStreamCaptureModeThreadLocal && capture.thread != std::this_thread::get_id()) continue;
    FailCall("stream %p is captured in a mode that is not relaxed: %s is not allowed", static_cast<void*>(stream),
             call);
  }
}

GraphCounts Graphs() {
  const std::lock_guard lock(TheDevice().mutex);
  return TheDevice().graphs;
}

void FailGraphs(int captures, int instantiations) {
  const std::lock_guard lock(TheDevice().mutex);
  TheDevice().failing_captures = captures;
  TheDevice().failing_instantiations = instantiations;
}

}  // namespace emulator

using emulator::Call;
using emulator::Device;
using emulator::Work;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return Call([&](Device& d) {
    emulator::CheckStream(d, stream);
    if (stream == nullptr) return cudaErrorStreamCaptureUnsupported;
    emulator::CheckNotCaptured(d, "to begin a capture", stream);
    d.captures[stream] = {mode, std::this_thread::get_id(), {}};
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  Device& d = emulator::TheDevice();
  const std::lock_guard lock(d.mutex);
  emulator::CheckStream(d, stream);
  const auto capture = d.captures.find(stream);
  if (capture == d.captures.end()) emulator::FailCall("stream %p is not captured", static_cast<void*>(stream));
  if (capture->second.mode != cudaStreamCaptureModeRelaxed && capture->second.thread != std::this_thread::get_id()) {
    emulator::FailCall("a capture that is not relaxed is ended by another thread");
  }
  const std::vector<Work> work = std::move(capture->second.work);
  d.captures.erase(capture);  // also on a device that is lost
  return Call([&](Device&) {
    if (d.failing_captures > 0) return --d.failing_captures, cudaErrorStreamCaptureInvalidated;
    emulator::Live().insert(*graph = new CUgraph_st{work});
    ++d.graphs.live;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return Call([&](Device& d) {
    emulator::CheckStream(d, stream);
    *status = emulator::Captures(d, stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return Call([&](Device&) {
    emulator::CheckLive(graph);
    if (nodes != nullptr) return cudaErrorNotSupported;
    *count = graph->work.size();
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return emulator::Destroy(graph); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return emulator::Destroy(exec); }

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = nullptr;
  return Call([&](Device& d) {
    emulator::CheckLive(graph);
    if (d.failing_instantiations > 0) return --d.failing_instantiations, cudaErrorMemoryAllocation;
    emulator::Live().insert(*exec = new CUgraphExec_st{graph->work});
    ++d.graphs.live;
    ++d.graphs.instantiated;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* info) {
  return Call([&](Device& d) {
    emulator::CheckLive(exec);
    emulator::CheckLive(graph);
    const auto refuse = [&](cudaGraphExecUpdateResult why) {
      ++d.graphs.refused;
      *info = {why, nullptr, nullptr};
      return cudaErrorGraphExecUpdateFailure;
    };
    if (exec->work.size() != graph->work.size()) return refuse(cudaGraphExecUpdateErrorTopologyChanged);
    for (size_t i = 0; i < exec->work.size(); ++i) {
      if (exec->work[i].kind != graph->work[i].kind) return refuse(cudaGraphExecUpdateErrorNodeTypeChanged);
      if (exec->work[i].function != graph->work[i].function) return refuse(cudaGraphExecUpdateErrorFunctionChanged);
    }
    exec->work = graph->work;
    ++d.graphs.updated;
    *info = {cudaGraphExecUpdateSuccess, nullptr, nullptr};
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return Call([&](Device& d) {
    emulator::CheckStream(d, stream);
    emulator::CheckLive(exec);
    emulator::CheckNotCaptured(d, "the launch of a graph", stream);
    ++d.graphs.launched;
    for (const Work& work : exec->work) {
      if (const cudaError_t error = work.run(d); error != cudaSuccess) return error;
    }
    return cudaSuccess;
  });
}
