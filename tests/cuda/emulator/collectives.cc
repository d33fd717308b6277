// Barriers of a block and collectives of a warp. Reports and ends the process where
//  - threads of a block meet at different barriers (or at one barrier from different lines), or a thread leaves the
//    kernel while others wait at a barrier;
//  - lanes of a warp wait for each other at different collectives, with different masks or on different lines; a lane
//    calls one whose mask lacks it, or names lanes that have left or do not exist; a lane leaves while a mask names it;
//  - no thread can go on;
//  - a shuffle reads from a lane outside of its mask.
// CUDA allows some of this (barriers in two branches, lanes that left); the project's kernels do without.
#include <bit>
#include <cmath>

#include "tests/cuda/emulator/cuda_fp16.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/emulator/scheduler.h"

namespace emulator {

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
  while (g < warp.num_groups && !(warp.groups[g].place == place)) ++g;
  Group& group = warp.groups[g];
  if (g == warp.num_groups) {
    for (int other = 0; other < g; ++other) {
      const Group& waiting = warp.groups[other];
      if ((waiting.place.mask & bit) && (waiting.arrived & place.mask)) {
        Fail("came to %s, but lanes %08x of its warp wait in %s", Text(place).c_str(), waiting.arrived,
             Text(waiting.place).c_str());
      }
    }
    group = {0, place};
    ++warp.num_groups;
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
  RunningWarp().value[lane] = value;
  RunningWarp().source[lane] = source;
  const Place place = {name, width, mask, where};
  return MeetWarp(place,
                  [&](Warp& warp) {
                    ForEach(mask, [&](int to) {
                      if (!(mask >> warp.source[to] & 1)) {
                        Fail("lane %d reads lane %d, which is not in the mask of %s", to, warp.source[to],
                             Text(place).c_str());
                      }
                      warp.result[to] = warp.value[warp.source[to]];
                    });
                  })
      .result[lane];
}

unsigned MeetToVote(const char* name, unsigned mask, bool vote, Where where) {
  const int lane = Lane();
  RunningWarp().value[lane] = vote;
  return MeetWarp({name, kLanes, mask, where},
                  [&](Warp& warp) {
                    unsigned votes = 0;
                    ForEach(mask, [&](int from) { votes |= static_cast<unsigned>(warp.value[from]) << from; });
                    ForEach(mask, [&](int to) { warp.result[to] = votes; });
                  })
      .result[lane];
}

namespace {

// What a lane gave the address of.
template <typename Operands>
Operands GivenBy(const Warp& warp, int lane) {
  return *reinterpret_cast<const Operands*>(warp.value[lane]);  // NOLINT(performance-no-int-to-ptr)
}

struct MmaOperands {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
};

struct Tf32Operands {
  float* d;
  const float* a;
  const float* b;
};

// Element `high` of a pair.
float Bf16Of(uint32_t pair, int high) { return __uint_as_float(high ? pair & 0xFFFF0000u : pair << 16); }
float HalfOf(uint32_t pair, int high) { return __half2float({static_cast<uint16_t>(high ? pair >> 16 : pair)}); }

void AddInTurn(float& d, const float a[16], const float (&b)[16][8], int column) {
  for (int k = 0; k < 16; ++k) d += a[k] * b[k][column];
}

void AddTowardsZero(float& d, const float a[16], const float (&b)[16][8], int column) {
  double sum = d;  // 22 bits of a product: what double rounds is far below float32
  for (int k = 0; k < 16; ++k) sum += static_cast<double>(a[k]) * b[k][column];
  d = static_cast<float>(sum);
  if (!std::isinf(d) && std::abs(d) > std::abs(sum)) d = std::nextafter(d, 0.0f);
}

template <auto kOf, auto kAdd>
void MultiplyFragments(Warp& warp) {
  float a[16][16], b[16][8];
  const auto operands = [&](int lane) { return GivenBy<MmaOperands>(warp, lane); };
  for (int lane = 0; lane < kLanes; ++lane) {
    const MmaOperands o = operands(lane);
    const int g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 4; ++i) a[g + i % 2 * 8][2 * t + i / 2 * 8 + half] = kOf(o.a[i], half);
      for (int i = 0; i < 2; ++i) b[2 * t + i * 8 + half][g] = kOf(o.b[i], half);
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    const MmaOperands o = operands(lane);
    for (int i = 0; i < 4; ++i) {
      kAdd(o.d[i], a[lane / 4 + i / 2 * 8], b, lane % 4 * 2 + i % 2);
    }
  }
}

float CheckTf32(float x) {
  if ((__float_as_uint(x) & 0x1FFFu) != 0 && !std::isnan(x)) Fail("MmaTf32 of %a, which is no tf32", x);
  return x;
}

void MultiplyTf32(Warp& warp) {
  float a[16][8], b[8][8];
  const auto operands = [&](int lane) { return GivenBy<Tf32Operands>(warp, lane); };
  for (int lane = 0; lane < kLanes; ++lane) {
    const Tf32Operands o = operands(lane);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) a[g + i % 2 * 8][t + i / 2 * 4] = CheckTf32(o.a[i]);
    for (int i = 0; i < 2; ++i) b[t + i * 4][g] = CheckTf32(o.b[i]);
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    const Tf32Operands o = operands(lane);
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      for (int k = 0; k < 8; ++k) o.d[i] += a[row][k] * b[k][column];
    }
  }
}

}  // namespace

