// Memory of one call: on the device in the stream's order, and pinned on the host from a pool.
#ifndef EDGEWISE_KERNELS_CUDA_BLOCKS_H_
#define EDGEWISE_KERNELS_CUDA_BLOCKS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/runtime.h"

namespace edgewise::cuda {

// Owns device memory of one stream: work that is enqueued after its release may get it. `device` must outlive it.
class DeviceBlock {
 public:
  DeviceBlock() = default;
  DeviceBlock(DeviceBlock&& other) noexcept { *this = std::move(other); }
  DeviceBlock& operator=(DeviceBlock&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~DeviceBlock() {
    if (data_ != nullptr) device_->Release(data_);
  }
  // RESOURCE_EXHAUSTED: no memory.
  static absl::StatusOr<DeviceBlock> Create(Device& device, int64_t bytes);

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
};

// Pinned host memory, which copies to and from the device need. Blocks come back to the pool and are kept: pinning
// costs more than most kernels. The pool must outlive its blocks; one thread at a time.
class PinnedPool {
 public:
  class Block {
   public:
    Block() = default;
    Block(Block&& other) noexcept { *this = std::move(other); }
    Block& operator=(Block&& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(data_, other.data_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Block() {
      if (data_ != nullptr) pool_->free_.push_back({data_, bytes_});
    }
    void* data() const { return data_; }
    template <typename T>
    T* as() const {
      return static_cast<T*>(data_);
    }

   private:
    friend class PinnedPool;
    PinnedPool* pool_ = nullptr;
    void* data_ = nullptr;
    int64_t bytes_ = 0;
  };

  PinnedPool() = default;
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;
  ~PinnedPool();
  // RESOURCE_EXHAUSTED: no memory.
  absl::StatusOr<Block> Take(int64_t bytes);

 private:
  struct Free {
    void* data;
    int64_t bytes;
  };
  std::vector<Free> free_;
};

// Enqueues a copy on the device's stream; nothing for no bytes. Host memory must stay until the stream has been waited
// for.
absl::Status CopyAsync(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind, Device& device);

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_BLOCKS_H_
