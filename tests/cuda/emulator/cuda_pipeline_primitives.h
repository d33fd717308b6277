// Stands in for CUDA's cuda_pipeline_primitives.h in emulated builds (see emulator.h). A copy fills its destination
// with 0xFF when it starts, and writes the bytes when the thread waits for it, so that early reads and early writes
// show.
#ifndef EDGEWISE_TESTS_CUDA_EMULATOR_CUDA_PIPELINE_PRIMITIVES_H_
#define EDGEWISE_TESTS_CUDA_EMULATOR_CUDA_PIPELINE_PRIMITIVES_H_

#include <cstddef>
#include <cstring>
#include <deque>
#include <vector>

#include "tests/cuda/emulator/device.h"

namespace emulator {

struct AsyncCopy {
  void* to;
  const void* from;
  size_t bytes, zeros;  // of which the last are zeros
};
struct AsyncCopies {
  std::vector<AsyncCopy> open;                // started since the last commit
  std::deque<std::vector<AsyncCopy>> groups;  // committed and not waited for
};
inline AsyncCopies async_copies[1024];  // of the threads of the block

inline AsyncCopies& OwnCopies() {
  return async_copies[threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)];
}

}  // namespace emulator

inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zeros = 0) {
  std::memset(to, 0xFF, bytes);
  emulator::OwnCopies().open.push_back({to, from, bytes, zeros});
}

inline void __pipeline_commit() {
  emulator::AsyncCopies& own = emulator::OwnCopies();
  own.groups.push_back(std::move(own.open));
  own.open.clear();
}

inline void __pipeline_wait_prior(size_t prior) {
  emulator::AsyncCopies& own = emulator::OwnCopies();
  for (; own.groups.size() > prior; own.groups.pop_front()) {
    for (const emulator::AsyncCopy& copy : own.groups.front()) {
      std::memcpy(copy.to, copy.from, copy.bytes - copy.zeros);
      std::memset(static_cast<char*>(copy.to) + copy.bytes - copy.zeros, 0, copy.zeros);
    }
  }
}

#endif  // EDGEWISE_TESTS_CUDA_EMULATOR_CUDA_PIPELINE_PRIMITIVES_H_
