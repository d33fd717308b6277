// How the device selects the edges that a cap keeps: in any order of blocks and threads, where many edges have one age
// or nearly, and in parts. tests/kernels/cap_test.cc has which edges those are.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cuda/attention/age_select.h"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/rank.cuh"
#include "kernels/reference/reference.h"
#include "tests/cuda/device_case.h"
#include "tests/cuda/emulator/emulator.h"

namespace edgewise::cuda {
namespace {

using edgewise::testing::Case;
using edgewise::testing::Shape;
using testing::CapOf;
using testing::DeviceCase;
using testing::DeviceCopies;
using testing::Get;

// found: Total; bin, count and before of Find.
__global__ void __launch_bounds__(kSearchThreads) FindRank(const BinCount* counts, uint64_t rank, uint64_t* found) {
  __shared__ Search search;
  const uint64_t total = Total(counts, search);
  Find(counts, rank, search);
  if (threadIdx.x != 0) return;
  found[0] = total;
  found[1] = search.bin;
  found[2] = search.count;
  found[3] = search.before;
}

TEST(SelectKeptTest, MoreEdgesThan32BitsCountMayHaveOneRate) {
  std::vector<BinCount> counts(kAgeBuckets);
  counts[7] = 3;
  counts[9] = BinCount{1} << 33;
  counts[60000] = 5;
  const auto found = [&](uint64_t rank) {
    DeviceCopies memory;
    uint64_t* const to = memory.Put(std::vector<uint64_t>(4));
    EXPECT_EQ(Launch(nullptr, 1, kSearchThreads, 0, FindRank, memory.Put(counts), rank, to), cudaSuccess);
    return Get(to, 4);
  };
  const uint64_t many = counts[9];
  EXPECT_EQ(found(many + 2), (std::vector<uint64_t>{many + 8, 9, many, 3}));
  EXPECT_EQ(found(many + 3), (std::vector<uint64_t>{many + 8, 60000, 5, many + 3}));
}

// A drawn edge in the order in which caps keep them.
using Key = std::tuple<double, int32_t, int32_t, int32_t, int32_t>;  // age, problem, head, query, key

// The draws of one cap before it keeps any.
struct Drawn {
  uint64_t forced = 0;
  std::vector<Key> edges;  // ascending
};

Drawn DrawnUnder(const Case& host, int32_t cap) {
  Drawn drawn;
  for (size_t p = 0; p < host.problems.size(); ++p) {
    AttentionProblem problem = host.problems[p];
    if (problem.cap != cap) continue;
    if (auto* pattern = std::get_if<DrawnRows>(&problem.pattern)) pattern->way = DrawWay::kPairs;  // as DeviceCase does
    for (int h = 0; h < host.inputs.num_heads; ++h) {
      for (const reference::Edge& edge : reference::DrawEdges(host.inputs, problem, h)) {
        if (edge.forced) {
          ++drawn.forced;
        } else {
          drawn.edges.emplace_back(edge.age, static_cast<int32_t>(p), h, edge.query, edge.key);
        }
      }
    }
  }
  std::sort(drawn.edges.begin(), drawn.edges.end());
  return drawn;
}

// `cap` is that of a call that may keep `allowed` of `drawn`.
void ExpectCap(const DeviceCap& cap, const Drawn& drawn, uint64_t allowed) {
  EXPECT_EQ(cap.forced, drawn.forced);
  EXPECT_EQ(cap.drawn, drawn.edges.size());
  EXPECT_EQ(cap.allowed, allowed);
  EXPECT_EQ(cap.failed, 0);
  const bool drops = drawn.edges.size() > allowed;
  EXPECT_EQ(cap.capped, drops ? 1 : 0);
  if (!drops) {
    EXPECT_EQ(cap.cut.age_bits, ~uint64_t{0});
    EXPECT_EQ(cap.tau, 1.0);
    return;
  }
  const auto [age, problem, head, query, key] = drawn.edges[allowed];
  EXPECT_EQ(cap.cut.age_bits, AgeBits(age));
  EXPECT_EQ(cap.cut.order, EdgeOrder(problem, 1, head, query, key));
  EXPECT_EQ(cap.tau, age);
}

// So many edges that most buckets have one, and every kind of order.
TEST(SelectKeptTest, OrdersOfBlocksAndThreadsChangeNothing) {
  Shape shape;
  shape.lengths = {4136};
  shape.heads = 1;
  shape.rank = 16;
  shape.mean_rate = 0.01;
  Case host(shape);
  host.AddProblems(DrawnRows{.self_loops = true}, 0);
  const Drawn drawn = DrawnUnder(host, 0);
  DeviceCase device(host, {CapOf(drawn.forced + drawn.edges.size() / 3)});
  for (const emulator::Order order : {emulator::kForward, emulator::kBackward, emulator::Shuffled(1)}) {
    SCOPED_TRACE(order.kind);
    emulator::SetOrder(order);
    device.Select();
    ExpectCap(device.Caps()[0], drawn, drawn.edges.size() / 3);
  }
  emulator::SetOrder(emulator::kForward);
}

// More caps than scratch is for: they are settled some at a time, and read what a ledger held before the first.
TEST(SelectKeptTest, ManyCapsAreSettledInParts) {
  constexpr int kCaps = 2 * kMaxCapsAtOnce + 3;
  EXPECT_EQ(CapScratchBytes(kCaps), CapScratchBytes(kMaxCapsAtOnce));
  Shape shape;
  shape.lengths.assign(kCaps, 9);
  shape.heads = 1;
  shape.mean_rate = 0.4;
  Case host(shape);
  host.AddProblems(DrawnRows{.key = {.seed = 3}}, 0);
  for (int c = 0; c < kCaps; ++c) host.problems[c].cap = c;
  constexpr uint64_t kBudget = 20;
  DeviceCopies memory;
  uint64_t* ledger = memory.Put(std::vector<uint64_t>{kBudget});
  std::vector<DeviceCap> caps(kCaps, CapOf(kNoCap));
  caps.front() = caps.back() = CapOf(kNoCap, ledger, {kWholeShare, 0, 0});
  DeviceCase device(host, caps);
  device.Select();
  const std::vector<DeviceCap> got = device.Caps();
  uint64_t left = kBudget;
  for (const int c : {0, kCaps - 1}) {
    const Drawn drawn = DrawnUnder(host, c);
    ExpectCap(got[c], drawn, kBudget);
    left -= std::min<uint64_t>(drawn.edges.size(), kBudget);
  }
  EXPECT_EQ(Get(ledger, 1)[0], left);
}

TEST(SelectKeptTest, ACallWithoutCapsOrRowsIsNoError) {
  Shape shape;
  shape.lengths = {5};
  Case host(shape);
  host.AddProblems(AllPairs{}, 0);
  DeviceCase nothing_drawn(host, {CapOf(50)});
  nothing_drawn.Select();
  ExpectCap(nothing_drawn.Caps()[0], {}, 0);
  DeviceCase no_caps(host, {CapOf(50)});
  no_caps.call.num_caps = 0;
  EXPECT_EQ(SelectKept(nullptr, no_caps.call, false, nullptr, {}), cudaSuccess);
  EXPECT_EQ(CapScratchBytes(0), 0);
}

// Sequences of one token, all with the same uniform number, whose edges have ages as near as their rates; and one of 40
// tokens, whose edges have ages of all sizes. That uniform number is just above a multiple of 2^-8 and the ages just
// below a bucket's end, so that a bound on either that is slightly too low loses edges.
struct Crowd {
  Crowd(int size, double spread) : host(ShapeOf(size)) {
    DrawnRows pattern;
    for (pattern.key.seed = 1;; ++pattern.key.seed) {
      const double u = static_cast<double>(PairUniform(pattern.key, 0, 0, 0)) / kPairUniformScale;
      const double bucket = u / kRate * kAgeBuckets, byte = u * 256.0;
      if (u > 0.1 && u < 0.2 && bucket - std::floor(bucket) > 0.7 && byte - std::floor(byte) < 4e-4) break;
    }
    std::mt19937 random(7);
    std::fill(host.x.begin(), host.x.end(), 0.0f);
    std::fill(host.y.begin(), host.y.end(), 0.0f);
    for (size_t i = 0; i < host.query_bound.size(); ++i) {
      const float rate = static_cast<float>(kRate + spread * static_cast<double>(random() % 1024) / 1024.0);
      host.x[i * 16] = host.query_bound[i] = rate;
      host.y[i * 16] = host.key_bound[i] = 1.0f;
    }
    host.AddProblems(pattern, 0);
    drawn = DrawnUnder(host, 0);
    while (std::get<1>(drawn.edges[first]) == size) ++first;
  }
  static Shape ShapeOf(int size) {
    Shape shape;
    shape.lengths.assign(size, 1);
    shape.lengths.push_back(40);
    shape.heads = 1;
    shape.head_dim = 1;
    shape.rank = 16;
    return shape;
  }
  void ExpectKept(uint64_t allowed) const {
    DeviceCase device(host, {CapOf(allowed)});
    device.Select();
    ExpectCap(device.Caps()[0], drawn, allowed);
  }
  static constexpr double kRate = 0.98;
  Case host;
  Drawn drawn;
  size_t first = 0;  // of the sequences of one token among the drawn edges
};

TEST(SelectKeptTiesTest, DividesABucketThatHasTooManyEdges) {
  const Crowd crowd(9000, 3e-6);  // more than the 8192 that a list has room for
  const uint32_t youngest = AgeTick(std::get<0>(crowd.drawn.edges[crowd.first]));
  const uint32_t oldest = AgeTick(std::get<0>(crowd.drawn.edges[crowd.first + 8999]));
  ASSERT_EQ(AgeBucket(youngest), AgeBucket(oldest));
  ASSERT_LT(youngest, oldest);
  for (const uint64_t allowed : {crowd.first, crowd.first + 4321}) crowd.ExpectKept(allowed);
}

TEST(SelectKeptTiesTest, ReportsThatMoreEdgesThanItCanListHaveOneAge) {
  const Crowd crowd(8193, 0.0);  // one more than a list has room for
  DeviceCase device(crowd.host, {CapOf(crowd.first + 100)});
  device.Select();
  const DeviceCap cap = device.Caps()[0];
  EXPECT_EQ(cap.failed, 1);
  EXPECT_EQ(cap.drawn, crowd.drawn.edges.size());
  EXPECT_EQ(testing::List(device, 8193).keys.size(), 0u);  // the allowance holds all the same
}

TEST(SelectKeptTiesTest, SelectsAmongAsManyEdgesOfOneAgeAsItCanList) {
  const Crowd crowd(8100, 0.0);  // and some that are near
  crowd.ExpectKept(crowd.first + 6000);
}

}  // namespace
}  // namespace edgewise::cuda
