// Runs the CUDA kernels of this project on the CPU, so that machines without a GPU can test them.
//
// The sources are compiled as C++ with this folder's cuda_runtime.h, cuda_bf16.h and cuda_fp16.h. A launch runs at
// once, in the thread that makes it and one launch at a time; its blocks run one after another, and a block's threads
// are fibers that give way at barriers and warp collectives only. Calls of other threads run between two blocks;
// launches, and calls that wait for the device, run after the grid.
//
// The emulator shows wrong indices, wrong results, barriers and collectives that not all threads reach, reads of shared
// memory that nothing wrote, leaks, and accesses outside allocations (under AddressSanitizer). It shows missing
// barriers as results that depend on the order of threads (SetOrder). It shows a host that writes to pinned memory, or
// reads from it, before it has waited for the copy. It cannot show races that no tried order reveals, the memory model,
// time, registers, limits of static shared memory, kernels that read memory of the host, other work that runs later
// than the host expects, or gaps in the memory pool.
//
// Misuse (see collectives.cc, memory.cc and streams.cc) is reported on stderr and ends the process.
//
// Tests may call everything here from any thread. From the environment, read once:
//   EDGEWISE_EMULATED_ORDER=forward|backward|SEED
//   EDGEWISE_EMULATED_GUARD=1   device memory cannot be touched except by launches, copies and fills: host code that
//                               does gets SIGSEGV. Slow with many allocations.
//   EDGEWISE_EMULATED_FAIL_AFTER=LAUNCHES
//   EDGEWISE_EMULATED_EVERY_KERNEL=1   the process fails at its end, where it has not launched every kernel that it
//   loaded EDGEWISE_EMULATED_MEMORY=BYTES   of the device; 16 GiB where it is not given
#ifndef EDGEWISE_TESTS_CUDA_EMULATOR_EMULATOR_H_
#define EDGEWISE_TESTS_CUDA_EMULATOR_EMULATOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>

namespace emulator {

// The order in which blocks and runnable threads continue. Results of a correct kernel do not depend on it.
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

// Calls that would make the driver give more than `bytes` of device memory fail with cudaErrorMemoryAllocation. The
// pool takes 2 MB at a time.
void SetMemoryLimit(size_t bytes);
// The CUDA version of the driver, 13000 for 13.0. Where it is below that of the runtime, no device can be used.
void SetDriver(int version);
// Whether the device has memory pools.
void SetPools(bool pools);
// 10 * major + minor; 90 until then. Nothing else of the device changes with it.
void SetCapability(int capability);

// Whether MmaBf16 adds 16 products as MmaHalf does (device.h), and not rounds after each.
void SetMmaBf16CutsOff(bool cuts_off);

uint64_t launches();     // made since the process began
uint64_t allocations();  // of device memory, from the pool or not, likewise
uint64_t copies();       // likewise
uint64_t calls();        // of the runtime API, likewise

// The number of times that a thread of a grid has given way, or has left the kernel, since the process began.
uint64_t Steps();
// Calls `f` once, `more` steps from now, in the thread that launched the grid and while the grid runs: only threads
// that continue after the call see what `f` copies. `f` must not launch, nor wait for the device.
void AtStep(uint64_t more, std::function<void()> f);

// The sums of what the driver has given since the process began.
struct Taken {
  uint64_t device_memory = 0, pinned_memory = 0, events = 0, streams = 0;
  uint64_t kernels = 0;  // loaded by their first launch, since nobody had asked for their attributes
};
Taken TakenSoFar();
size_t LiveAllocations();  // of device memory
size_t LiveBytes();        // that the driver gave, to the pool or outside it

}  // namespace emulator

#endif  // EDGEWISE_TESTS_CUDA_EMULATOR_EMULATOR_H_
