// Device memory and pinned memory in memory of the host. Ends the process, with a report, where memory is freed that
// was not allocated, or on another stream than it was allocated on; a copy leaves its allocation or names the wrong
// kind of memory; something was written just behind an allocation of device memory; or the host writes to pinned memory
// that a copy to the device still reads.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

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

// Larger allocations are not filled: most of their pages are never touched.
constexpr size_t kMaxFilled = size_t{256} << 20;
// Of the pool: what an allocation is rounded up to, and what the pool takes from the driver at a time.
constexpr size_t kPoolRounding = 512, kPoolGrain = size_t{2} << 20;

size_t RoundUp(size_t bytes, size_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

// The allocation that holds `pointer`; end() where there is none.
template <typename Allocations>
auto Find(Allocations& allocations, const void* pointer) {
  const char* p = static_cast<const char*>(pointer);
  auto i = allocations.upper_bound(p);
  if (i == allocations.begin()) return allocations.end();
  --i;
  return p < i->first + i->second.bytes ? i : allocations.end();
}

enum class Memory { kDevice, kHost, kAny };

void CheckRange(Device& d, const char* what, const void* pointer, size_t bytes, Memory memory) {
  if (bytes == 0) return;
  const auto i = Find(d.allocations, pointer);
  if (i == d.allocations.end()) {
    if (memory == Memory::kDevice) FailCall("%s: %p is not device memory", what, pointer);
    return;
  }
  if (memory == Memory::kHost) FailCall("%s: %p is device memory", what, pointer);
  const size_t offset = static_cast<const char*>(pointer) - i->first, whole = i->second.bytes;
  if (bytes <= whole - offset) return;
  FailCall("%s: %zu bytes at byte %zu of an allocation of %zu bytes", what, bytes, offset, whole);
}

// A copy between the device and pinned memory is in flight until the host waits for it. One to the device must find its
// source as it was; one to the host brings its bytes only then. In a stream, a copy lands before the next one that
// touches the same pinned memory.
bool IsPinned(Device& d, const void* pointer) { return Find(d.host_allocations, pointer) != d.host_allocations.end(); }

void Land(const Flight& flight) {
  if (flight.to_host) {
    std::memcpy(flight.host, flight.bytes.data(), flight.bytes.size());
  } else if (std::memcmp(flight.host, flight.bytes.data(), flight.bytes.size()) != 0) {
    FailCall("pinned memory at %p was written before the copy of it was done", static_cast<void*>(flight.host));
  }
}

template <typename Lands>
void LandIf(Device& d, const Lands& lands) {
  std::erase_if(d.flights, [&](const Flight& flight) {
    const bool now = lands(flight);
    if (now) Land(flight);
    return now;
  });
}

void LandOverlapping(Device& d, const void* host, size_t bytes, cudaStream_t stream) {
  const char* begin = static_cast<const char*>(host);
  LandIf(d, [&](const Flight& flight) {
    return flight.stream == stream && flight.host < begin + bytes && begin < flight.host + flight.bytes.size();
  });
}

void TakeOff(Device& d, const void* host, size_t bytes, bool to_host, cudaStream_t stream) {
  char* begin = const_cast<char*>(static_cast<const char*>(host));
  d.flights.push_back({stream, ++d.enqueued, begin, std::vector<char>(begin, begin + bytes), to_host});
  if (to_host) std::memset(begin, kPoison, bytes);
}

cudaError_t Copy(Device& d, void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                 cudaMemcpyKind kind, cudaStream_t stream) {
  if (width == 0 || height == 0) return cudaSuccess;
  ++d.copies;
  if (height > 1 && (width > to_pitch || width > from_pitch)) return cudaErrorInvalidValue;
  const bool any = kind == cudaMemcpyDefault;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  const auto memory = [&](bool device) { return any ? Memory::kAny : device ? Memory::kDevice : Memory::kHost; };
  const size_t to_bytes = (height - 1) * to_pitch + width, from_bytes = (height - 1) * from_pitch + width;
  CheckRange(d, "copy to", to, to_bytes, memory(to_device));
  CheckRange(d, "copy from", from, from_bytes, memory(from_device));
  const Unguarded unguarded(d);
  const bool pinned_to = IsPinned(d, to), pinned_from = IsPinned(d, from);
  if (pinned_to) LandOverlapping(d, to, to_bytes, stream);
  if (pinned_from) LandOverlapping(d, from, from_bytes, stream);
  for (size_t row = 0; row < height; ++row) {
    std::memmove(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  }
  if (pinned_to) TakeOff(d, to, to_bytes, true, stream);
  if (pinned_from) TakeOff(d, from, from_bytes, false, stream);
  return cudaSuccess;
}

// Of the pages that hold an allocation.
size_t MappedBytes(size_t bytes) {
  const size_t page = sysconf(_SC_PAGESIZE);
  return (bytes + kGuardBytes + page - 1) / page * page;
}

void Protect(Device& d, int rights) {
  if (!d.guarded) return;
  for (const auto& [address, allocation] : d.allocations) {
    mprotect(const_cast<char*>(address), MappedBytes(allocation.bytes), rights);
  }
}

cudaError_t TakeFromDriver(Device& d, size_t bytes) {
  if (d.used > d.memory || bytes > d.memory - d.used) return cudaErrorMemoryAllocation;
  d.used += bytes;
  ++d.taken.device_memory;
  return cudaSuccess;
}

// The pool never breaks up: what is free in it serves any allocation that is not larger.
cudaError_t TakeFromPool(Device& d, size_t bytes) {
  Pool& pool = d.pool;
  if (pool.used + bytes > pool.reserved) {
    const size_t more = RoundUp(pool.used + bytes - pool.reserved, kPoolGrain);
    if (const cudaError_t error = TakeFromDriver(d, more); error != cudaSuccess) return error;
    pool.reserved += more;
  }
  pool.used += bytes;
  return cudaSuccess;
}

void TrimPool(Device& d, size_t kept) {
  const size_t reserved = std::min(d.pool.reserved, RoundUp(std::max(d.pool.used, kept), kPoolGrain));
  d.used -= d.pool.reserved - reserved;
  d.pool.reserved = reserved;
}

cudaError_t Allocate(Device& d, void** pointer, size_t bytes, bool pooled, cudaStream_t stream) {
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  const cudaError_t error = pooled ? TakeFromPool(d, RoundUp(bytes, kPoolRounding)) : TakeFromDriver(d, bytes);
  if (error != cudaSuccess) return error;
  ++d.allocated;
  if (d.guarded) {
    void* mapped = mmap(nullptr, MappedBytes(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) FailCall("no host memory for %zu bytes", bytes);
    *pointer = mapped;
  } else if (posix_memalign(pointer, kAlignment, bytes + kGuardBytes) != 0) {
    FailCall("no host memory for %zu bytes", bytes);
  }
  if (bytes <= kMaxFilled) std::memset(*pointer, kPoison, bytes);
  std::memset(static_cast<char*>(*pointer) + bytes, kGuard, kGuardBytes);
  d.allocations[static_cast<char*>(*pointer)] = {bytes, pooled, stream};
  if (d.guarded && d.unguarded == 0) mprotect(*pointer, MappedBytes(bytes), PROT_NONE);
  return cudaSuccess;
}

cudaError_t Free(Device& d, void* pointer, bool pooled, cudaStream_t stream) {
  if (pointer == nullptr) return cudaSuccess;
  const auto i = d.allocations.find(static_cast<char*>(pointer));
  if (i == d.allocations.end()) FailCall("free of %p, which was not allocated", pointer);
  const Allocation allocation = i->second;
  const size_t bytes = allocation.bytes;
  if (pooled != allocation.pooled || stream != allocation.stream) {
    FailCall("free of %p in another way or on another stream than it was allocated", pointer);
  }
  if (d.guarded) mprotect(pointer, MappedBytes(bytes), PROT_READ | PROT_WRITE);
  for (size_t b = bytes; b < bytes + kGuardBytes; ++b) {
    if (static_cast<unsigned char*>(pointer)[b] != kGuard) {
      FailCall("byte %zu of an allocation of %zu bytes was written", b, bytes);
    }
  }
  if (bytes <= kMaxFilled) std::memset(pointer, kPoison, bytes);
  if (pooled) {
    d.pool.used -= RoundUp(bytes, kPoolRounding);
  } else {
    d.used -= bytes;
  }
  d.allocations.erase(i);
  if (d.guarded) {
    munmap(pointer, MappedBytes(bytes));
  } else {
    std::free(pointer);
  }
  return cudaSuccess;
}

}  // namespace

void Wait(Device& d, std::optional<cudaStream_t> stream, uint64_t until) {
  LandIf(d, [&](const Flight& f) { return f.number <= until && (!stream.has_value() || f.stream == *stream); });
  if (d.pool.reserved - d.pool.used > d.pool.threshold) TrimPool(d, d.pool.used + d.pool.threshold);
}

Unguarded::Unguarded(Device& d) : device_(d) {
  if (d.unguarded++ == 0) Protect(d, PROT_READ | PROT_WRITE);
}
Unguarded::~Unguarded() {
  if (--device_.unguarded == 0) Protect(device_, PROT_NONE);
}

void SetPools(bool pools) {
  const std::lock_guard lock(TheDevice().mutex);
  TheDevice().pools = pools;
}

void SetDriver(int version) {
  const std::lock_guard lock(TheDevice().mutex);
  TheDevice().driver = version;
}

void SetCapability(int capability) {
  const std::lock_guard lock(TheDevice().mutex);
  TheDevice().capability = capability;
}

void SetMemoryLimit(size_t bytes) {
  const std::lock_guard lock(TheDevice().mutex);
  TheDevice().memory = bytes;
}

uint64_t allocations() {
  const std::lock_guard lock(TheDevice().mutex);
  return TheDevice().allocated;
}

uint64_t copies() {
  const std::lock_guard lock(TheDevice().mutex);
  return TheDevice().copies;
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

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return Call([&](Device& d) { return emulator::Allocate(d, pointer, bytes, false, nullptr); });
}
cudaError_t cudaFree(void* pointer) {
  return Call([&](Device& d) {
    if (pointer != nullptr) emulator::AwaitGrid(d, "cudaFree");
    return emulator::Free(d, pointer, false, nullptr);
  });
}
cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  return Call([&](Device& d) {
    emulator::CheckStream(d, stream);
    return d.pools ? emulator::Allocate(d, pointer, bytes, true, stream) : cudaErrorNotSupported;
  });
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  return Call([&](Device& d) {
    emulator::CheckStream(d, stream);
    return emulator::Free(d, pointer, true, stream);
  });
}

struct CUmemPoolHandle_st {};

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return Call([&](Device& d) {
    static CUmemPoolHandle_st the_pool;
    *pool = &the_pool;
    return device != 0 ? cudaErrorInvalidDevice : d.pools ? cudaSuccess : cudaErrorNotSupported;
  });
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr attribute, void* value) {
  return Call([&](Device& d) {
    if (attribute != cudaMemPoolAttrReleaseThreshold) return cudaErrorInvalidValue;
    d.pool.threshold = *static_cast<uint64_t*>(value);
    return cudaSuccess;
  });
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr attribute, void* value) {
  return Call([&](Device& d) {
    if (attribute != cudaMemPoolAttrReservedMemCurrent && attribute != cudaMemPoolAttrUsedMemCurrent) {
      return cudaErrorInvalidValue;
    }
    *static_cast<uint64_t*>(value) = attribute == cudaMemPoolAttrReservedMemCurrent ? d.pool.reserved : d.pool.used;
    return cudaSuccess;
  });
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t kept) {
  return Call([&](Device& d) { return emulator::TrimPool(d, kept), cudaSuccess; });
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  return Call([&](Device& d) {
    *pointer = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (posix_memalign(pointer, emulator::kAlignment, bytes) != 0) return cudaErrorMemoryAllocation;
    std::memset(*pointer, emulator::kPoison, bytes);
    d.host_allocations[static_cast<char*>(*pointer)] = {bytes};
    ++d.taken.pinned_memory;
    return cudaSuccess;
  });
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault); }
cudaError_t cudaFreeHost(void* pointer) {
  return Call([&](Device& d) {
    if (pointer == nullptr) return cudaSuccess;
    const auto i = d.host_allocations.find(static_cast<char*>(pointer));
    if (i == d.host_allocations.end()) emulator::FailCall("free of %p, which was not allocated", pointer);
    for (const emulator::Flight& flight : d.flights) {
      if (emulator::Find(d.host_allocations, flight.host) == i) {
        emulator::FailCall("free of pinned memory at %p while a copy is in flight", pointer);
      }
    }
    d.host_allocations.erase(i);
    std::free(pointer);
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  return Call([&](Device& d) {
    emulator::CheckStream(d, stream);
    return emulator::Copy(d, to, to_pitch, from, from_pitch, width, height, kind, stream);
  });
}
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind) {
  const cudaError_t error = cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, nullptr);
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpy2D(to, bytes, from, bytes, bytes, 1, kind);
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
