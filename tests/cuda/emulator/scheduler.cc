// Switches between the threads of a block and runs blocks one after another.
#include "tests/cuda/emulator/scheduler.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <boost/context/detail/fcontext.hpp>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "tests/cuda/emulator/runtime_state.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// The linker's names for the ends of the section of static shared memory; null where there is none.
extern unsigned char shared_begin[] __asm__("__start_emulated_shared") __attribute__((weak));
extern unsigned char shared_end[] __asm__("__stop_emulated_shared") __attribute__((weak));

namespace emulator {

Block block;

namespace {

using boost::context::detail::fcontext_t;
using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

constexpr size_t kGuardBytes = 256;  // behind the dynamic shared memory
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 256 << 10;  // red zones make frames larger
#else
constexpr size_t kStackBytes = 64 << 10;
#endif

struct Fiber {
  fcontext_t context;
  unsigned char* stack;  // lowest byte
  size_t stack_bytes;
  void* fake_stack;  // of AddressSanitizer
};
Fiber fibers[kMaxThreads];
Fiber host;  // the thread that launched

// Of the grid that runs.
Order order;
uint64_t random_state;
void (*thread_of_grid)(void*);
void* data_of_grid;

std::atomic<uint64_t> steps = 0;
uint64_t step_of_call = ~uint64_t{0};  // when `at_step` is called
std::function<void()> at_step;

// The running thread is about to give way or to leave.
void CountStep() {
  if (++steps != step_of_call) return;
  step_of_call = ~uint64_t{0};
  std::exchange(at_step, nullptr)();
}

}  // namespace

uint64_t Steps() { return steps; }
void AtStep(uint64_t more, std::function<void()> f) {
  const std::lock_guard lock(TheDevice().mutex);
  at_step = std::move(f);
  step_of_call = steps + more;
}

void Fail(const char* format, ...) {
  const uint3 t = block.index[block.running];
  std::fprintf(stderr, "CUDA emulator: block (%u, %u, %u), thread (%u, %u, %u): ", blockIdx.x, blockIdx.y, blockIdx.z,
               t.x, t.y, t.z);
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
  std::abort();
}

std::string Text(const Place& place) {
  char mask[32] = "";
  if (place.mask != 0) std::snprintf(mask, sizeof(mask), " (mask %08x)", place.mask);
  return std::string(place.name) + mask + " at " + place.where.file + ":" + std::to_string(place.where.line);
}

namespace {

void SwitchTo(Fiber& from, Fiber& to, bool for_good) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(for_good ? nullptr : &from.fake_stack, to.stack, to.stack_bytes);
#else
  (void)for_good;
#endif
  const transfer_t transfer = jump_fcontext(to.context, &from);
  static_cast<Fiber*>(transfer.data)->context = transfer.fctx;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

// One bit of `set`, which is not empty, as the order wants it.
int Pick(unsigned set) {
  if (order.kind == Order::kForwardKind) return std::countr_zero(set);
  if (order.kind == Order::kBackwardKind) return 31 - std::countl_zero(set);
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  const int turn = random_state >> 32 & 31;
  return (std::countr_zero(std::rotr(set, turn)) + turn) & 31;
}

[[noreturn]] void FailStuck() {
  std::string waiting;
  if (block.arrived > 0) waiting += "\n  " + std::to_string(block.arrived) + " threads: " + Text(block.place);
  for (int w = 0; w * kLanes < block.threads; ++w) {
    for (int g = 0; g < block.warps[w].num_groups; ++g) {
      const Group& group = block.warps[w].groups[g];
      char lanes[64];
      std::snprintf(lanes, sizeof(lanes), "\n  warp %d, lanes %08x: ", w, group.arrived);
      waiting += lanes + Text(group.place);
    }
  }
  waiting += TextOfWaiting();
  Fail("no thread of the block can go on; waiting are%s", waiting.c_str());
}

// Takes the thread that goes on next from the ready ones: one of the same warp while there is one, except when
// shuffled.
int TakeNext() {
  if (block.ready_warps == 0) FailStuck();
  int w = block.running / kLanes;
  if (block.warps[w].ready == 0 || order.kind == Order::kShuffledKind) w = Pick(block.ready_warps);
  const int lane = Pick(block.warps[w].ready);
  block.warps[w].ready &= ~(1u << lane);
  if (block.warps[w].ready == 0) block.ready_warps &= ~(1u << w);
  return w * kLanes + lane;
}

}  // namespace

void MakeReady(int w, unsigned lanes) {
  block.warps[w].ready |= lanes;
  block.ready_warps |= 1u << w;
}

void GiveWay() {
  CountStep();
  const int self = block.running, next = TakeNext();
  if (next == self) return;
  block.running = next;
  threadIdx = block.index[next];
  SwitchTo(fibers[self], fibers[next], false);
}

namespace {

void Leave() {
  const int self = block.running, w = self / kLanes;
  const unsigned bit = 1u << self % kLanes;
  Warp& warp = block.warps[w];
  for (int g = 0; g < warp.num_groups; ++g) {
    if (warp.groups[g].place.mask & bit) {
      Fail("left the kernel while lanes of its warp wait for it in %s", Text(warp.groups[g].place).c_str());
    }
  }
  if (block.arrived > 0) Fail("left the kernel while threads of the block wait in %s", Text(block.place).c_str());
  CountStep();
  warp.absent |= bit;
  Fiber* to = &host;
  if (++block.left < block.threads) {
    block.running = TakeNext();
    threadIdx = block.index[block.running];
    to = &fibers[block.running];
  }
  SwitchTo(fibers[self], *to, true);
  std::abort();  // not reached
}

// Where every fiber begins.
void Enter(transfer_t transfer) {
  static_cast<Fiber*>(transfer.data)->context = transfer.fctx;
#if defined(__SANITIZE_ADDRESS__)
  const void* stack;
  size_t bytes;
  __sanitizer_finish_switch_fiber(nullptr, &stack, &bytes);
  if (transfer.data == &host) {
    host.stack = static_cast<unsigned char*>(const_cast<void*>(stack));
    host.stack_bytes = bytes;
  }
#endif
  thread_of_grid(data_of_grid);
  Leave();
}

// A stack, with a page below it that must not be touched. Kept until the process ends.
unsigned char* NewStack() {
  const size_t page = sysconf(_SC_PAGESIZE);
  void* memory = mmap(nullptr, kStackBytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) Fail("no memory for a stack");
  return static_cast<unsigned char*>(memory) + page;
}

void PrepareBlock(dim3 extent, size_t shared_bytes, unsigned char* shared) {
  std::fill(shared_begin, shared_end, kPoison);
  std::fill_n(shared, shared_bytes, kPoison);
  std::fill_n(shared + shared_bytes, kGuardBytes, kGuard);
  block.left = block.arrived = 0;
  block.votes = {};
  block.ready_warps = 0;
  for (int w = 0; w * kLanes < block.threads; ++w) {
    Warp& warp = block.warps[w];
    const int lanes = std::min(kLanes, block.threads - w * kLanes);
    const unsigned present = ~0u >> (kLanes - lanes);
    warp.ready = 0;
    warp.absent = ~present;
    warp.num_groups = 0;
    MakeReady(w, present);
  }
  for (unsigned i = 0; i < static_cast<unsigned>(block.threads); ++i) {
    Fiber& fiber = fibers[i];
    block.index[i] = {i % extent.x, i / extent.x % extent.y, i / extent.x / extent.y};
    if (fiber.stack == nullptr) {
      fiber.stack = NewStack();
      fiber.stack_bytes = kStackBytes;
    }
#if defined(__SANITIZE_ADDRESS__)
    constexpr size_t kLast = 16 << 10;  // more than the frames that Leave never left
    ASAN_UNPOISON_MEMORY_REGION(fiber.stack + kStackBytes - kLast, kLast);
#endif
    // Stacks begin at different lines of the caches.
    fiber.context = make_fcontext(fiber.stack + kStackBytes - i % kLanes * 320, kStackBytes / 2, Enter);
  }
}

void RunBlock(dim3 extent, size_t shared_bytes) {
  alignas(1024) static unsigned char shared[kMaxShared + kGuardBytes];
  PrepareBlock(extent, shared_bytes, shared);
  dynamic_shared = shared;
  block.running = 0;
  block.running = TakeNext();
  threadIdx = block.index[block.running];
#if defined(__SANITIZE_ADDRESS__)
  ASAN_POISON_MEMORY_REGION(shared + shared_bytes, sizeof(shared) - shared_bytes);
#endif
  SwitchTo(host, fibers[block.running], false);
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(shared, sizeof(shared));
#endif
  for (size_t i = shared_bytes; i < shared_bytes + kGuardBytes; ++i) {
    if (shared[i] != kGuard) Fail("or another wrote byte %zu of %zu bytes of shared memory", i, shared_bytes);
  }
}

}  // namespace

void RunGrid(const Grid& grid, void (*thread)(void*), void* data, void (*between)()) {
  block.threads = grid.threads.x * grid.threads.y * grid.threads.z;
  order = grid.order;
  random_state = order.seed * 0x9E3779B97F4A7C15u | 1;
  thread_of_grid = thread;
  data_of_grid = data;
  gridDim = grid.blocks;
  blockDim = grid.threads;
  const uint64_t count = uint64_t{gridDim.x} * gridDim.y * gridDim.z;
  std::vector<uint64_t> shuffled;
  if (order.kind == Order::kShuffledKind) {
    shuffled.resize(count);
    std::iota(shuffled.begin(), shuffled.end(), uint64_t{0});
    std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937_64(order.seed));
  }
  for (uint64_t b = 0; b < count; ++b) {
    uint64_t i = order.kind == Order::kBackwardKind ? count - 1 - b : b;
    if (!shuffled.empty()) i = shuffled[b];
    between();
    blockIdx = {static_cast<unsigned>(i % gridDim.x), static_cast<unsigned>(i / gridDim.x % gridDim.y),
                static_cast<unsigned>(i / gridDim.x / gridDim.y)};
    RunBlock(grid.threads, grid.shared_bytes);
  }
}

}  // namespace emulator
