// The runtime API but for memory (memory.cc), streams and events (streams.cc).
#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <string_view>
#include <thread>

#include "tests/cuda/emulator/cuda_runtime.h"
#include "tests/cuda/emulator/runtime_state.h"
#include "tests/cuda/emulator/scheduler.h"

namespace emulator {
namespace {

constexpr size_t kSharedWithoutAsking = 48 << 10;

bool ValidExtents(dim3 grid, dim3 block) {
  const auto within = [](unsigned extent, unsigned limit) { return extent >= 1 && extent <= limit; };
  return within(grid.x, 0x7FFFFFFF) && within(grid.y, 65535) && within(grid.z, 65535) && within(block.x, 1024) &&
         within(block.y, 1024) && within(block.z, 64) && block.x * block.y * block.z <= kMaxThreads;
}

// At the end of the process, where EDGEWISE_EMULATED_EVERY_KERNEL asks for it. `nm -C` tells what lies at an offset.
void RequireEveryKernel() {
  const Device& d = TheDevice();
  size_t missing = 0;
  for (const void* kernel : d.kernels) {
    Dl_info in = {};
    if (d.launched.contains(kernel) || dladdr(kernel, &in) == 0) continue;
    std::fprintf(stderr, "CUDA emulator: never launched: %s+0x%tx\n", in.dli_fname,
                 static_cast<const char*>(kernel) - static_cast<const char*>(in.dli_fbase));
    ++missing;
  }
  std::fprintf(stderr, "CUDA emulator: %zu of %zu kernels were never launched\n", missing, d.kernels.size());
  if (missing > 0 || d.kernels.empty()) std::_Exit(1);
}

// Calls of other threads that wait are done now, or some of them.
void LetOthersIn() {
  Device& d = TheDevice();
  if (d.waiting == 0) return;
  const uint64_t calls = d.calls;
  d.mutex.unlock();
  while (d.waiting > 0 && d.calls == calls) std::this_thread::yield();
  d.mutex.lock();
}

}  // namespace

void AwaitGrid(Device& d, const char* call) {
  if (d.grid == std::this_thread::get_id()) FailCall("%s within a grid", call);
  d.grid_end.wait(d.mutex, [&] { return d.grid == std::thread::id(); });
}

Device::Device() {
  if (const char* text = std::getenv("EDGEWISE_EMULATED_FAIL_AFTER")) launches_left = std::atoll(text);
  if (const char* text = std::getenv("EDGEWISE_EMULATED_MEMORY")) memory = std::strtoull(text, nullptr, 10);
  if (const char* text = std::getenv("EDGEWISE_EMULATED_GUARD")) guarded = std::string_view(text) == "1";
  if (std::getenv("EDGEWISE_EMULATED_EVERY_KERNEL") != nullptr) std::atexit(RequireEveryKernel);
  if (const char* text = std::getenv("EDGEWISE_EMULATED_ORDER")) {
    const std::string_view name = text;
    order = name == "forward" ? kForward : name == "backward" ? kBackward : Shuffled(std::strtoull(text, nullptr, 10));
  }
}

Device& TheDevice() {
  static Device* const device = new Device;  // outlives whatever frees memory at exit
  return *device;
}

void FailCall(const char* format, ...) {
  std::fputs("CUDA emulator: ", stderr);
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
  std::abort();
}

cudaError_t Launch(const cudaLaunchConfig_t& config, const void* kernel, void (*thread)(void*), void* data) {
  return Call([&](Device& d) {
    CheckStream(d, config.stream);
    if (!ValidExtents(config.gridDim, config.blockDim)) return cudaErrorInvalidConfiguration;
    const auto limit = d.shared_limits.find(kernel);
    const size_t allowed = limit == d.shared_limits.end() ? kSharedWithoutAsking : limit->second;
    if (config.dynamicSmemBytes > allowed) return cudaErrorInvalidValue;
    if (d.launches_left == 0) {
      d.lost = true;
      return cudaErrorIllegalAddress;
    }
    if (d.launches_left > 0) --d.launches_left;
    ++d.launches;
    d.taken.kernels += d.kernels.insert(kernel).second ? 1 : 0;
    d.launched.insert(kernel);
    AwaitGrid(d, "a launch");
    d.grid = std::this_thread::get_id();
    const Unguarded unguarded(d);
    RunGrid({config.gridDim, config.blockDim, config.dynamicSmemBytes, d.order}, thread, data, LetOthersIn);
    d.grid = {};
    d.grid_end.notify_all();
    return cudaSuccess;
  });
}

void SetOrder(Order order) {
  const std::lock_guard lock(TheDevice().mutex);
  TheDevice().order = order;
}

void PrintTo(const Order& order, std::ostream* out) {
  switch (order.kind) {
    case Order::kForwardKind:
      *out << "forward";
      break;
    case Order::kBackwardKind:
      *out << "backward";
      break;
    case Order::kShuffledKind:
      *out << "shuffled by " << order.seed;
      break;
  }
}

uint64_t calls() { return TheDevice().calls; }

uint64_t launches() {
  const std::lock_guard lock(TheDevice().mutex);
  return TheDevice().launches;
}

void FailAfter(int64_t launches) {
  const std::lock_guard lock(TheDevice().mutex);
  TheDevice().launches_left = launches;
  TheDevice().lost = false;
  TheDevice().flights.clear();
}

}  // namespace emulator

