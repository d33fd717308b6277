// Device memory and pinned memory in memory of the host. Reports and ends the process where memory is freed that was
// not allocated, a copy leaves its allocation or names the wrong kind of memory, or something was written just behind
// an allocation of device memory.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include "tests/cuda/emulator/runtime_state.h"
#include "tests/cuda/emulator/scheduler.h"

namespace emulator {
namespace {

constexpr size_t kAlignment = 256;
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kGuardBytes = 0;  // its own check is better
#else
constexpr size_t kGuardBytes = 64;  // behind every allocation of device memory
#endif

constexpr size_t kBlockGuardBytes = 64;  // behind every block of an allocation
// Larger ones are not filled when they are new: they are cut, and most of their pages are never touched.
constexpr size_t kMaxFilled = size_t{256} << 20;

// The allocation that holds `pointer`; end() where there is none.
std::map<const char*, size_t>::iterator Find(std::map<const char*, size_t>& allocations, const void* pointer) {
  const char* p = static_cast<const char*>(pointer);
  auto i = allocations.upper_bound(p);
  if (i == allocations.begin()) return allocations.end();
  --i;
  return p < i->first + i->second ? i : allocations.end();
}

#if defined(__SANITIZE_ADDRESS__)
void SetTouchable(const void* memory, size_t bytes, bool touchable) {
  if (touchable) {
    __asan_unpoison_memory_region(memory, bytes);
  } else {
    __asan_poison_memory_region(memory, bytes);
  }
}
#else
void SetTouchable(const void*, size_t, bool) {}
#endif

enum class Memory { kDevice, kHost, kAny };

void CheckRange(Device& d, const char* what, const void* pointer, size_t bytes, Memory memory) {
  if (bytes == 0) return;
  const auto i = Find(d.allocations, pointer);
  if (i == d.allocations.end()) {
    if (memory == Memory::kDevice) FailCall("%s: %p is not device memory", what, pointer);
    return;
  }
  if (memory == Memory::kHost) FailCall("%s: %p is device memory", what, pointer);
  const auto within = [&](const auto& range) {
    const size_t offset = static_cast<const char*>(pointer) - range->first;
    if (bytes <= range->second - offset) return;
    FailCall("%s: %zu bytes at byte %zu of an allocation of %zu bytes", what, bytes, offset, range->second);
  };
  within(i);
  if (const auto block = Find(d.blocks, pointer); block != d.blocks.end()) within(block);
}

cudaError_t Copy(Device& d, void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                 cudaMemcpyKind kind) {
  if (width == 0 || height == 0) return cudaSuccess;
  if (height > 1 && (width > to_pitch || width > from_pitch)) return cudaErrorInvalidValue;
  const bool any = kind == cudaMemcpyDefault;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  const auto memory = [&](bool device) { return any ? Memory::kAny : device ? Memory::kDevice : Memory::kHost; };
  CheckRange(d, "copy to", to, (height - 1) * to_pitch + width, memory(to_device));
  CheckRange(d, "copy from", from, (height - 1) * from_pitch + width, memory(from_device));
  const Unguarded unguarded(d);
  for (size_t row = 0; row < height; ++row) {
    std::memmove(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  }
  return cudaSuccess;
}

// Of the pages that hold an allocation.
size_t MappedBytes(size_t bytes) {
  const size_t page = sysconf(_SC_PAGESIZE);
  return (bytes + kGuardBytes + page - 1) / page * page;
}

void Protect(Device& d, int rights) {
  if (!d.guarded) return;
  for (const auto& [address, bytes] : d.allocations) {
    mprotect(const_cast<char*>(address), MappedBytes(bytes), rights);
  }
}

cudaError_t Allocate(Device& d, void** pointer, size_t bytes) {
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (d.used > d.memory || bytes > d.memory - d.used) return cudaErrorMemoryAllocation;
  if (d.guarded) {
    void* mapped = mmap(nullptr, MappedBytes(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return cudaErrorMemoryAllocation;
    *pointer = mapped;
  } else if (posix_memalign(pointer, kAlignment, bytes + kGuardBytes) != 0) {
    return cudaErrorMemoryAllocation;
  }
  if (bytes <= kMaxFilled) std::memset(*pointer, kPoison, bytes);
  std::memset(static_cast<char*>(*pointer) + bytes, kGuard, kGuardBytes);
  d.allocations[static_cast<char*>(*pointer)] = bytes;
  d.used += bytes;
  ++d.taken.device_memory;
  if (d.guarded && d.unguarded == 0) mprotect(*pointer, MappedBytes(bytes), PROT_NONE);
  return cudaSuccess;
}

cudaError_t Free(Device& d, void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  const auto i = d.allocations.find(static_cast<char*>(pointer));
  if (i == d.allocations.end()) FailCall("free of %p, which was not allocated", pointer);
  const size_t bytes = i->second;
  SetTouchable(pointer, bytes, true);
  d.blocks.erase(d.blocks.lower_bound(i->first), d.blocks.lower_bound(i->first + bytes));
  if (d.guarded) mprotect(pointer, MappedBytes(bytes), PROT_READ);
  for (size_t b = bytes; b < bytes + kGuardBytes; ++b) {
    if (static_cast<unsigned char*>(pointer)[b] != kGuard) {
      FailCall("byte %zu of an allocation of %zu bytes was written", b, bytes);
    }
  }
  d.used -= bytes;
  d.allocations.erase(i);
  if (d.guarded) {
    munmap(pointer, MappedBytes(bytes));
  } else {
    std::free(pointer);
  }
  return cudaSuccess;
}

}  // namespace

void MarkTaken(void* block, size_t bytes, size_t whole) {
  Device& d = TheDevice();
  const std::lock_guard lock(d.mutex);
  const Unguarded unguarded(d);
  char* begin = static_cast<char*>(block);
  SetTouchable(begin, whole, true);
  if (bytes <= kMaxFilled) std::memset(begin, kPoison, bytes);
  std::memset(begin + bytes, kGuard, kBlockGuardBytes);
  SetTouchable(begin + bytes, whole - bytes, false);
  d.blocks[begin] = bytes;
}

void MarkFree(void* block, size_t whole) {
  Device& d = TheDevice();
  const std::lock_guard lock(d.mutex);
  const Unguarded unguarded(d);
  const auto i = d.blocks.find(static_cast<char*>(block));
  if (i == d.blocks.end()) FailCall("no block at %p", block);
  SetTouchable(block, whole, true);
  for (size_t b = i->second; b < i->second + kBlockGuardBytes; ++b) {
    if (static_cast<unsigned char*>(block)[b] != kGuard) {
      FailCall("byte %zu of a block of %zu bytes was written", b, i->second);
    }
  }
  SetTouchable(block, whole, false);
  d.blocks.erase(i);
}

Unguarded::Unguarded(Device& d) : device_(d) {
  if (d.unguarded++ == 0) Protect(d, PROT_READ | PROT_WRITE);
}
Unguarded::~Unguarded() {
  if (--device_.unguarded == 0) Protect(device_, PROT_NONE);
}

void SetMemoryLimit(size_t bytes) {
  const std::lock_guard lock(TheDevice().mutex);
  TheDevice().memory = bytes;
}

Taken TakenSoFar() {
  const std::lock_guard lock(TheDevice().mutex);
  return TheDevice().taken;
}

size_t LiveAllocations() {
  const std::lock_guard lock(TheDevice().mutex);
  return TheDevice().allocations.size();
}

size_t LiveBytes() {
  const std::lock_guard lock(TheDevice().mutex);
  return TheDevice().used;
}

}  // namespace emulator

using emulator::Call;
using emulator::Device;

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return Call([&](Device& d) {
    *total = d.memory;
    *free = d.memory - (d.used < d.memory ? d.used : d.memory);
    return cudaSuccess;
  });
}

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  return Call([&](Device& d) {
    emulator::CheckStream(d, stream);
    return emulator::Allocate(d, pointer, bytes);
  });
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  return Call([&](Device& d) {
    emulator::CheckStream(d, stream);
    return emulator::Free(d, pointer);
  });
}
cudaError_t cudaMalloc(void** pointer, size_t bytes) { return cudaMallocAsync(pointer, bytes, nullptr); }
cudaError_t cudaFree(void* pointer) {
  return Call([&](Device& d) {
    if (pointer != nullptr) emulator::AwaitGrid(d, "cudaFree");
    return emulator::Free(d, pointer);
  });
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  return Call([&](Device& d) {
    *pointer = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (posix_memalign(pointer, emulator::kAlignment, bytes) != 0) return cudaErrorMemoryAllocation;
    std::memset(*pointer, emulator::kPoison, bytes);
    d.host_allocations[static_cast<char*>(*pointer)] = bytes;
    ++d.taken.pinned_memory;
    return cudaSuccess;
  });
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault); }
cudaError_t cudaFreeHost(void* pointer) {
  return Call([&](Device& d) {
    if (pointer == nullptr) return cudaSuccess;
    if (d.host_allocations.erase(static_cast<char*>(pointer)) == 0) {
      emulator::FailCall("free of %p, which was not allocated", pointer);
    }
    std::free(pointer);
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  return Call([&](Device& d) {
    emulator::CheckStream(d, stream);
    return emulator::Copy(d, to, to_pitch, from, from_pitch, width, height, kind);
  });
}
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind) {
  return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, nullptr);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return Call([&](Device& d) {
    emulator::CheckStream(d, stream);
    emulator::CheckRange(d, "fill", to, bytes, emulator::Memory::kDevice);
    const emulator::Unguarded unguarded(d);
    std::memset(to, value, bytes);
    return cudaSuccess;
  });
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) { return cudaMemsetAsync(to, value, bytes, nullptr); }
