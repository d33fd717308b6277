// The running block, its threads as fibers, and the places where they wait. For the emulator's own sources.
#ifndef EDGEWISE_TESTS_CUDA_EMULATOR_SCHEDULER_H_
#define EDGEWISE_TESTS_CUDA_EMULATOR_SCHEDULER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/cuda/emulator/device.h"
#include "tests/cuda/emulator/emulator.h"

namespace emulator {

inline constexpr int kLanes = 32;                        // of a warp
inline constexpr int kMaxThreads = 1024;                 // of a block
inline constexpr size_t kMaxShared = size_t{227} << 10;  // bytes of a block, as on compute capability 9.0
inline constexpr unsigned char kPoison = 0xFF;           // fills new memory; four such bytes are a NaN
inline constexpr unsigned char kGuard = 0xA5;            // fills what lies behind allocations

struct Grid {
  dim3 blocks, threads;  // threads of a block
  size_t shared_bytes;
  Order order;
};
// Runs the whole grid, and calls `between` before each block; the caller sees that no two grids run at a time, and
// checks extents.
void RunGrid(const Grid& grid, void (*thread)(void*), void* data, void (*between)());

// Where threads meet.
struct Place {
  const char* name;  // of the barrier or collective
  int width;
  unsigned mask;
  Where where;
  bool operator==(const Place&) const = default;
};
std::string Text(const Place& place);
std::string TextOfWaiting();  // async.cc: who waits for barriers in shared memory

// Lanes of a warp that have come to one collective, where not all have.
struct Group {
  unsigned arrived;
  Place place;
};

struct Warp {
  unsigned ready;   // lanes that can go on and do not run
  unsigned absent;  // lanes that have left or never were
  int num_groups;   // no two at the same place
  Group groups[kLanes];
  uint64_t value[kLanes];   // given by each lane
  int source[kLanes];       // the lane that each wants to read
  uint64_t result[kLanes];  // for each lane
};

// The block that runs. There is one at a time in the process.
struct Block {
  int threads = 0;
  int running = 0;  // index of the thread
  int left = 0;     // how many have left the kernel
  int arrived = 0;  // at the barrier `place`
  Place place = {};
  Votes votes = {}, result = {};
  unsigned ready_warps = 0;  // those with ready lanes
  Warp warps[kMaxThreads / kLanes];
  uint3 index[kMaxThreads];  // threadIdx
};
extern Block block;

inline Warp& RunningWarp() { return block.warps[block.running / kLanes]; }
void MakeReady(int warp, unsigned lanes);
void GiveWay();  // lets others run until the running thread, which may have been made ready, is taken again

// Reports what the running thread did and ends the process.
[[noreturn]] __attribute__((format(printf, 1, 2))) void Fail(const char* format, ...);

}  // namespace emulator

#endif  // EDGEWISE_TESTS_CUDA_EMULATOR_SCHEDULER_H_
