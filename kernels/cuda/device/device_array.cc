#include "kernels/cuda/device/device_array.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace edgewise::cuda {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kLeastChunkBytes = 1 << 20;

}  // namespace

absl::StatusOr<DeviceArray> DeviceArray::Create(Device& device, int64_t bytes, MemoryCache& from) {
  absl::StatusOr<void*> data = device.Allocate(bytes, from);
  if (!data.ok()) return data.status();
  DeviceArray block;
  block.from_ = &from;
  block.data_ = *data;
  return block;
}

ResultMemory::~ResultMemory() {
  for (const Chunk& chunk : chunks_) {
    device_.Release(chunk.begin.device);
    cudaFreeHost(chunk.begin.host);
  }
}

absl::StatusOr<ResultMemory::Piece> ResultMemory::Take(int64_t bytes) {
  const int64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  while (chunk_ < chunks_.size() && used_ + rounded > chunks_[chunk_].bytes) {
    ++chunk_;
    used_ = 0;
  }
  if (chunk_ == chunks_.size()) {
    const absl::Status status = AddChunk(std::max(rounded, kLeastChunkBytes));
    if (!status.ok()) return status;
  }
  const Piece& begin = chunks_[chunk_].begin;
  const Piece piece = {begin.host + used_, begin.device + used_};
  used_ += rounded;
  return piece;
}

absl::Status ResultMemory::Prepare(int64_t bytes) { return chunks_.empty() ? AddChunk(bytes) : absl::OkStatus(); }

absl::Status ResultMemory::AddChunk(int64_t bytes) {
  void* host = nullptr;
  const cudaError_t error = cudaMallocHost(&host, static_cast<size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // is told here
    return absl::ResourceExhaustedError(absl::StrCat("out of pinned host memory: ", bytes, " bytes asked for"));
  }
  if (error != cudaSuccess) return CudaStatus(error, "pinned host memory");
  const absl::StatusOr<void*> device = device_.Allocate(bytes);
  if (!device.ok()) {
    cudaFreeHost(host);
    return device.status();
  }
  chunks_.push_back({{static_cast<unsigned char*>(host), static_cast<unsigned char*>(*device)}, bytes});
  return absl::OkStatus();
}

absl::Status CopyAsync(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind, Device& device) {
  if (bytes == 0) return absl::OkStatus();
  return CudaStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, device.stream()), "copy");
}

}  // namespace edgewise::cuda
