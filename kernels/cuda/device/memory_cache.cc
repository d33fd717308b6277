#include "kernels/cuda/device/memory_cache.h"

#include <algorithm>
#include <iterator>

#ifdef EDGEWISE_CUDA_EMULATED
#include "tests/cuda/emulator/emulator.h"
#endif

namespace edgewise::cuda {
namespace {

constexpr size_t kAlignment = 256;
#ifdef EDGEWISE_CUDA_EMULATED
constexpr size_t kMargin = 64;  // where the emulator finds writes behind a block
#else
constexpr size_t kMargin = 0;
#endif

size_t RoundUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

MemoryCache::~MemoryCache() {
  for (const auto& [address, block] : blocks_) {
    if (block.first) cudaFree(address);
  }
}

cudaError_t MemoryCache::Take(int64_t bytes, void** memory) {
  *memory = nullptr;
  const auto wanted = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  const size_t rounded = RoundUp(wanted + kMargin);
  const std::lock_guard<std::mutex> lock(mutex_);
  Blocks::iterator block = FindFree(rounded);
  if (block == blocks_.end()) {
    void* made = nullptr;
    ++use_.driver_calls;
    const cudaError_t error = cudaMalloc(&made, rounded);
    if (error != cudaSuccess) return error;
    use_.held += static_cast<int64_t>(rounded);
    block = blocks_.emplace(static_cast<char*>(made), Block{rounded, true, false}).first;
  } else {
    by_size_.erase({block->second.bytes, block->first});
    block->second.free = false;
    Cut(block, rounded);
  }
  use_.taken += static_cast<int64_t>(block->second.bytes);
  use_.most_taken = std::max(use_.most_taken, use_.taken);
  *memory = block->first;
#ifdef EDGEWISE_CUDA_EMULATED
  emulator::MarkTaken(*memory, wanted, block->second.bytes);
#endif
  return cudaSuccess;
}

void MemoryCache::Give(void* memory) {
  if (memory == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  Blocks::iterator block = blocks_.find(static_cast<char*>(memory));
  use_.taken -= static_cast<int64_t>(block->second.bytes);
#ifdef EDGEWISE_CUDA_EMULATED
  emulator::MarkFree(memory, block->second.bytes);
#endif
  const Blocks::iterator next = std::next(block);
  if (next != blocks_.end() && next->second.free && !next->second.first) {
    by_size_.erase({next->second.bytes, next->first});
    block->second.bytes += next->second.bytes;
    blocks_.erase(next);
  }
  if (!block->second.first && std::prev(block)->second.free) {
    const Blocks::iterator before = std::prev(block);
    by_size_.erase({before->second.bytes, before->first});
    before->second.bytes += block->second.bytes;
    blocks_.erase(block);
    block = before;
  }
  InsertFree(block);
}

void MemoryCache::Trim(int64_t keep) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Blocks::iterator block = blocks_.begin(); block != blocks_.end();) {
    const Blocks::iterator next = std::next(block);
    const bool whole = block->second.free && block->second.first && (next == blocks_.end() || next->second.first);
    if (whole && keep > 0 && static_cast<int64_t>(block->second.bytes) >= keep) {
      keep = 0;
    } else if (whole) {
      cudaFree(block->first);
      use_.held -= static_cast<int64_t>(block->second.bytes);
      by_size_.erase({block->second.bytes, block->first});
      blocks_.erase(block);
    }
    block = next;
  }
}

MemoryCache::Use MemoryCache::use() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return use_;
}

void MemoryCache::ResetMost() {
  const std::lock_guard<std::mutex> lock(mutex_);
  use_.most_taken = use_.taken;
}

// The smallest that has room.
MemoryCache::Blocks::iterator MemoryCache::FindFree(size_t bytes) {
  const auto found = by_size_.lower_bound({bytes, nullptr});
  return found == by_size_.end() ? blocks_.end() : blocks_.find(found->second);
}

// What `block` has beyond `bytes` becomes a free block.
void MemoryCache::Cut(Blocks::iterator block, size_t bytes) {
  const size_t rest = block->second.bytes - bytes;
  if (rest == 0) return;
  block->second.bytes = bytes;
  InsertFree(blocks_.emplace(block->first + bytes, Block{rest, false, false}).first);
}

void MemoryCache::InsertFree(Blocks::iterator block) {
  block->second.free = true;
  by_size_.emplace(block->second.bytes, block->first);
}

}  // namespace edgewise::cuda
