#include "kernels/cuda/device/runtime.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace edgewise::cuda {

bool IsSticky(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
    case cudaErrorMemoryAllocation:
    case cudaErrorNotReady:
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorNotSupported:
    case cudaErrorOperatingSystem:
      return false;
    default:
      return true;
  }
}

absl::Status CudaStatus(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();  // an error that is not sticky is told once
  if (error == cudaErrorMemoryAllocation) {
    return absl::ResourceExhaustedError(absl::StrCat("out of device memory: ", std::string(what)));
  }
  absl::Status status = absl::InternalError(
      absl::StrCat("cuda: ", std::string(what), ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error)));
  if (IsSticky(error)) status.SetPayload(kDeviceLost, absl::Cord("1"));
  return status;
}

absl::StatusOr<std::shared_ptr<Device>> Device::Open(int ordinal) {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    return absl::UnavailableError(absl::StrCat("no usable CUDA device: ", cudaGetErrorString(error)));
  }
  if (ordinal < 0 || ordinal >= count) {
    return absl::UnavailableError(absl::StrCat("CUDA device ", ordinal, " is not there; this machine has ", count));
  }
  std::shared_ptr<Device> device(new Device());
  device->ordinal_ = ordinal;
  // A device that another process has to itself, say, is as good as none.
  const auto unusable = [&](cudaError_t reason, std::string_view what) {
    const absl::Status status = CudaStatus(reason, what);
    return absl::IsResourceExhausted(status) ? status : absl::UnavailableError(status.message());
  };
  error = cudaSetDevice(ordinal);
  if (error != cudaSuccess) return unusable(error, absl::StrCat("device ", ordinal));
  cudaDeviceProp properties = {};
  error = cudaGetDeviceProperties(&properties, ordinal);
  if (error != cudaSuccess) return unusable(error, "device properties");
  device->name_ = properties.name;
  device->major_ = properties.major;
  device->minor_ = properties.minor;
  device->shared_memory_ = static_cast<int64_t>(properties.sharedMemPerBlockOptin);

  error = cudaStreamCreateWithFlags(&device->stream_, cudaStreamNonBlocking);
  if (error != cudaSuccess) return unusable(error, "stream");
  return device;
}

Device::~Device() {
  if (stream_ == nullptr) return;
  Use().IgnoreError();  // for the thread that drops the last reference, and the memory that goes now
  Synchronize().IgnoreError();
  cudaStreamDestroy(stream_);
}

absl::Status Device::Use() const { return CudaStatus(cudaSetDevice(ordinal_), absl::StrCat("device ", ordinal_)); }

absl::Status Device::Synchronize() const { return CudaStatus(cudaStreamSynchronize(stream_), "synchronize"); }

absl::StatusOr<void*> Device::Allocate(int64_t bytes, MemoryCache& from) {
  void* memory = nullptr;
  cudaError_t error = from.Take(bytes, &memory);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // is told here, if at all
    if (absl::Status status = Synchronize(); !status.ok()) return status;
    memory_.Trim();
    for (size_t w = 0; w < workspaces_.size(); ++w) workspaces_[w].Trim(reserved_[w]);
    error = from.Take(bytes, &memory);
  }
  if (error != cudaSuccess) return CudaStatus(error, absl::StrCat(bytes, " bytes asked for on CUDA device ", ordinal_));
  return memory;
}

absl::Status Device::Reserve(Workspace workspace, int64_t bytes) {
  int64_t& reserved = reserved_[static_cast<size_t>(workspace)];
  if (bytes <= reserved) return absl::OkStatus();
  MemoryCache& cache = memory(workspace);
  if (absl::Status status = Synchronize(); !status.ok()) return status;
  cache.Trim();
  const absl::StatusOr<void*> taken = Allocate(bytes, cache);
  if (taken.ok()) {
    cache.Give(*taken);
    reserved = bytes;
    return absl::OkStatus();
  }
  // As it was, for what is served already.
  const absl::StatusOr<void*> before = reserved > 0 ? Allocate(reserved, cache) : nullptr;
  if (before.ok()) cache.Give(*before);
  if (!before.ok()) reserved = 0;
  return taken.status();
}

absl::Status Device::ReserveOthers(int64_t bytes) {
  const absl::StatusOr<void*> taken = Allocate(bytes);
  if (taken.ok()) Release(*taken);
  return taken.status();
}

absl::StatusOr<DeviceMemory> DeviceMemory::Create(std::shared_ptr<Device> device, int64_t bytes) {
  absl::StatusOr<void*> data = device->Allocate(bytes);
  if (!data.ok()) return data.status();
  DeviceMemory memory;
  memory.device_ = std::move(device);
  memory.data_ = *data;
  return memory;
}

absl::StatusOr<DeviceMemory> DeviceMemory::CopyBytes(std::shared_ptr<Device> device, const void* host, int64_t bytes) {
  if (bytes == 0) return DeviceMemory();
  const cudaStream_t stream = device->stream();
  absl::StatusOr<DeviceMemory> memory = Create(std::move(device), bytes);
  if (!memory.ok()) return memory;
  const cudaError_t error =
      cudaMemcpyAsync(memory->data_, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream);
  if (error != cudaSuccess) return CudaStatus(error, "copy to the device");
  if (absl::Status status = memory->device_->Synchronize(); !status.ok()) return status;
  return memory;
}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  return *this;
}

DeviceMemory::~DeviceMemory() {
  if (data_ == nullptr) return;
  if (!device_->Use().ok()) return;  // the thread that drops the last reference may never have used the device
  cudaDeviceSynchronize();
  device_->Release(data_);
}

absl::StatusOr<void*> Scratch::Get(int64_t bytes) {
  if (data_ != nullptr && bytes <= bytes_) return data_;
  device_.Release(data_);
  data_ = nullptr;
  bytes_ = 0;
  absl::StatusOr<void*> data = device_.Allocate(bytes);
  if (!data.ok()) return data;
  data_ = *data;
  bytes_ = bytes;
  return data;
}

}  // namespace edgewise::cuda
