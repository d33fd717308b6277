#include "kernels/cuda/device/runtime.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda_module.h"

namespace edgewise::cuda {
namespace {

// Older headers do not name these.
constexpr auto kContained = static_cast<cudaError_t>(226), kTensorMemoryLeak = static_cast<cudaError_t>(721);

// As people write it: 13.0 is 13000.
std::string Version(int cuda) { return absl::StrCat(cuda / 1000, ".", cuda % 1000 / 10); }

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
    int driver = 0, runtime = 0;
    if (error != cudaErrorInsufficientDriver || cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0 ||
        cudaRuntimeGetVersion(&runtime) != cudaSuccess) {
      return absl::UnavailableError(absl::StrCat("no usable CUDA device: ", cudaGetErrorString(error)));
    }
    return absl::UnavailableError(absl::StrCat("the NVIDIA driver is of CUDA ", Version(driver),
                                               ", this build of CUDA ", Version(runtime), "; install driver ",
                                               kLeastDriver, " or newer"));
  }
  if (ordinal < 0 || ordinal >= count) {
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return absl::UnavailableError(
        absl::StrCat("CUDA device ", ordinal, " is not there; this process sees ", count, ", numbered from 0",
                     visible != nullptr ? absl::StrCat(", with CUDA_VISIBLE_DEVICES=\"", visible, "\"") : ""));
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

  error = cudaDeviceGetAttribute(&device->multiprocessors_, cudaDevAttrMultiProcessorCount, ordinal);
  if (error != cudaSuccess) return unusable(error, "device attributes");
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

int64_t Device::Count(int64_t bytes) {
  if (!for_weights_) return 0;
  weights_ += bytes;
  return bytes;
}

std::optional<DeviceMemory> Device::Memory() const {
  size_t free = 0, total = 0;
  uint64_t taken = 0, used = 0;
  absl::Status status = Use();
  if (status.ok()) status = CudaStatus(cudaMemGetInfo(&free, &total), "memory");
  for (const auto& [attribute, value] :
       {std::pair(cudaMemPoolAttrReservedMemCurrent, &taken), std::pair(cudaMemPoolAttrUsedMemCurrent, &used)}) {
    if (status.ok()) status = CudaStatus(cudaMemPoolGetAttribute(pool_, attribute, value), "memory pool");
  }
  if (!status.ok()) return std::nullopt;
  used = std::min(used, taken);  // it may have grown since
  return DeviceMemory{static_cast<uint64_t>(weights_.load()), used, taken - used, free, total};
}

void Device::Free(void* memory) const {
  if (memory != nullptr && Use().ok()) cudaFreeAsync(memory, stream_);
}

}  // namespace edgewise::cuda
