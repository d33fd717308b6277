// Copies between host and device, through one ring of pinned memory.
#ifndef EDGEWISE_KERNELS_CUDA_DEVICE_STAGING_H_
#define EDGEWISE_KERNELS_CUDA_DEVICE_STAGING_H_

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace edgewise::cuda {

class Device;

// The ring has a few slots. The host fills a slot only after the event behind the slot's last copy. One thread at a
// time; owned by the device (Device::staging).
class Staging {
 public:
  static absl::StatusOr<std::unique_ptr<Staging>> Create(Device& device);
  ~Staging();  // waits
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Small arrays for kernels, in batches. Add returns where the array will be on the device: 16-byte aligned, null for
  // an empty span and after an error. Kernels enqueued after Commit may read or write the batch's arrays; the next Add
  // begins a new batch.
  template <typename T>
  const T* Add(std::span<const T> host) {
    return static_cast<const T*>(AddBytes(host.data(), host.size_bytes()));
  }
  // Enqueues the copies of the batch. On an error no kernel may read the batch.
  absl::Status Commit();

  // Enqueues a copy to device memory; `host` may be freed when the call returns.
  absl::Status Upload(const void* host, int64_t bytes, void* device);

  struct ToHost {
    void* host;
    const void* device;
    int64_t bytes;
  };
  // Waits for everything enqueued on the stream and for these copies.
  absl::Status Download(std::span<const ToHost> copies);

 private:
  static constexpr size_t kSlots = 4;

  explicit Staging(Device& device) : device_(device) {}
  absl::Status Start();
  const void* AddBytes(const void* host, size_t bytes);
  absl::Status AddBlock(size_t bytes);
  void FreeBlocks(size_t kept);
  absl::Status Put(const void* host, size_t bytes, unsigned char* device);
  absl::Status NextSlot();
  absl::Status Flush();
  unsigned char* slot() const;

  Device& device_;
  unsigned char* ring_ = nullptr;
  std::array<cudaEvent_t, kSlots> done_ = {};
  size_t slot_ = 0, used_ = 0;  // the slot that is being filled, and its bytes in use

  // Bytes [flushed_, used_) of the slot wait for Flush, which copies them to `to_`.
  size_t flushed_ = 0;
  unsigned char* to_ = nullptr;

  // Device memory of the batch. The first block stays: copies of the next batch are behind the kernels of this one.
  std::vector<unsigned char*> blocks_;
  unsigned char* free_ = nullptr;  // in the last block
  size_t free_bytes_ = 0;
  bool committed_ = true;
  absl::Status error_;  // of the batch
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_DEVICE_STAGING_H_
