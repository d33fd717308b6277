// Runs the CUDA kernels of this project on the CPU, so that machines without a GPU can test them.
//
// The sources are compiled as C++ with this folder's cuda_runtime.h and cuda_bf16.h. A launch runs at once, in the
// thread that makes it and one launch at a time; its blocks run one after another, and a block's threads are fibers
// that give way at barriers and warp collectives only. What other threads call meanwhile is done between two blocks,
// but for launches and what waits for the device, which are done after the grid.
//
// What that shows: wrong indices, wrong results, barriers and collectives that not all threads reach, reads of shared
// memory that nothing wrote, leaks; under AddressSanitizer accesses outside allocations; and missing barriers, as
// results that depend on the order of threads (SetOrder); and a host that writes to pinned memory, or reads from it,
// before it has waited for the copy. What it cannot show: races between threads that the orders tried do not reorder,
// the memory model, time, registers, limits of static shared memory, kernels that read memory of the host, other work
// that runs later than the host thinks, gaps in the memory pool.
//
// Misuse (see collectives.cc, memory.cc and streams.cc) is reported on stderr and ends the process.
//
// Tests may call everything here from any thread. From the environment, read once:
//   EDGEWISE_EMULATED_ORDER=forward|backward|SEED
//   EDGEWISE_EMULATED_GUARD=1   device memory cannot be touched except by launches, copies and fills: host code that
//                               does gets SIGSEGV. Slow with many allocations.
//   EDGEWISE_EMULATED_FAIL_AFTER=LAUNCHES
//   EDGEWISE_EMULATED_MEMORY=BYTES   of the device; 16 GiB where it is not given
#ifndef EDGEWISE_TESTS_CUDA_EMULATOR_EMULATOR_H_
#define EDGEWISE_TESTS_CUDA_EMULATOR_EMULATOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>

namespace emulator {

// In which order blocks and runnable threads go on. Results of a correct kernel do not depend on it.
struct Order {
  enum Kind { kForwardKind, kBackwardKind, kShuffledKind } kind = kForwardKind;
  uint64_t seed = 0;
};
inline constexpr Order kForward = {};
inline constexpr Order kBackward = {Order::kBackwardKind};
constexpr Order Shuffled(uint64_t seed) { return {Order::kShuffledKind, seed}; }
void PrintTo(const Order& order, std::ostream* out);  // for GoogleTest
void SetOrder(Order order);

// After `launches` further launches every call fails with cudaErrorIllegalAddress, as on a GPU whose context is lost;
// negative: never, and all is well again.
void FailAfter(int64_t launches);

// Where the driver would have to give more device memory than so many bytes, calls fail with
// cudaErrorMemoryAllocation. The pool takes 2 MB at a time.
void SetMemoryLimit(size_t bytes);
// Whether the device has memory pools.
void SetPools(bool pools);

uint64_t launches();  // made since the process began
uint64_t calls();     // of the runtime API, likewise

// How often a thread of a grid has given way, or has left the kernel, since the process began. Once it has happened
// `more` times more, `f` is called once, in the thread that launched the grid, while that runs: what it copies is seen
// by those threads only that go on after it. It must not launch, nor wait for the device.
uint64_t Steps();
void AtStep(uint64_t more, std::function<void()> f);

// What was asked of the driver since the process began, and given.
struct Taken {
  uint64_t device_memory = 0, pinned_memory = 0, events = 0, streams = 0;
};
Taken TakenSoFar();
size_t LiveAllocations();  // of device memory
size_t LiveBytes();        // that the driver gave, to the pool or outside it

}  // namespace emulator

#endif  // EDGEWISE_TESTS_CUDA_EMULATOR_EMULATOR_H_
