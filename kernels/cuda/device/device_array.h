// Memory of calls: on the device in the stream's order, and what comes back to the host.
#ifndef EDGEWISE_KERNELS_CUDA_DEVICE_DEVICE_ARRAY_H_
#define EDGEWISE_KERNELS_CUDA_DEVICE_DEVICE_ARRAY_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/device/runtime.h"

namespace edgewise::cuda {

// Owns device memory of one stream: work that is enqueued after its release may get it. `device` must outlive it.
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(DeviceArray&& other) noexcept { *this = std::move(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(from_, other.from_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~DeviceArray() {
    if (data_ != nullptr) from_->Give(data_);
  }
  // RESOURCE_EXHAUSTED: no memory.
  static absl::StatusOr<DeviceArray> Create(Device& device, int64_t bytes) {
    return Create(device, bytes, device.memory());
  }
  static absl::StatusOr<DeviceArray> Create(Device& device, int64_t bytes, MemoryCache& from);

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  MemoryCache* from_ = nullptr;
  void* data_ = nullptr;
};

// Where kernels write what is copied back to the host: device memory with as much pinned memory, handed out in pieces
// until all of them come back together. It is kept: pinning costs more than most kernels. One thread at a time.
class ResultMemory {
 public:
  struct Piece {
    unsigned char* host = nullptr;
    unsigned char* device = nullptr;
  };

  explicit ResultMemory(Device& device) : device_(device) {}
  ResultMemory(const ResultMemory&) = delete;
  ResultMemory& operator=(const ResultMemory&) = delete;
  ~ResultMemory();

  // 256-byte aligned. RESOURCE_EXHAUSTED: no memory.
  absl::StatusOr<Piece> Take(int64_t bytes);
  // Nothing that was taken is used any more.
  void Clear() { chunk_ = used_ = 0; }
  // Takes so much memory now, where it has none yet.
  absl::Status Prepare(int64_t bytes);

 private:
  struct Chunk {
    Piece begin;
    int64_t bytes;
  };
  absl::Status AddChunk(int64_t bytes);

  Device& device_;
  std::vector<Chunk> chunks_;
  size_t chunk_ = 0;  // that is handed out now
  int64_t used_ = 0;  // of it
};

// Enqueues a copy on the device's stream; nothing for no bytes. Host memory must stay until the stream has been waited
// for.
absl::Status CopyAsync(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind, Device& device);

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_DEVICE_DEVICE_ARRAY_H_