using emulator::Call;
using emulator::Device;

// ---- Errors ----

#define EMULATOR_ERRORS(X)                                                                       \
  X(cudaSuccess, "no error")                                                                     \
  X(cudaErrorInvalidValue, "invalid argument")                                                   \
  X(cudaErrorMemoryAllocation, "out of memory")                                                  \
  X(cudaErrorInitializationError, "initialization error")                                        \
  X(cudaErrorInvalidConfiguration, "invalid configuration argument")                             \
  X(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version") \
  X(cudaErrorInvalidDeviceFunction, "invalid device function")                                   \
  X(cudaErrorNoDevice, "no CUDA-capable device is detected")                                     \
  X(cudaErrorInvalidDevice, "invalid device ordinal")                                            \
  X(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device") \
  X(cudaErrorInvalidResourceHandle, "invalid resource handle")                                   \
  X(cudaErrorNotReady, "device not ready")                                                       \
  X(cudaErrorIllegalAddress, "an illegal memory access was encountered")                         \
  X(cudaErrorOperatingSystem, "OS call failed or operation not supported on this OS")            \
  X(cudaErrorLaunchOutOfResources, "too many resources requested for launch")                    \
  X(cudaErrorLaunchFailure, "unspecified launch failure")                                        \
  X(cudaErrorNotSupported, "operation not supported")                                            \
  X(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered")                            \
  X(cudaErrorNvlinkUncorrectable, "uncorrectable NVLink error detected during the execution")    \
  X(cudaErrorLaunchTimeout, "the launch timed out and was terminated")                           \
  X(cudaErrorContextIsDestroyed, "context is destroyed")                                         \
  X(cudaErrorAssert, "device-side assert triggered")                                             \
  X(cudaErrorHardwareStackError, "hardware stack error")                                         \
  X(cudaErrorIllegalInstruction, "an illegal instruction was encountered")                       \
  X(cudaErrorMisalignedAddress, "misaligned address")                                            \
  X(cudaErrorInvalidAddressSpace, "operation not supported on global/shared address space")      \
  X(cudaErrorInvalidPc, "invalid program counter")                                               \
  X(cudaErrorMpsClientTerminated, "MPS client terminated")                                       \
  X(cudaErrorExternalDevice, "async operation error on an external device")                      \
  X(cudaErrorUnknown, "unknown error")

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define X(name, text) \
  case name:          \
    return #name;
    EMULATOR_ERRORS(X)
#undef X
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
#define X(name, text) \
  case name:          \
    return text;
    EMULATOR_ERRORS(X)
#undef X
  }
  return "unrecognized error code";
}

cudaError_t cudaPeekAtLastError() {
  Call([](Device&) { return cudaSuccess; });  // finds a lost device
  return emulator::last_error;
}
cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  emulator::last_error = cudaSuccess;
  return error;
}

// ---- The device ----

cudaError_t cudaDriverGetVersion(int* version) {
  return Call([&](Device& d) { return *version = d.driver, cudaSuccess; });
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  return Call([&](Device&) { return *version = emulator::kRuntimeVersion, cudaSuccess; });
}
cudaError_t cudaGetDeviceCount(int* count) {
  return Call([&](Device& d) {
    if (d.driver < emulator::kRuntimeVersion) return cudaErrorInsufficientDriver;  // *count stays
    return *count = 1, cudaSuccess;
  });
}
cudaError_t cudaSetDevice(int device) {
  return Call([&](Device&) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; });
}
cudaError_t cudaGetDevice(int* device) {
  return Call([&](Device&) { return *device = 0, cudaSuccess; });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return Call([&](Device& d) {
    if (device != 0) return cudaErrorInvalidDevice;
    *properties = {};
    std::snprintf(properties->name, sizeof(properties->name), "emulated");
    properties->major = d.capability / 10;
    properties->minor = d.capability % 10;
    properties->multiProcessorCount = 132;
    properties->totalGlobalMem = d.memory;
    properties->sharedMemPerBlock = emulator::kSharedWithoutAsking;
    properties->sharedMemPerBlockOptin = emulator::kMaxShared;
    properties->sharedMemPerMultiprocessor = size_t{228} << 10;
    properties->l2CacheSize = 50 << 20;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = emulator::kMaxThreads;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, device); error != cudaSuccess) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = properties.maxThreadsPerBlock;
      break;
    case cudaDevAttrWarpSize:
      *value = properties.warpSize;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      break;
    case cudaDevAttrL2CacheSize:
      *value = properties.l2CacheSize;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      break;
    case cudaDevAttrMemoryPoolsSupported:
      *value = emulator::TheDevice().pools;
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  return Call([](Device& d) {
    emulator::AwaitGrid(d, "cudaDeviceSynchronize");
    return emulator::Wait(d, std::nullopt), cudaSuccess;
  });
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  return Call([&](Device& d) {
    *attributes = {};
    d.kernels.insert(kernel);
    return cudaSuccess;
  });
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  return Call([&](Device& d) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || static_cast<size_t>(value) > emulator::kMaxShared) return cudaErrorInvalidValue;
    d.shared_limits[kernel] = value;
    return cudaSuccess;
  });
}
