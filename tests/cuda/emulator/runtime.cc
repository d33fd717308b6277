// The runtime API over memory of the host. Reports and ends the process where memory is freed that was not allocated,
// copies leave their allocations or name the wrong kind of memory, something was written just behind an allocation of
// device memory, or a stream or event does not exist.
#include "tests/cuda/emulator/cuda_runtime.h"

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "tests/cuda/emulator/scheduler.h"

struct CUstream_st {};
struct CUevent_st {
  bool recorded = false;
  std::chrono::steady_clock::time_point time;
};
struct CUmemPoolHandle_st {};

namespace emulator {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kGuardBytes = 64;  // behind every allocation of device memory
constexpr unsigned char kGuard = 0xA5;
constexpr unsigned char kPoison = 0xFF;
constexpr size_t kSharedWithoutAsking = 48 << 10;

struct Device {
  std::recursive_mutex mutex;  // held while a grid runs
  int64_t launches_left = -1;  // until all calls fail; negative: never
  bool lost = false;
  size_t memory = size_t{16} << 30;
  size_t used = 0;
  uint64_t launches = 0;
  Order order = kForward;
  std::map<const char*, size_t> allocations;       // of device memory, by address
  std::map<const char*, size_t> host_allocations;  // pinned
  std::map<const void*, int> shared_limits;        // of kernels that asked for more
  std::set<cudaStream_t> streams;
  std::set<cudaEvent_t> events;

  Device() {
    if (const char* text = std::getenv("EDGEWISE_EMULATED_FAIL_AFTER")) launches_left = std::atoll(text);
    if (const char* text = std::getenv("EDGEWISE_EMULATED_ORDER")) {
      const std::string name = text;
      order = name == "forward"    ? kForward
              : name == "backward" ? kBackward
                                   : Shuffled(std::strtoull(text, nullptr, 10));
    }
  }
};

Device& device() {
  static Device* const device = new Device;  // outlives whatever frees memory at exit
  return *device;
}

thread_local cudaError_t last_error = cudaSuccess;

[[noreturn]] __attribute__((format(printf, 1, 2))) void Fail(const char* format, ...) {
  std::fputs("CUDA emulator: ", stderr);
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
  std::abort();
}

// Every call goes through here: `f(device)` under the lock, unless the device is lost.
template <typename F>
cudaError_t Call(F f) {
  Device& d = device();
  const std::lock_guard lock(d.mutex);
  const cudaError_t error = d.lost ? cudaErrorIllegalAddress : f(d);
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t CheckStream(Device& d, cudaStream_t stream) {
  if (stream != nullptr && !d.streams.contains(stream)) Fail("no stream %p", static_cast<void*>(stream));
  return cudaSuccess;
}

CUevent_st& Event(Device& d, cudaEvent_t event) {
  if (!d.events.contains(event)) Fail("no event %p", static_cast<void*>(event));
  return *event;
}

// The allocation that holds `pointer`; end() where there is none.
std::map<const char*, size_t>::iterator Find(std::map<const char*, size_t>& allocations, const void* pointer) {
  const char* p = static_cast<const char*>(pointer);
  auto i = allocations.upper_bound(p);
  if (i == allocations.begin()) return allocations.end();
  --i;
  return p < i->first + i->second ? i : allocations.end();
}

enum class Memory { kDevice, kHost, kAny };

void CheckRange(Device& d, const char* what, const void* pointer, size_t bytes, Memory memory) {
  if (bytes == 0) return;
  const auto i = Find(d.allocations, pointer);
  if (i == d.allocations.end()) {
    if (memory == Memory::kDevice) Fail("%s: %p is not device memory", what, pointer);
    return;
  }
  if (memory == Memory::kHost) Fail("%s: %p is device memory", what, pointer);
  const size_t offset = static_cast<const char*>(pointer) - i->first;
  if (bytes > i->second - offset) {
    Fail("%s: %zu bytes at byte %zu of an allocation of %zu bytes", what, bytes, offset, i->second);
  }
}

cudaError_t Copy(Device& d, void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                 cudaMemcpyKind kind) {
  if (width == 0 || height == 0) return cudaSuccess;
  if (height > 1 && (width > to_pitch || width > from_pitch)) return cudaErrorInvalidValue;
  const bool any = kind == cudaMemcpyDefault;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  CheckRange(d, "copy to", to, (height - 1) * to_pitch + width,
             any ? Memory::kAny : to_device ? Memory::kDevice : Memory::kHost);
  CheckRange(d, "copy from", from, (height - 1) * from_pitch + width,
             any ? Memory::kAny : from_device ? Memory::kDevice : Memory::kHost);
  for (size_t row = 0; row < height; ++row) {
    std::memmove(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  }
  return cudaSuccess;
}

cudaError_t Allocate(Device& d, void** pointer, size_t bytes) {
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (d.used > d.memory || bytes > d.memory - d.used) return cudaErrorMemoryAllocation;
#if defined(__SANITIZE_ADDRESS__)
  const size_t guard = 0;  // its own check is better
#else
  const size_t guard = kGuardBytes;
#endif
  if (posix_memalign(pointer, kAlignment, bytes + guard) != 0) return cudaErrorMemoryAllocation;
  std::memset(*pointer, kPoison, bytes);
  std::memset(static_cast<char*>(*pointer) + bytes, kGuard, guard);
  d.allocations[static_cast<char*>(*pointer)] = bytes;
  d.used += bytes;
  return cudaSuccess;
}

cudaError_t Free(Device& d, void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  const auto i = d.allocations.find(static_cast<char*>(pointer));
  if (i == d.allocations.end()) Fail("free of %p, which was not allocated", pointer);
#if !defined(__SANITIZE_ADDRESS__)
  for (size_t b = 0; b < kGuardBytes; ++b) {
    if (static_cast<unsigned char>(i->first[i->second + b]) != kGuard) {
      Fail("byte %zu of an allocation of %zu bytes was written", i->second + b, i->second);
    }
  }
#endif
  d.used -= i->second;
  d.allocations.erase(i);
  std::free(pointer);
  return cudaSuccess;
}

bool ValidExtents(dim3 grid, dim3 block) {
  const auto within = [](unsigned extent, unsigned limit) { return extent >= 1 && extent <= limit; };
  return within(grid.x, 0x7FFFFFFF) && within(grid.y, 65535) && within(grid.z, 65535) && within(block.x, 1024) &&
         within(block.y, 1024) && within(block.z, 64) && block.x * block.y * block.z <= kMaxThreads;
}

}  // namespace

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
    RunGrid(config.gridDim, config.blockDim, config.dynamicSmemBytes, d.order, thread, data);
    return cudaSuccess;
  });
}

