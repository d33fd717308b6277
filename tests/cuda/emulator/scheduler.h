// Between runtime.cc and scheduler.cc.
#ifndef EDGEWISE_TESTS_CUDA_EMULATOR_SCHEDULER_H_
#define EDGEWISE_TESTS_CUDA_EMULATOR_SCHEDULER_H_

#include <cstddef>

#include "tests/cuda/emulator/device.h"
#include "tests/cuda/emulator/emulator.h"

namespace emulator {

inline constexpr int kMaxThreads = 1024;             // of a block
inline constexpr size_t kMaxShared = size_t{227} << 10;  // bytes of a block, as on compute capability 9.0

// Runs the whole grid; the caller sees that no two grids run at a time. Extents are checked by the caller.
void RunGrid(dim3 grid, dim3 block, size_t shared_bytes, Order order, void (*thread)(void*), void* data);

}  // namespace emulator

#endif  // EDGEWISE_TESTS_CUDA_EMULATOR_SCHEDULER_H_
