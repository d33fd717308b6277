// Captures and graphs of the emulator: what is captured runs when the graph is launched, with the arguments of then.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/cuda/emulator/emulator.h"

namespace edgewise::cuda {
namespace {

struct Sum {
  int32_t values[4];
};

__global__ void AddSum(int32_t* to, Sum sum) {
  if (threadIdx.x == 0) to[blockIdx.x] += sum.values[0] + sum.values[3];
}
__global__ void Double(int32_t* values) { values[threadIdx.x] *= 2; }

class EmulatorGraphTest : public testing::Test {
 protected:
  EmulatorGraphTest() {
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    cudaMalloc(&device_, 64 * sizeof(int32_t));
    cudaMemset(device_, 0, 64 * sizeof(int32_t));
    cudaMallocHost(&pinned_, 64 * sizeof(int32_t));
    std::memset(pinned_, 0, 64 * sizeof(int32_t));
  }
  ~EmulatorGraphTest() override {
    cudaStreamDestroy(stream_);
    cudaFree(device_);
    cudaFreeHost(pinned_);
  }

  void Begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed) {
    ASSERT_EQ(cudaStreamBeginCapture(stream_, mode), cudaSuccess);
  }
  cudaGraph_t End() {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    return graph;
  }
  // Fill, two kernels, and a copy to pinned memory.
  cudaGraph_t CaptureFour(int32_t value, int blocks) {
    Begin();
    cudaMemsetAsync(device_, 0, 64 * sizeof(int32_t), stream_);
    {
      Sum sum = {{value, 0, 0, 1}};
      EXPECT_EQ(Launch(stream_, blocks, 32, 0, AddSum, device_, sum), cudaSuccess);
      std::memset(&sum, 0xFF, sizeof(sum));  // arguments were copied
    }
    EXPECT_EQ(Launch(stream_, 1, 4, 0, Double, device_), cudaSuccess);
    cudaMemcpyAsync(pinned_, device_, 16 * sizeof(int32_t), cudaMemcpyDeviceToHost, stream_);
    return End();
  }

  cudaStream_t stream_ = nullptr;
  int32_t* device_ = nullptr;
  int32_t* pinned_ = nullptr;
};

TEST_F(EmulatorGraphTest, WorkRunsWhenItIsLaunchedAndInOrder) {
  const uint64_t launches = emulator::launches();
  const int64_t live = emulator::Graphs().live;
  cudaGraph_t graph = CaptureFour(6, 3);
  EXPECT_EQ(pinned_[0], 0);
  EXPECT_EQ(emulator::launches(), launches);
  size_t nodes = 0;
  ASSERT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
  EXPECT_EQ(nodes, 4u);
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess) << "what was made from it stays";
  EXPECT_EQ(pinned_[0], 0);
  for (int i = 0; i < 2; ++i) {
    std::memset(pinned_, 0, 64 * sizeof(int32_t));
    ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
    EXPECT_EQ(std::vector<int32_t>(pinned_, pinned_ + 4), (std::vector<int32_t>{14, 14, 14, 0}));
  }
  EXPECT_EQ(emulator::launches(), launches + 4);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(emulator::Graphs().live, live);
}

TEST_F(EmulatorGraphTest, AnUpdateTakesArgumentsAndGridsButNoOtherWork) {
  cudaGraph_t graph = CaptureFour(6, 3);
  cudaGraphExec_t exec = nullptr;
  cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);

  graph = CaptureFour(10, 2);
  cudaGraphExecUpdateResultInfo info = {};
  ASSERT_EQ(cudaGraphExecUpdate(exec, graph, &info), cudaSuccess);
  EXPECT_EQ(info.result, cudaGraphExecUpdateSuccess);
  cudaGraphDestroy(graph);
  cudaGraphLaunch(exec, stream_);
  EXPECT_EQ(std::vector<int32_t>(pinned_, pinned_ + 4), (std::vector<int32_t>{22, 22, 0, 0}));

  const auto refused = [&](cudaGraph_t other) {
    EXPECT_EQ(cudaGraphExecUpdate(exec, other, &info), cudaErrorGraphExecUpdateFailure);
    cudaGraphDestroy(other);
    return info.result;
  };
  Begin();
  EXPECT_EQ(refused(End()), cudaGraphExecUpdateErrorTopologyChanged);
  const auto capture = [&](bool fill_last, bool other_kernel) {
    Begin();
    cudaMemsetAsync(device_, 0, 4, stream_);
    if (other_kernel) {
      Launch(stream_, 1, 4, 0, Double, device_);
    } else {
      Launch(stream_, 3, 32, 0, AddSum, device_, Sum{});
    }
    Launch(stream_, 1, 4, 0, Double, device_);
    if (fill_last) {
      cudaMemsetAsync(device_, 0, 4, stream_);
    } else {
      cudaMemcpyAsync(pinned_, device_, 4, cudaMemcpyDeviceToHost, stream_);
    }
    return End();
  };
  EXPECT_EQ(refused(capture(true, false)), cudaGraphExecUpdateErrorNodeTypeChanged);
  EXPECT_EQ(refused(capture(false, true)), cudaGraphExecUpdateErrorFunctionChanged);
  pinned_[0] = 0;
  cudaGraphLaunch(exec, stream_);
  EXPECT_EQ(pinned_[0], 22) << "it is as it was";
  cudaGraphExecDestroy(exec);
}

