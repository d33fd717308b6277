// Staging (runtime.h): chunks of pinned memory, each with as much device memory, that are filled one behind the other.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/device/runtime.h"

namespace edgewise::cuda {
namespace {

constexpr size_t kChunkBytes = size_t{4} << 20;
constexpr size_t kAlignment = 16;
// As many chunks with room may be waiting before one of them is waited for.
constexpr size_t kMaxWaiting = 5;
constexpr size_t kPrepared = kMaxWaiting + 1;

size_t RoundUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

const void* Staging::AddBytes(const void* host, size_t bytes) {
  if (bytes == 0 || !error_.ok()) return nullptr;
  if (committed_) {
    error_ = Retire();
    committed_ = false;
    if (!error_.ok()) return nullptr;
  }
  error_ = Reserve(RoundUp(bytes));
  if (!error_.ok()) return nullptr;
  Chunk& chunk = *current_;
  std::memcpy(chunk.host + chunk.used, host, bytes);
  const void* place = chunk.device + chunk.used;
  chunk.used += RoundUp(bytes);
  return place;
}

absl::Status Staging::Commit() {
  committed_ = true;
  const auto copy = [&](Chunk& chunk) {
    if (chunk.committed == chunk.used) return absl::OkStatus();
    const size_t first = chunk.committed;
    chunk.committed = chunk.used;
    return CudaStatus(cudaMemcpyAsync(chunk.device + first, chunk.host + first, chunk.used - first,
                                      cudaMemcpyHostToDevice, device_.stream()),
                      "copy of small arrays");
  };
  absl::Status status = std::exchange(error_, absl::OkStatus());
  for (const auto& chunk : full_) {
    if (status.ok()) status = copy(*chunk);
  }
  if (status.ok() && current_ != nullptr) status = copy(*current_);
  return status;
}

absl::Status Staging::Retire() {
  for (const auto& chunk : full_) {
    const cudaError_t error = cudaEventRecord(chunk->done, device_.stream());
    if (error != cudaSuccess) return CudaStatus(error, "event record");
    chunk->waiting = true;
  }
  std::move(full_.begin(), full_.end(), std::back_inserter(retired_));
  full_.clear();
  return absl::OkStatus();
}

absl::Status Staging::Reserve(size_t bytes) {
  if (current_ != nullptr && current_->used + bytes <= current_->bytes) return absl::OkStatus();
  if (current_ != nullptr) {
    const bool read = full_.empty() && current_->used == current_->committed;  // by nothing that is not enqueued yet
    full_.push_back(std::move(current_));
    if (absl::Status status = read ? Retire() : absl::OkStatus(); !status.ok()) return status;
  }

  // The smallest chunk that is free and large enough; where there is none, the one that will be free first.
  size_t best = retired_.size(), first = retired_.size(), waiting = 0;
  for (size_t i = 0; i < retired_.size(); ++i) {
    Chunk& chunk = *retired_[i];
    if (chunk.waiting) {
      const cudaError_t error = cudaEventQuery(chunk.done);
      if (error != cudaSuccess && error != cudaErrorNotReady) return CudaStatus(error, "event query");
      chunk.waiting = error == cudaErrorNotReady;
    }
    if (chunk.bytes < bytes) continue;
    if (chunk.waiting) {
      first = std::min(first, i);
      ++waiting;
    } else if (best == retired_.size() || chunk.bytes < retired_[best]->bytes) {
      best = i;
    }
  }
  if (best == retired_.size() && waiting >= kMaxWaiting) {
    best = first;
    const cudaError_t error = cudaEventSynchronize(retired_[best]->done);
    if (error != cudaSuccess) return CudaStatus(error, "event synchronize");
  }
  if (best < retired_.size()) {
    current_ = std::move(retired_[best]);
    retired_.erase(retired_.begin() + static_cast<std::ptrdiff_t>(best));
    current_->used = current_->committed = 0;
    current_->waiting = false;
    return absl::OkStatus();
  }
  FreeOutgrown(bytes);
  absl::StatusOr<std::unique_ptr<Chunk>> made = MakeChunk(std::max(bytes, kChunkBytes));
  if (!made.ok()) return made.status();
  current_ = *std::move(made);
  return absl::OkStatus();
}

absl::Status Staging::Prepare() {
  for (size_t chunks = retired_.size() + full_.size() + (current_ != nullptr); chunks < kPrepared; ++chunks) {
    absl::StatusOr<std::unique_ptr<Chunk>> made = MakeChunk(kChunkBytes);
    if (!made.ok()) return made.status();
    retired_.push_back(*std::move(made));
  }
  return absl::OkStatus();
}

// One chunk that was made for an array larger than a chunk, but smaller than `bytes`, goes, if it is free.
void Staging::FreeOutgrown(size_t bytes) {
  const auto outgrown = [&](const auto& chunk) {
    return !chunk->waiting && chunk->bytes > kChunkBytes && chunk->bytes < bytes;
  };
  const auto found = std::find_if(retired_.begin(), retired_.end(), outgrown);
  if (found == retired_.end()) return;
  FreeChunk(**found);
  retired_.erase(found);
}

absl::StatusOr<std::unique_ptr<Staging::Chunk>> Staging::MakeChunk(size_t bytes) {
  auto chunk = std::make_unique<Chunk>();
  chunk->bytes = bytes;
  void* host = nullptr;
  cudaError_t error = cudaMallocHost(&host, bytes);
  if (error == cudaErrorMemoryAllocation) {
    return absl::ResourceExhaustedError(absl::StrCat("out of pinned host memory: ", bytes, " bytes asked for"));
  }
  if (error != cudaSuccess) return CudaStatus(error, "pinned host memory");
  chunk->host = static_cast<unsigned char*>(host);
  absl::StatusOr<void*> memory = device_.Allocate(static_cast<int64_t>(bytes));
  absl::Status status = memory.status();
  if (memory.ok()) {
    chunk->device = static_cast<unsigned char*>(*memory);
    status = CudaStatus(cudaEventCreateWithFlags(&chunk->done, cudaEventDisableTiming), "event");
  }
  if (!status.ok()) {
    FreeChunk(*chunk);
    return status;
  }
  return chunk;
}

void Staging::FreeChunk(Chunk& chunk) {
  if (chunk.done != nullptr) cudaEventDestroy(chunk.done);
  device_.Release(chunk.device);
  cudaFreeHost(chunk.host);
}

Staging::~Staging() {
  device_.Synchronize().IgnoreError();
  if (current_ != nullptr) FreeChunk(*current_);
  for (const auto& chunk : full_) FreeChunk(*chunk);
  for (const auto& chunk : retired_) FreeChunk(*chunk);
}

}  // namespace edgewise::cuda