void MmaTf32(float d[4], const float a[4], const float b[2], Where where) {
  const Tf32Operands operands = {d, a, b};
  RunningWarp().value[Lane()] = reinterpret_cast<uint64_t>(&operands);
  MeetWarp({"MmaTf32", kLanes, 0xFFFFFFFFu, where}, MultiplyTf32);
}

namespace {
bool cut_off = false;
}  // namespace
void SetMmaBf16CutsOff(bool cuts_off) { cut_off = cuts_off; }

void MmaBf16(float d[4], const uint32_t a[4], const uint32_t b[2], Where where) {
  const MmaOperands operands = {d, a, b};
  RunningWarp().value[Lane()] = reinterpret_cast<uint64_t>(&operands);
  MeetWarp({"MmaBf16", kLanes, 0xFFFFFFFFu, where},
           cut_off ? MultiplyFragments<Bf16Of, AddTowardsZero> : MultiplyFragments<Bf16Of, AddInTurn>);
}

void MmaHalf(float d[4], const uint32_t a[4], const uint32_t b[2], Where where) {
  const MmaOperands operands = {d, a, b};
  RunningWarp().value[Lane()] = reinterpret_cast<uint64_t>(&operands);
  MeetWarp({"MmaHalf", kLanes, 0xFFFFFFFFu, where}, MultiplyFragments<HalfOf, AddTowardsZero>);
}

void LoadMatrices(bool transposed, const void* row, uint32_t to[4], Where where) {
  struct Operands {
    const uint16_t* row;
    uint32_t* to;
  } const operands = {static_cast<const uint16_t*>(row), to};
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) Fail("LoadMatrices from %p, which is not 16-byte aligned", row);
  RunningWarp().value[Lane()] = reinterpret_cast<uint64_t>(&operands);
  MeetWarp({transposed ? "LoadMatrices, transposed" : "LoadMatrices", kLanes, 0xFFFFFFFFu, where}, [&](Warp& warp) {
    const auto of = [&](int lane) { return GivenBy<Operands>(warp, lane); };
    for (int lane = 0; lane < kLanes; ++lane) {
      const int g = lane / 4, t = lane % 4;
      for (int m = 0; m < 4; ++m) {
        const auto at = [&](int i, int j) -> uint32_t {
          return transposed ? of(8 * m + j).row[i] : of(8 * m + i).row[j];
        };
        of(lane).to[m] = at(g, 2 * t) | at(g, 2 * t + 1) << 16;
      }
    }
  });
}

}  // namespace emulator
