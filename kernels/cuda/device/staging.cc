#include "kernels/cuda/device/staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/device/runtime.h"

namespace edgewise::cuda {
namespace {

constexpr size_t kSlotBytes = size_t{4} << 20;
constexpr size_t kBlockBytes = size_t{4} << 20;
constexpr size_t kAlignment = 16;

}  // namespace

absl::StatusOr<std::unique_ptr<Staging>> Staging::Create(Device& device) {
  std::unique_ptr<Staging> staging(new Staging(device));
  if (absl::Status status = staging->Start(); !status.ok()) return status;
  return staging;
}

absl::Status Staging::Start() {
  void* ring = nullptr;
  const cudaError_t error = cudaMallocHost(&ring, kSlots * kSlotBytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // an error that is not sticky is told once
    return absl::ResourceExhaustedError(
        absl::StrCat("out of pinned host memory: ", kSlots * kSlotBytes, " bytes asked for"));
  }
  if (error != cudaSuccess) return CudaStatus(error, "pinned host memory");
  ring_ = static_cast<unsigned char*>(ring);
  for (cudaEvent_t& done : done_) {
    absl::Status status = CudaStatus(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), "event");
    if (!status.ok()) return status;
  }
  return AddBlock(kBlockBytes);
}

Staging::~Staging() {
  device_.Synchronize().IgnoreError();
  FreeBlocks(0);
  for (cudaEvent_t done : done_) {
    if (done != nullptr) cudaEventDestroy(done);
  }
  if (ring_ != nullptr) cudaFreeHost(ring_);
}

const void* Staging::AddBytes(const void* host, size_t bytes) {
  if (committed_) {
    FreeBlocks(1);
    free_ = blocks_.front();
    free_bytes_ = kBlockBytes;
    committed_ = false;
  }
  if (bytes == 0 || !error_.ok()) return nullptr;
  const size_t padding = (kAlignment - bytes % kAlignment) % kAlignment;
  if (bytes + padding > free_bytes_) error_ = AddBlock(std::max(bytes + padding, kBlockBytes));
  if (!error_.ok()) return nullptr;
  unsigned char* place = free_;
  free_ += bytes + padding;
  free_bytes_ -= bytes + padding;
  error_ = Put(host, bytes, place);
  constexpr unsigned char kZeros[kAlignment] = {};
  if (error_.ok()) error_ = Put(kZeros, padding, place + bytes);  // one copy takes this array and the next
  return error_.ok() ? place : nullptr;
}

absl::Status Staging::Commit() {
  committed_ = true;
  absl::Status status = std::exchange(error_, absl::OkStatus());
  if (status.ok()) return Flush();
  flushed_ = used_;
  return status;
}

absl::Status Staging::Upload(const void* host, int64_t bytes, void* device) {
  absl::Status status = Put(host, static_cast<size_t>(bytes), static_cast<unsigned char*>(device));
  return status.ok() ? Flush() : status;
}

// What a slot holds may still be on its way to the device: the stream's order keeps these copies behind.
absl::Status Staging::Download(std::span<const ToHost> copies) {
  std::vector<std::pair<void*, size_t>> landed;  // in the ring, one behind the other
  size_t used = 0;
  const auto land = [&](absl::Status status) {
    status.Update(device_.Synchronize());
    const unsigned char* from = ring_;
    for (const auto& [host, bytes] : landed) {
      if (status.ok()) std::memcpy(host, from, bytes);
      from += bytes;
    }
    landed.clear();
    used = 0;
    return status;
  };
  absl::Status status = Flush();
  for (const ToHost& copy : copies) {
    size_t bytes = 0;
    for (size_t at = 0; status.ok() && at < static_cast<size_t>(copy.bytes); at += bytes) {
      if (used == kSlots * kSlotBytes) status = land(status);
      if (!status.ok()) break;
      bytes = std::min(static_cast<size_t>(copy.bytes) - at, kSlots * kSlotBytes - used);
      status = CudaStatus(cudaMemcpyAsync(ring_ + used, static_cast<const unsigned char*>(copy.device) + at, bytes,
                                          cudaMemcpyDeviceToHost, device_.stream()),
                          "copy to the host");
      landed.emplace_back(static_cast<unsigned char*>(copy.host) + at, bytes);
      used += bytes;
    }
  }
  status = land(status);
  if (status.ok()) slot_ = used_ = flushed_ = 0;  // all slots are free
  return status;
}

absl::Status Staging::AddBlock(size_t bytes) {
  const absl::StatusOr<void*> block = device_.Allocate(static_cast<int64_t>(bytes));
  if (!block.ok()) return block.status();
  blocks_.push_back(static_cast<unsigned char*>(*block));
  free_ = blocks_.back();
  free_bytes_ = bytes;
  return absl::OkStatus();
}

void Staging::FreeBlocks(size_t kept) {
  for (; blocks_.size() > kept; blocks_.pop_back()) device_.Free(blocks_.back());
}

absl::Status Staging::Put(const void* host, size_t bytes, unsigned char* device) {
  const auto* from = static_cast<const unsigned char*>(host);
  while (bytes > 0) {
    absl::Status status = used_ == kSlotBytes ? NextSlot() : absl::OkStatus();
    if (status.ok() && to_ + (used_ - flushed_) != device) {
      status = Flush();
      to_ = device;
    }
    if (!status.ok()) return status;
    const size_t here = std::min(bytes, kSlotBytes - used_);
    std::memcpy(slot() + used_, from, here);
    used_ += here;
    from += here;
    device += here;
    bytes -= here;
  }
  return absl::OkStatus();
}

absl::Status Staging::NextSlot() {
  absl::Status status = Flush();
  if (status.ok()) status = CudaStatus(cudaEventRecord(done_[slot_], device_.stream()), "event record");
  if (!status.ok()) return status;
  slot_ = (slot_ + 1) % kSlots;
  used_ = flushed_ = 0;
  return CudaStatus(cudaEventSynchronize(done_[slot_]), "wait for a slot");
}

absl::Status Staging::Flush() {
  const size_t first = std::exchange(flushed_, used_), bytes = used_ - first;
  if (bytes == 0) return absl::OkStatus();
  return CudaStatus(
      cudaMemcpyAsync(std::exchange(to_, to_ + bytes), slot() + first, bytes, cudaMemcpyHostToDevice, device_.stream()),
      "copy to the device");
}

unsigned char* Staging::slot() const { return ring_ + slot_ * kSlotBytes; }

}  // namespace edgewise::cuda