void SetOrder(Order order) {
  const std::lock_guard lock(device().mutex);
  device().order = order;
}

void FailAfter(int64_t launches) {
  const std::lock_guard lock(device().mutex);
  device().launches_left = launches;
  device().lost = false;
}

void SetMemoryLimit(size_t bytes) {
  const std::lock_guard lock(device().mutex);
  device().memory = bytes;
}

uint64_t launches() {
  const std::lock_guard lock(device().mutex);
  return device().launches;
}

size_t LiveAllocations() {
  const std::lock_guard lock(device().mutex);
  return device().allocations.size();
}

size_t LiveBytes() {
  const std::lock_guard lock(device().mutex);
  return device().used;
}

}  // namespace emulator

using emulator::Call;
using emulator::Device;

// ---- Errors ----

#define EMULATOR_ERRORS(X)                                                 \
  X(cudaSuccess, "no error")                                               \
  X(cudaErrorInvalidValue, "invalid argument")                             \
  X(cudaErrorMemoryAllocation, "out of memory")                            \
  X(cudaErrorInitializationError, "initialization error")                  \
  X(cudaErrorInvalidConfiguration, "invalid configuration argument")       \
  X(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version") \
  X(cudaErrorInvalidDeviceFunction, "invalid device function")             \
  X(cudaErrorNoDevice, "no CUDA-capable device is detected")               \
  X(cudaErrorInvalidDevice, "invalid device ordinal")                      \
  X(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device") \
  X(cudaErrorInvalidResourceHandle, "invalid resource handle")             \
  X(cudaErrorNotReady, "device not ready")                                 \
  X(cudaErrorIllegalAddress, "an illegal memory access was encountered")   \
  X(cudaErrorLaunchFailure, "unspecified launch failure")                  \
  X(cudaErrorNotSupported, "operation not supported")                      \
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
  return Call([&](Device&) { return *version = 13000, cudaSuccess; });
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
cudaError_t cudaGetDeviceCount(int* count) {
  return Call([&](Device&) { return *count = 1, cudaSuccess; });
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
    properties->major = 9;
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
    case cudaDevAttrMaxThreadsPerBlock: *value = properties.maxThreadsPerBlock; break;
    case cudaDevAttrWarpSize: *value = properties.warpSize; break;
    case cudaDevAttrMultiProcessorCount: *value = properties.multiProcessorCount; break;
    case cudaDevAttrL2CacheSize: *value = properties.l2CacheSize; break;
    case cudaDevAttrComputeCapabilityMajor: *value = properties.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = properties.minor; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(properties.sharedMemPerBlockOptin); break;
    case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
    default: return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  return Call([](Device&) { return cudaSuccess; });
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return Call([&](Device& d) {
    *total = d.memory;
    *free = d.memory - (d.used < d.memory ? d.used : d.memory);
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

// ---- Streams and events ----

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return Call([&](Device& d) {
    d.streams.insert(*stream = new CUstream_st);
    return cudaSuccess;
  });
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return Call([&](Device& d) {
    if (d.streams.erase(stream) == 0) emulator::Fail("no stream %p", static_cast<void*>(stream));
    delete stream;
    return cudaSuccess;
  });
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return Call([&](Device& d) { return emulator::CheckStream(d, stream); });
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaStreamSynchronize(stream); }
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return Call([&](Device& d) {
    emulator::CheckStream(d, stream);
    function(data);
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return Call([&](Device& d) {
    d.events.insert(*event = new CUevent_st);
    return cudaSuccess;
  });
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return Call([&](Device& d) {
    emulator::Event(d, event);
    d.events.erase(event);
    delete event;
    return cudaSuccess;
  });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return Call([&](Device& d) {
    emulator::CheckStream(d, stream);
    emulator::Event(d, event) = {true, std::chrono::steady_clock::now()};
    return cudaSuccess;
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return Call([&](Device& d) { return emulator::Event(d, event), cudaSuccess; });
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaEventSynchronize(event); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return Call([&](Device& d) {
    const CUevent_st &from = emulator::Event(d, start), &to = emulator::Event(d, end);
    if (!from.recorded || !to.recorded) return cudaErrorInvalidResourceHandle;
    *milliseconds = std::chrono::duration<float, std::milli>(to.time - from.time).count();
    return cudaSuccess;
  });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return Call([&](Device& d) {
    emulator::Event(d, event);
    return emulator::CheckStream(d, stream);
  });
}

// ---- Memory ----

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  return Call([&](Device& d) {
    emulator::CheckStream(d, stream);
    return emulator::Allocate(d, pointer, bytes);
  });
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  return Call([&](Device& d) {
    emulator::CheckStream(d, stream);
    return emulator::Free(d, pointer);
  });
}
cudaError_t cudaMalloc(void** pointer, size_t bytes) { return cudaMallocAsync(pointer, bytes, nullptr); }
cudaError_t cudaFree(void* pointer) { return cudaFreeAsync(pointer, nullptr); }

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  return Call([&](Device& d) {
    *pointer = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (posix_memalign(pointer, emulator::kAlignment, bytes) != 0) return cudaErrorMemoryAllocation;
    std::memset(*pointer, emulator::kPoison, bytes);
    d.host_allocations[static_cast<char*>(*pointer)] = bytes;
    return cudaSuccess;
  });
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault); }
cudaError_t cudaFreeHost(void* pointer) {
  return Call([&](Device& d) {
    if (pointer == nullptr) return cudaSuccess;
    if (d.host_allocations.erase(static_cast<char*>(pointer)) == 0) {
      emulator::Fail("free of %p, which was not allocated", pointer);
    }
    std::free(pointer);
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  return Call([&](Device& d) {
    emulator::CheckStream(d, stream);
    return emulator::Copy(d, to, to_pitch, from, from_pitch, width, height, kind);
  });
}
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind) {
  return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, nullptr);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return Call([&](Device& d) {
    emulator::CheckStream(d, stream);
    emulator::CheckRange(d, "fill", to, bytes, emulator::Memory::kDevice);
    std::memset(to, value, bytes);
    return cudaSuccess;
  });
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) { return cudaMemsetAsync(to, value, bytes, nullptr); }

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return Call([&](Device&) {
    static CUmemPoolHandle_st the_pool;
    *pool = &the_pool;
    return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
  });
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaDeviceSynchronize(); }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaDeviceSynchronize(); }
