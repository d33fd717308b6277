// Blocks, their threads and what these meet at. Reports and ends the process where
//  - threads of a block meet at different barriers (or at one barrier from different lines), or a thread leaves the
//    kernel while others wait at a barrier;
//  - lanes of a warp meet at different collectives, with different masks or from different lines; a lane calls one whose
//    mask lacks it, or names lanes that have left or do not exist; a lane leaves while a mask names it;
//  - no thread can go on;
//  - a shuffle reads from a lane outside of its mask;
//  - something was written just behind the dynamic shared memory.
// CUDA allows some of this (barriers in two branches, lanes that left); the project's kernels do without.
#include "tests/cuda/emulator/scheduler.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <boost/context/detail/fcontext.hpp>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// The linker's names for the ends of the section of static shared memory; null where there is none.
extern unsigned char shared_begin[] __asm__("__start_emulated_shared") __attribute__((weak));
extern unsigned char shared_end[] __asm__("__stop_emulated_shared") __attribute__((weak));

namespace emulator {
namespace {

using boost::context::detail::fcontext_t;
using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

constexpr int kLanes = 32;
constexpr size_t kGuardBytes = 256;  // behind the dynamic shared memory
constexpr unsigned char kGuard = 0xA5;
constexpr unsigned char kPoison = 0xFF;  // four such bytes are a NaN
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 256 << 10;  // frames grow by red zones
#else
constexpr size_t kStackBytes = 64 << 10;
#endif

// What a thread waits for.
struct Place {
  const char* name;  // of the barrier or collective
  int width;
  unsigned mask;
  Where where;
  bool operator==(const Place& other) const {
    return name == other.name && width == other.width && mask == other.mask && where.line() == other.where.line() &&
           where.file_name() == other.where.file_name();
  }
};

struct Fiber {
  fcontext_t context;
  unsigned char* stack;  // lowest byte
  size_t stack_bytes;
  void* fake_stack;  // of AddressSanitizer
};

// Lanes of a warp that have come to one collective, where not all have.
struct Group {
  unsigned arrived;
  Place place;
};

struct Warp {
  unsigned ready;   // lanes that can go on and do not run
  unsigned absent;  // lanes that have left or never were
  int num_groups;   // their masks have no lane in common
  Group groups[kLanes];
  uint64_t value[kLanes];  // given by each lane
  int source[kLanes];
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
  Fiber fibers[kMaxThreads];
  uint3 index[kMaxThreads];  // threadIdx
  Fiber host;                // the thread that launched
  Order order;
  uint64_t random = 0;
  void (*thread)(void*) = nullptr;
  void* data = nullptr;
};
Block block;

[[noreturn]] __attribute__((format(printf, 1, 2))) void Fail(const char* format, ...) {
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
  char text[512];
  std::snprintf(text, sizeof(text), "%s (mask %08x) at %s:%u", place.name, place.mask, place.where.file_name(),
                place.where.line());
  return text;
}

// ---- Switching ----

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
  if (block.order.kind == Order::kForwardKind) return std::countr_zero(set);
  if (block.order.kind == Order::kBackwardKind) return 31 - std::countl_zero(set);
  block.random ^= block.random << 13;
  block.random ^= block.random >> 7;
  block.random ^= block.random << 17;
  const int turn = block.random >> 32 & 31;
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
  Fail("no thread of the block can go on; waiting are%s", waiting.c_str());
}

// Takes the thread that goes on next from the ready ones: one of the same warp while there is one, except when shuffled.
int TakeNext() {
  if (block.ready_warps == 0) FailStuck();
  int w = block.running / kLanes;
  if (block.warps[w].ready == 0 || block.order.kind == Order::kShuffledKind) w = Pick(block.ready_warps);
  const int lane = Pick(block.warps[w].ready);
  block.warps[w].ready &= ~(1u << lane);
  if (block.warps[w].ready == 0) block.ready_warps &= ~(1u << w);
  return w * kLanes + lane;
}

void MakeReady(int w, unsigned lanes) {
  block.warps[w].ready |= lanes;
  block.ready_warps |= 1u << w;
}

// Lets others run until this thread is taken again.
void GiveWay() {
  const int self = block.running, next = TakeNext();
  if (next == self) return;
  block.running = next;
  threadIdx = block.index[next];
  SwitchTo(block.fibers[self], block.fibers[next], false);
}

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
  warp.absent |= bit;
  Fiber* to = &block.host;
  if (++block.left < block.threads) {
    block.running = TakeNext();
    threadIdx = block.index[block.running];
    to = &block.fibers[block.running];
  }
  SwitchTo(block.fibers[self], *to, true);
  std::abort();  // not reached
}

