#include "kernels/cuda/blocks.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"

namespace edgewise::cuda {
namespace {

constexpr uint64_t kLeastPinnedBytes = 64 << 10;

}  // namespace

absl::StatusOr<DeviceBlock> DeviceBlock::Create(Device& device, int64_t bytes) {
  absl::StatusOr<void*> data = device.Allocate(bytes);
  if (!data.ok()) return data.status();
  DeviceBlock block;
  block.device_ = &device;
  block.data_ = *data;
  return block;
}

PinnedPool::~PinnedPool() {
  for (const Free& block : free_) cudaFreeHost(block.data);
}

absl::StatusOr<PinnedPool::Block> PinnedPool::Take(int64_t bytes) {
  Block block;
  block.pool_ = this;
  const auto fits = [&](const Free& free) { return free.bytes >= bytes; };
  const auto found = std::find_if(free_.begin(), free_.end(), fits);
  if (found != free_.end()) {
    block.data_ = found->data;
    block.bytes_ = found->bytes;
    free_.erase(found);
    return block;
  }
  block.bytes_ = static_cast<int64_t>(std::bit_ceil(std::max(static_cast<uint64_t>(bytes), kLeastPinnedBytes)));
  const cudaError_t error = cudaMallocHost(&block.data_, static_cast<size_t>(block.bytes_));
  if (error != cudaSuccess) return CudaStatus(error, absl::StrCat(block.bytes_, " bytes of pinned host memory"));
  return block;
}

absl::Status CopyAsync(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind, Device& device) {
  if (bytes == 0) return absl::OkStatus();
  return CudaStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, device.stream()), "copy");
}

}  // namespace edgewise::cuda
