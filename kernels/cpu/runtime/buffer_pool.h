// Buffers on the CPU, whose memory is used again.
#ifndef EDGEWISE_KERNELS_CPU_RUNTIME_BUFFER_POOL_H_
#define EDGEWISE_KERNELS_CPU_RUNTIME_BUFFER_POOL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/tensor.h"

namespace edgewise {

// Holds no more than the recent peak of use, or kLeastBytes: the buffer that was used longest ago goes back to the
// system first. So passes like the last find their memory, and passes of many shapes do not leave a buffer each. Any
// thread. Must outlive its buffers.
class BufferPool {
 public:
  static constexpr size_t kLeastBytes = size_t{32} << 20;

  BufferPool() = default;
  ~BufferPool();

  // RESOURCE_EXHAUSTED: no memory.
  absl::StatusOr<Buffer> Allocate(int64_t floats);
  // Keeps at most this many freed floats, or as many as an earlier call said if that is more. None at first.
  void Keep(int64_t floats);
  // Begins another period: the recent peak is over this one and the one before.
  void Age();

 private:
  struct Kept {
    float* data;
    uint64_t freed;  // the number of its release
  };

  // Sizes are rounded up to a power of two or a quarter, a half or three quarters more. Memory is used again for its
  // own size, so calls like earlier ones find what those left.
  static constexpr int kSizes = 160;
  static size_t Bytes(int size) { return (size_t{4} + size % 4) << (size / 4 + 6); }
  static float* Take(int size);
  static void Return(float* data, int size);
  void Free(float* data, int size);
  // Returns kept memory, the oldest first, until as much is left as may be.
  void Shrink() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::array<std::vector<Kept>, kSizes> kept_ ABSL_GUARDED_BY(mutex_);  // the oldest first
  size_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t most_kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t most_used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;   // in this period,
  size_t most_used_before_ ABSL_GUARDED_BY(mutex_) = 0;  // and in the one before
  uint64_t releases_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CPU_RUNTIME_BUFFER_POOL_H_
