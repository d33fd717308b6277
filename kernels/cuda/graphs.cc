#include "kernels/cuda/graphs.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "kernels/cuda/runtime.h"

namespace edgewise::cuda {
namespace {

constexpr size_t kMaxExecutables = 16;

// Who captures and who must not meet a capture, in this process.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t captures = 0;  // open
  int64_t others = 0;    // waiting for none to be open, or running
};

Gate& TheGate() {
  static Gate* const gate = new Gate;  // outlives whatever is freed at exit
  return *gate;
}

thread_local int64_t own_captures = 0;

void EnterCapture() {
  Gate& gate = TheGate();
  std::unique_lock<std::mutex> lock(gate.mutex);
  gate.changed.wait(lock, [&] { return gate.others == 0 || own_captures > 0; });
  ++gate.captures;
  ++own_captures;
}

void LeaveCapture() {
  Gate& gate = TheGate();
  const std::lock_guard<std::mutex> lock(gate.mutex);
  --gate.captures;
  --own_captures;
  gate.changed.notify_all();
}

bool WantsGraphs() {
  const char* value = std::getenv("EDGEWISE_CUDA_GRAPHS");
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace

bool WithoutCaptures(const std::function<void()>& body) {
  if (own_captures > 0) return false;
  Gate& gate = TheGate();
  std::unique_lock<std::mutex> lock(gate.mutex);
  ++gate.others;
  gate.changed.wait(lock, [&] { return gate.captures == 0; });
  body();  // under the lock: one at a time
  --gate.others;
  gate.changed.notify_all();
  return true;
}

Graphs::Graphs(cudaStream_t stream) : stream_(stream), enabled_(WantsGraphs()) {}

Graphs::~Graphs() { Clear(); }

void Graphs::Clear() {
  for (const Executable& executable : executables_) cudaGraphExecDestroy(executable.graph);
  executables_.clear();
}

absl::Status Graphs::Begin() {
  if (!enabled_ || recording_) return absl::OkStatus();
  EnterCapture();
  // Relaxed: memory that was never there before is still asked of the driver meanwhile.
  const cudaError_t error = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed);
  if (error != cudaSuccess) {
    LeaveCapture();
    return CudaStatus(error, "begin of a capture");
  }
  KernelsStarted();  // from here on
  recording_ = true;
  ++count_;
  return absl::OkStatus();
}

absl::Status Graphs::Start() {
  if (!recording_) return absl::OkStatus();
  recording_ = false;
  const uint64_t kernels = KernelsStarted();
  cudaGraph_t graph = nullptr;
  cudaError_t error = cudaStreamEndCapture(stream_, &graph);
  LeaveCapture();
  if (error != cudaSuccess) enabled_ = false;
  if (error == cudaSuccess) error = Launch(graph, kernels);
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (error != cudaSuccess) lost_.insert(count_);
  return CudaStatus(error, "start of captured work");
}

cudaError_t Graphs::Launch(cudaGraph_t graph, uint64_t kernels) {
  Executable like = {0, kernels, nullptr};
  cudaError_t error = cudaGraphGetNodes(graph, nullptr, &like.nodes);
  if (error != cudaSuccess || like.nodes == 0) return error;
  error = Prepare(graph, like);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // is told once more, if at all
    error = cudaStreamSynchronize(stream_);
    Clear();
    if (error == cudaSuccess) error = Prepare(graph, like);
  }
  return error == cudaSuccess ? cudaGraphLaunch(executables_.front().graph, stream_) : error;
}

cudaError_t Graphs::Prepare(cudaGraph_t graph, const Executable& like) {
  const auto found = std::find_if(executables_.begin(), executables_.end(), [&](const Executable& executable) {
    return executable.nodes == like.nodes && executable.kernels == like.kernels;
  });
  if (found != executables_.end()) {
    // Launches of it that are under way keep the arguments that they began with.
    cudaGraphExecUpdateResultInfo info = {};
    const cudaError_t error = cudaGraphExecUpdate(found->graph, graph, &info);
    if (error == cudaSuccess) {
      executables_.splice(executables_.begin(), executables_, found);
      return cudaSuccess;
    }
    if (error != cudaErrorGraphExecUpdateFailure) return error;
    cudaGetLastError();  // cuBLASLt has taken another kernel, say
    cudaGraphExecDestroy(found->graph);
    executables_.erase(found);
  }
  Executable made = like;
  const cudaError_t error = cudaGraphInstantiate(&made.graph, graph, 0);
  if (error != cudaSuccess) return error;
  executables_.push_front(made);
  if (executables_.size() > kMaxExecutables) {
    cudaGraphExecDestroy(executables_.back().graph);  // once its launches are done
    executables_.pop_back();
  }
  return cudaSuccess;
}

}  // namespace edgewise::cuda
