// The device as this backend uses it: errors as Status, one stream, memory, and the way of small arrays to kernels.
#ifndef EDGEWISE_KERNELS_CUDA_DEVICE_RUNTIME_H_
#define EDGEWISE_KERNELS_CUDA_DEVICE_RUNTIME_H_

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device/memory_cache.h"
#include "kernels/workspace.h"

namespace edgewise::cuda {

// Payload of a status after which the device answers nothing more to this process.
inline constexpr char kDeviceLost[] = "edgewise.dev/device-lost";

// Whether every later call of this process will fail too.
bool IsSticky(cudaError_t error);

// OK, RESOURCE_EXHAUSTED for device memory, else INTERNAL; with the payload kDeviceLost where sticky. `what` names the
// call, or for memory what it was wanted for.
absl::Status CudaStatus(cudaError_t error, std::string_view what);

// One GPU and one stream on it. Memory is taken and given back in the stream's order, and kept until the device is
// closed (memory_cache.h): the driver is asked only for what was never there before. Calls come from one thread at a
// time, but for Use() and Release(); a thread that has not opened the device calls Use() first.
class Device {
 public:
  // UNAVAILABLE: no driver, or no device of this number.
  static absl::StatusOr<std::shared_ptr<Device>> Open(int ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int ordinal() const { return ordinal_; }
  cudaStream_t stream() const { return stream_; }
  const std::string& name() const { return name_; }
  int major() const { return major_; }  // of the compute capability
  int minor() const { return minor_; }
  int64_t shared_memory() const { return shared_memory_; }  // bytes that a block can have

  // Makes it the calling thread's device.
  absl::Status Use() const;
  // Waits for everything enqueued on the stream.
  absl::Status Synchronize() const;

  // At least one byte; 256-byte aligned. Where the driver has no more, waits, returns to it what is free and was not
  // reserved, and asks once more.
  absl::StatusOr<void*> Allocate(int64_t bytes, MemoryCache& from);
  absl::StatusOr<void*> Allocate(int64_t bytes) { return Allocate(bytes, memory_); }
  // For work that is enqueued later. Null is allowed. Any thread, if nothing enqueued elsewhere uses the memory.
  void Release(void* memory) { memory_.Give(memory); }
  // Of a workspace, and of all else.
  MemoryCache& memory(Workspace workspace) { return workspaces_[static_cast<size_t>(workspace)]; }
  MemoryCache& memory() { return memory_; }

  // Takes so many bytes for a workspace from the driver, in one piece and in place of what was reserved for it before,
  // if that was less. Waits.
  absl::Status Reserve(Workspace workspace, int64_t bytes);
  // Sees to it that so many bytes in one piece are free for all else.
  absl::Status ReserveOthers(int64_t bytes);

 private:
  Device() = default;

  int ordinal_ = 0, major_ = 0, minor_ = 0;
  int64_t shared_memory_ = 0;
  std::string name_;
  cudaStream_t stream_ = nullptr;
  MemoryCache memory_;
  std::array<MemoryCache, kWorkspaces> workspaces_;
  std::array<int64_t, kWorkspaces> reserved_ = {};
};

// Memory that may be read on streams of other backends (weights): released after the whole device is idle.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  static absl::StatusOr<DeviceMemory> Create(std::shared_ptr<Device> device, int64_t bytes);
  // A copy of `host`; done when the call returns. Empty: data() is null.
  template <typename T>
  static absl::StatusOr<DeviceMemory> Copy(std::shared_ptr<Device> device, std::span<const T> host) {
    return CopyBytes(std::move(device), host.data(), static_cast<int64_t>(host.size_bytes()));
  }
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory();

  void* data() const { return data_; }
  template <typename T>
  const T* as() const {
    return static_cast<const T*>(data_);
  }

 private:
  static absl::StatusOr<DeviceMemory> CopyBytes(std::shared_ptr<Device> device, const void* host, int64_t bytes);

  std::shared_ptr<Device> device_;
  void* data_ = nullptr;
};

// Memory of one stream that grows to the largest request and is then reused; what it held is lost when it grows.
class Scratch {
 public:
  explicit Scratch(Device& device) : device_(device) {}
  ~Scratch() { device_.Release(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  absl::StatusOr<void*> Get(int64_t bytes);

 private:
  Device& device_;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// The way of small arrays from the host to kernels. Add() copies an array into pinned memory and says where it will be
// on the device; Commit() enqueues the copies of everything added since the last one, and kernels enqueued after that
// may read or write it, until the Add() that follows. Memory is reused once what was enqueued behind it is done.
class Staging {
 public:
  explicit Staging(Device& device) : device_(device) {}
  ~Staging();  // waits
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // 16-byte aligned; null for an empty span. Also null when there is no memory: Commit() then says so.
  template <typename T>
  const T* Add(std::span<const T> host) {
    return static_cast<const T*>(AddBytes(host.data(), host.size_bytes()));
  }
  // Enqueues. On an error nothing added since the last Commit() may be read.
  absl::Status Commit();
  // Makes the chunks that usual calls need, so that they find them. Others are made when they are first needed.
  absl::Status Prepare();

 private:
  struct Chunk {
    unsigned char* host = nullptr;    // pinned
    unsigned char* device = nullptr;  // as large
    size_t bytes = 0, used = 0, committed = 0;
    cudaEvent_t done = nullptr;
    bool waiting = false;  // `done` is recorded and was not yet seen to have happened
  };

  const void* AddBytes(const void* host, size_t bytes);
  absl::Status Reserve(size_t bytes);  // current_ has so much room
  void FreeOutgrown(size_t bytes);
  absl::Status Retire();  // marks the chunks in full_ behind what is enqueued
  absl::StatusOr<std::unique_ptr<Chunk>> MakeChunk(size_t bytes);
  void FreeChunk(Chunk& chunk);

  Device& device_;
  std::unique_ptr<Chunk> current_;
  std::vector<std::unique_ptr<Chunk>> full_;     // added to since the last Retire()
  std::vector<std::unique_ptr<Chunk>> retired_;  // oldest first
  bool committed_ = false;                       // nothing was added since Commit()
  absl::Status error_;                           // of the Adds since the last Commit()
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_DEVICE_RUNTIME_H_