TEST_F(EmulatorGraphTest, OtherStreamsGoOn) {
  Begin();
  cudaStreamCaptureStatus status;
  ASSERT_EQ(cudaStreamIsCapturing(stream_, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  Launch(stream_, 1, 4, 0, Double, device_);
  cudaStream_t other = nullptr;
  cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
  Launch(other, 1, 32, 0, AddSum, device_, Sum{{4, 0, 0, 0}});
  cudaStreamSynchronize(other);
  cudaMemcpyAsync(pinned_, device_, 4, cudaMemcpyDeviceToHost, other);
  EXPECT_EQ(pinned_[0], 4);
  cudaStreamDestroy(other);
  cudaGraphDestroy(End());
  cudaStreamIsCapturing(stream_, &status);
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
}

TEST_F(EmulatorGraphTest, ALostDeviceFailsTheLaunch) {
  Begin();
  Launch(stream_, 1, 4, 0, Double, device_);
  Launch(stream_, 1, 4, 0, Double, device_);
  cudaGraph_t graph = End();
  cudaGraphExec_t exec = nullptr;
  cudaGraphInstantiate(&exec, graph, 0);
  emulator::FailAfter(1);
  EXPECT_EQ(cudaGraphLaunch(exec, stream_), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaErrorIllegalAddress);
  cudaGraphDestroy(graph);
  emulator::FailAfter(-1);
  cudaGetLastError();
}

using EmulatorGraphDeathTest = EmulatorGraphTest;

TEST_F(EmulatorGraphDeathTest, MisuseIsReported) {
  cudaEvent_t event = nullptr;
  cudaEventCreate(&event);
  std::vector<int32_t> pageable(4);
  const auto dies = [&](auto&& call, const char* message, cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed) {
    const auto captured = [&] {
      cudaStreamBeginCapture(stream_, mode);
      call();
    };
    EXPECT_DEATH(captured(), message);
  };
  dies([&] { cudaStreamSynchronize(stream_); }, "is captured: waiting for it is not allowed");
  dies([&] { cudaDeviceSynchronize(); }, "a stream is captured: cudaDeviceSynchronize is not allowed");
  dies([&] { cudaFree(device_); }, "a stream is captured: cudaFree is not allowed");
  dies([&] { cudaEventRecord(event, stream_); }, "recording an event is not allowed");
  dies([&] { cudaMemcpyAsync(device_, pageable.data(), 16, cudaMemcpyHostToDevice, stream_); }, "is not pinned");
  dies([&] { cudaMemcpyAsync(pageable.data(), device_, 16, cudaMemcpyDeviceToHost, stream_); }, "is not pinned");
  void* memory = nullptr;
  dies([&] { cudaMallocAsync(&memory, 16, stream_); }, "cudaMallocAsync is not allowed");
  dies([&] { cudaMalloc(&memory, 16); }, "an allocation is not allowed", cudaStreamCaptureModeGlobal);
  dies([&] { cudaMallocHost(&memory, 16); }, "an allocation is not allowed", cudaStreamCaptureModeThreadLocal);
  dies([&] { cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed); }, "to begin a capture is not allowed");
  cudaGraph_t graph = nullptr;
  EXPECT_DEATH(cudaStreamEndCapture(stream_, &graph), "is not captured");
  EXPECT_DEATH(cudaGraphDestroy(reinterpret_cast<cudaGraph_t>(&memory)), "no graph");
  Begin();
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaSuccess) << "relaxed";
  cudaGraphDestroy(End());
  cudaFree(memory);
  cudaEventDestroy(event);
}

}  // namespace
}  // namespace edgewise::cuda