// Where every fiber begins.
void Enter(transfer_t transfer) {
  static_cast<Fiber*>(transfer.data)->context = transfer.fctx;
#if defined(__SANITIZE_ADDRESS__)
  const void* stack;
  size_t bytes;
  __sanitizer_finish_switch_fiber(nullptr, &stack, &bytes);
  if (transfer.data == &block.host) {
    block.host.stack = static_cast<unsigned char*>(const_cast<void*>(stack));
    block.host.stack_bytes = bytes;
  }
#endif
  block.thread(block.data);
  Leave();
}

// ---- Running ----

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
  for (int t = 0; t < block.threads; ++t) {
    Fiber& fiber = block.fibers[t];
    const unsigned i = t;
    block.index[t] = {i % extent.x, i / extent.x % extent.y, i / extent.x / extent.y};
    if (fiber.stack == nullptr) {
      fiber.stack = NewStack();
      fiber.stack_bytes = kStackBytes;
    }
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
  SwitchTo(block.host, block.fibers[block.running], false);
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(shared, sizeof(shared));
#endif
  for (size_t i = 0; i < kGuardBytes; ++i) {
    if (shared[shared_bytes + i] != kGuard) Fail("wrote byte %zu of %zu bytes of shared memory", shared_bytes + i, shared_bytes);
  }
}

}  // namespace

void RunGrid(dim3 grid, dim3 extent, size_t shared_bytes, Order order, void (*thread)(void*), void* data) {
  block.threads = extent.x * extent.y * extent.z;
  block.order = order;
  block.random = order.seed * 0x9E3779B97F4A7C15u | 1;
  block.thread = thread;
  block.data = data;
  gridDim = grid;
  blockDim = extent;
  const uint64_t count = uint64_t{grid.x} * grid.y * grid.z;
  std::vector<uint64_t> shuffled;
  if (order.kind == Order::kShuffledKind) {
    shuffled.resize(count);
    std::iota(shuffled.begin(), shuffled.end(), uint64_t{0});
    std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937_64(order.seed));
  }
  for (uint64_t b = 0; b < count; ++b) {
    uint64_t i = order.kind == Order::kBackwardKind ? count - 1 - b : b;
    if (!shuffled.empty()) i = shuffled[b];
    blockIdx = {static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
                static_cast<unsigned>(i / grid.x / grid.y)};
    RunBlock(extent, shared_bytes);
  }
}

// ---- Meeting ----

int Lane() { return block.running % kLanes; }

Votes MeetBlock(const char* name, bool vote, Where where) {
  const Place place = {name, kLanes, 0, where};
  if (block.left > 0) Fail("a thread of the block has left the kernel before %s", Text(place).c_str());
  if (block.arrived == 0) {
    block.place = place;
    block.votes = {0, 0, 1};
  } else if (!(block.place == place)) {
    Fail("came to %s, but threads of the block wait in %s", Text(place).c_str(), Text(block.place).c_str());
  }
  block.votes.any |= vote;
  block.votes.count += vote;
  block.votes.all &= vote;
  if (++block.arrived == block.threads) {
    block.arrived = 0;
    block.result = block.votes;
    for (int w = 0; w * kLanes < block.threads; ++w) MakeReady(w, ~block.warps[w].absent);
  }
  GiveWay();
  return block.result;  // kept until all threads have come to the next barrier
}

