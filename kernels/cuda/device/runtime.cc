#include "kernels/cuda/device/runtime.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace edgewise::cuda {
namespace {

// Older headers do not name these.
constexpr auto kContained = static_cast<cudaError_t>(226), kTensorMemoryLeak = static_cast<cudaError_t>(721);

}  // namespace

// Those of which CUDA says that the process must be ended, and memory that cannot be trusted. An error that is not
// known here fails one request: if the device is lost, the next call says so by one that is.
bool IsSticky(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
      return true;
    default:
      return error == kContained || error == kTensorMemoryLeak;
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
    cudaGetLastError();  // as CudaStatus
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

  int pools = 0;
  error = cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, ordinal);
  if (error != cudaSuccess) return unusable(error, "device attributes");
  if (pools == 0) {
    return absl::UnavailableError(absl::StrCat("CUDA device ", ordinal, " (", device->name_,
                                               ") has no memory pools (cudaDevAttrMemoryPoolsSupported is 0)"));
  }
  error = cudaDeviceGetDefaultMemPool(&device->pool_, ordinal);
  if (error != cudaSuccess) return unusable(error, "memory pool");
  uint64_t kept = std::numeric_limits<uint64_t>::max();
  error = cudaMemPoolSetAttribute(device->pool_, cudaMemPoolAttrReleaseThreshold, &kept);
  if (error != cudaSuccess) return unusable(error, "release threshold of the memory pool");

  error = cudaStreamCreateWithFlags(&device->stream_, cudaStreamNonBlocking);
  if (error != cudaSuccess) return unusable(error, "stream");
  absl::StatusOr<std::unique_ptr<Staging>> staging = Staging::Create(*device);
  if (!staging.ok()) return staging.status();
  device->staging_ = *std::move(staging);
  return device;
}

Device::~Device() {
  if (stream_ == nullptr) return;
  Use().IgnoreError();  // for the thread that drops the last reference
  staging_.reset();
  Synchronize().IgnoreError();
  cudaStreamDestroy(stream_);
  cudaMemPoolTrimTo(pool_, 0);
}

absl::Status Device::Use() const { return CudaStatus(cudaSetDevice(ordinal_), absl::StrCat("device ", ordinal_)); }

absl::Status Device::Synchronize() const { return CudaStatus(cudaStreamSynchronize(stream_), "synchronize"); }

absl::StatusOr<void*> Device::Allocate(int64_t bytes) {
  const auto wanted = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  void* memory = nullptr;
  cudaError_t error = cudaMallocAsync(&memory, wanted, stream_);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // an error that is not sticky is told once
    if (absl::Status status = Synchronize(); !status.ok()) return status;
    cudaMemPoolTrimTo(pool_, 0);
    error = cudaMallocAsync(&memory, wanted, stream_);
  }
  if (error == cudaSuccess) return memory;
  size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  return CudaStatus(
      error, absl::StrCat(bytes, " bytes asked for on CUDA device ", ordinal_, "; ", free, " of ", total, " are free"));
}

void Device::Free(void* memory) const {
  if (memory != nullptr && Use().ok()) cudaFreeAsync(memory, stream_);
}

}  // namespace edgewise::cuda
