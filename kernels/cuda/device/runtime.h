// The device as this backend uses it: one stream, one memory pool, and errors as absl::Status.
#ifndef EDGEWISE_KERNELS_CUDA_DEVICE_RUNTIME_H_
#define EDGEWISE_KERNELS_CUDA_DEVICE_RUNTIME_H_

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device/staging.h"
#include "kernels/device_memory.h"

namespace edgewise::cuda {

// Payload of a status after which the device answers nothing more to this process.
inline constexpr char kDeviceLost[] = "edgewise.dev/device-lost";

// Whether every later call of this process will fail too.
bool IsSticky(cudaError_t error);

// OK, RESOURCE_EXHAUSTED for device memory, else INTERNAL; with the payload kDeviceLost where sticky. `what` names the
// call, or the purpose of the memory.
absl::Status CudaStatus(cudaError_t error, std::string_view what);

// One GPU and one stream on it. Memory comes from the GPU's default pool, which keeps what is freed until the device is
// closed. Calls come from one thread at a time, but for Use and Free; a thread that has not opened the device calls Use
// first.
class Device : public std::enable_shared_from_this<Device> {
 public:
  // UNAVAILABLE: no driver, no device of this number, or a device without memory pools.
  static absl::StatusOr<std::shared_ptr<Device>> Open(int ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int ordinal() const { return ordinal_; }
  cudaStream_t stream() const { return stream_; }
  const std::string& name() const { return name_; }
  int major() const { return major_; }  // of the compute capability
  int minor() const { return minor_; }
  int sm() const { return 10 * major_ + minor_; }
  int64_t shared_memory() const { return shared_memory_; }  // bytes that a block can have
  int multiprocessors() const { return multiprocessors_; }
  Staging& staging() const { return *staging_; }

  // Makes this the calling thread's device.
  absl::Status Use() const;
  // Waits for everything enqueued on the stream.
  absl::Status Synchronize() const;

  // At least one byte, 256-byte aligned, for work that is enqueued from now on. RESOURCE_EXHAUSTED, with the bytes
  // asked for and the bytes free: too little memory, even after all that the pool kept has gone back to the driver.
  absl::StatusOr<void*> Allocate(int64_t bytes);
  // Arrays that are made while one lives hold weights, until they are freed. Threads as Allocate.
  class Weights {
   public:
    explicit Weights(Device& device) : device_(device) { device_.for_weights_ = true; }
    ~Weights() { device_.for_weights_ = false; }

   private:
    Device& device_;
  };
  // Counts an array of `bytes`, where it holds weights. The array gives the result back to Uncount, from any thread.
  int64_t Count(int64_t bytes);
  void Uncount(int64_t counted) { weights_ -= counted; }
  // None: the device does not answer. Any thread.
  std::optional<DeviceMemory> Memory() const;

  // Frees behind everything enqueued on the stream so far. Null is allowed. Any thread.
  void Free(void* memory) const;

 private:
  Device() = default;

  int ordinal_ = 0, major_ = 0, minor_ = 0;
  int64_t shared_memory_ = 0;
  int multiprocessors_ = 0;
  std::string name_;
  cudaMemPool_t pool_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<Staging> staging_;
  bool for_weights_ = false;
  std::atomic<int64_t> weights_ = 0;  // bytes
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_DEVICE_RUNTIME_H_