namespace {

// Waits for all lanes of the mask; `finish(warp)` runs once, when all are there.
template <typename Finish>
Warp& MeetWarp(const Place& place, Finish finish) {
  const int w = block.running / kLanes;
  const unsigned bit = 1u << Lane();
  Warp& warp = block.warps[w];
  if (!(place.mask & bit)) Fail("lane %d is not in the mask of its %s", Lane(), Text(place).c_str());
  if (place.mask & warp.absent) {
    Fail("%s names lanes %08x, which have left the kernel or do not exist", Text(place).c_str(),
         place.mask & warp.absent);
  }
  int g = 0;
  while (g < warp.num_groups && !(warp.groups[g].place.mask & place.mask)) ++g;
  Group& group = warp.groups[g];
  if (g == warp.num_groups) {
    group = {0, place};
    ++warp.num_groups;
  } else if (!(group.place == place)) {
    Fail("came to %s, but lanes %08x of its warp wait in %s", Text(place).c_str(), group.arrived,
         Text(group.place).c_str());
  }
  group.arrived |= bit;
  if (group.arrived == place.mask) {
    finish(warp);
    group = warp.groups[--warp.num_groups];
    MakeReady(w, place.mask);
  }
  GiveWay();
  return warp;
}

template <typename F>
void ForEach(unsigned lanes, F f) {
  for (; lanes != 0; lanes &= lanes - 1) f(std::countr_zero(lanes));
}

}  // namespace

uint64_t Meet(const char* name, unsigned mask, int width, uint64_t value, int source, Where where) {
  const int lane = Lane();
  block.warps[block.running / kLanes].value[lane] = value;
  block.warps[block.running / kLanes].source[lane] = source;
  const Place place = {name, width, mask, where};
  return MeetWarp(place, [&](Warp& warp) {
           ForEach(mask, [&](int to) {
             if (!(mask >> warp.source[to] & 1)) {
               Fail("lane %d reads lane %d, which is not in the mask of %s", to, warp.source[to], Text(place).c_str());
             }
             warp.result[to] = warp.value[warp.source[to]];
           });
         }).result[lane];
}

unsigned MeetToVote(const char* name, unsigned mask, bool vote, Where where) {
  const int lane = Lane();
  block.warps[block.running / kLanes].value[lane] = vote;
  return MeetWarp({name, kLanes, mask, where}, [&](Warp& warp) {
           unsigned votes = 0;
           ForEach(mask, [&](int from) { votes |= static_cast<unsigned>(warp.value[from]) << from; });
           ForEach(mask, [&](int to) { warp.result[to] = votes; });
         }).result[lane];
}

namespace {

struct MmaOperands {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
};

float Half(uint32_t pair, int high) { return __uint_as_float(high ? pair & 0xFFFF0000u : pair << 16); }

void MultiplyFragments(Warp& warp) {
  float a[16][16], b[16][8];
  const auto operands = [&](int lane) { return *reinterpret_cast<const MmaOperands*>(warp.value[lane]); };
  for (int lane = 0; lane < kLanes; ++lane) {
    const MmaOperands o = operands(lane);
    const int g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 4; ++i) a[g + i % 2 * 8][2 * t + i / 2 * 8 + half] = Half(o.a[i], half);
      for (int i = 0; i < 2; ++i) b[2 * t + i * 8 + half][g] = Half(o.b[i], half);
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    const MmaOperands o = operands(lane);
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      for (int k = 0; k < 16; ++k) o.d[i] += a[row][k] * b[k][column];
    }
  }
}

}  // namespace

void MmaBf16(float d[4], const uint32_t a[4], const uint32_t b[2], Where where) {
  const MmaOperands operands = {d, a, b};
  block.warps[block.running / kLanes].value[Lane()] = reinterpret_cast<uint64_t>(&operands);
  MeetWarp({"MmaBf16", kLanes, 0xFFFFFFFFu, where}, MultiplyFragments);
}

}  // namespace emulator
