// Device memory with an owner.
#ifndef EDGEWISE_KERNELS_CUDA_DEVICE_DEVICE_ARRAY_H_
#define EDGEWISE_KERNELS_CUDA_DEVICE_DEVICE_ARRAY_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device/runtime.h"

namespace edgewise::cuda {

// Owns memory of the device's pool and frees it in the stream's order: work that is enqueued before the array
// is destroyed may use it. Keeps the device open. Any thread may free it.
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(DeviceArray&& other) noexcept { *this = std::move(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(counted_, other.counted_);
    return *this;
  }
  ~DeviceArray() {
    if (data_ == nullptr) return;
    device_->Free(data_);
    device_->Uncount(counted_);
  }

  // As Device::Allocate.
  static absl::StatusOr<DeviceArray> Create(Device& device, int64_t bytes) {
    const absl::StatusOr<void*> data = device.Allocate(bytes);
    if (!data.ok()) return data.status();
    DeviceArray array;
    array.device_ = device.shared_from_this();
    array.data_ = *data;
    array.counted_ = device.Count(bytes);
    return array;
  }
  // A copy of `host`, which is complete when the call returns. Empty: data() is null.
  template <typename T>
  static absl::StatusOr<DeviceArray> Copy(Device& device, std::span<const T> host) {
    if (host.empty()) return DeviceArray();
    absl::StatusOr<DeviceArray> array = Create(device, static_cast<int64_t>(host.size_bytes()));
    if (!array.ok()) return array;
    absl::Status status = device.staging().Upload(host.data(), static_cast<int64_t>(host.size_bytes()), array->data());
    if (status.ok()) status = device.Synchronize();
    if (!status.ok()) return status;
    return array;
  }

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  std::shared_ptr<Device> device_;
  void* data_ = nullptr;
  int64_t counted_ = 0;  // by Device::Count
};

// Memory of calls that run one behind the other, kept from one to the next.
class Scratch {
 public:
  // For work that is enqueued before the next Take; may hold anything. Errors as Device::Allocate.
  absl::StatusOr<void*> Take(Device& device, int64_t bytes) {
    if (bytes > bytes_) {
      Free();
      absl::StatusOr<DeviceArray> array = DeviceArray::Create(device, bytes);
      if (!array.ok()) return array.status();
      array_ = *std::move(array);
      bytes_ = bytes;
    }
    return array_.data();
  }
  void Free() {
    array_ = DeviceArray();
    bytes_ = 0;
  }

 private:
  DeviceArray array_;
  int64_t bytes_ = 0;
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_DEVICE_DEVICE_ARRAY_H_
