// Work that is held back and started as one CUDA graph.
#ifndef EDGEWISE_KERNELS_CUDA_GRAPHS_H_
#define EDGEWISE_KERNELS_CUDA_GRAPHS_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <set>

#include "absl/status/status.h"

namespace edgewise::cuda {

// What the calling thread started through Launch() since it last asked: a number that tells sequences of kernels apart.
uint64_t KernelsStarted();

// While a stream is captured, nothing may wait for the whole device, nor give memory back to the driver. Runs `body`
// while no stream of this process is captured and keeps captures from beginning; waits for those that are open. False,
// with nothing run, where the calling thread has one open itself.
bool WithoutCaptures(const std::function<void()>& body);

// The captures of one stream, one after the other, and the executable graphs that they left. A graph for the same
// kernels is used again, with new arguments and grids. Off unless EDGEWISE_CUDA_GRAPHS is 1, and once a capture failed.
//
// Between Begin and Start by one thread, work enqueued on the stream is recorded. Forbidden then: waiting for the
// stream, its events, copies from and to memory of the host that is not pinned.
class Graphs {
 public:
  explicit Graphs(cudaStream_t stream);
  ~Graphs();  // nothing is recorded and the stream is idle
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  absl::Status Begin();
  // Starts what was recorded. On an error it never runs. Nothing to do where nothing is recorded.
  absl::Status Start();

  bool recording() const { return recording_; }
  // Of the recording that is open; 0: none.
  uint64_t current() const { return recording_ ? count_ : 0; }
  // Whether the recording of that number never runs.
  bool lost(uint64_t recording) const { return lost_.contains(recording); }

 private:
  // Made for `nodes` pieces of work, `kernels` among them.
  struct Executable {
    size_t nodes;
    uint64_t kernels;
    cudaGraphExec_t graph;
  };

  cudaError_t Launch(cudaGraph_t graph, uint64_t kernels);
  cudaError_t Prepare(cudaGraph_t graph, const Executable& like);  // executables_.front() is it
  void Clear();

  const cudaStream_t stream_;
  bool enabled_;
  bool recording_ = false;
  uint64_t count_ = 0;
  std::set<uint64_t> lost_;
  std::list<Executable> executables_;  // the last used first
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_GRAPHS_H_
