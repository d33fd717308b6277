// Device memory that was taken from the driver once and is used again.
#ifndef EDGEWISE_KERNELS_CUDA_DEVICE_MEMORY_CACHE_H_
#define EDGEWISE_KERNELS_CUDA_DEVICE_MEMORY_CACHE_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace edgewise::cuda {

// The memory of one stream: what Give() gets may go to the next Take() at once, as work that is enqueued later runs
// later. Nothing goes back to the driver before Trim() or the end. Calls may come from any thread.
//
// Sizes are rounded up to 256 bytes. A block is cut from the smallest free one that has room, and free neighbours are
// joined again.
class MemoryCache {
 public:
  MemoryCache() = default;
  ~MemoryCache();  // everything is idle, and nothing that was taken is used any more
  MemoryCache(const MemoryCache&) = delete;
  MemoryCache& operator=(const MemoryCache&) = delete;

  // 256-byte aligned; at least one byte. cudaErrorMemoryAllocation: the driver has no more.
  cudaError_t Take(int64_t bytes, void** memory);
  // Null is allowed.
  void Give(void* memory);
  // Gives allocations that are free as a whole back to the driver, but for one of at least `keep` bytes, if that is not
  // 0. Everything enqueued on the stream is done.
  void Trim(int64_t keep = 0);

  struct Use {
    int64_t taken = 0;         // bytes in use, as rounded
    int64_t most_taken = 0;    // since the last ResetMost()
    int64_t held = 0;          // bytes that the driver gave and did not get back
    int64_t driver_calls = 0;  // how often it was asked
  };
  Use use() const;
  void ResetMost();

 private:
  struct Block {
    size_t bytes;
    bool first;  // of an allocation of the driver's
    bool free;
  };
  using Blocks = std::map<char*, Block>;

  Blocks::iterator FindFree(size_t bytes);
  void Cut(Blocks::iterator block, size_t bytes);
  void InsertFree(Blocks::iterator block);

  mutable std::mutex mutex_;
  Blocks blocks_;                               // all, by address
  std::set<std::pair<size_t, char*>> by_size_;  // the free ones
  Use use_;
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_DEVICE_MEMORY_CACHE_H_
