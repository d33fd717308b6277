// Edge caps on the device: the edges that the reference keeps, exactly, whatever the order in which blocks and threads
// run; ledgers over successive calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/attention/age_select.h"
#include "kernels/cuda/attention/kernels.h"
#include "tests/cuda/attention_caps_case.h"
#include "tests/cuda/emulator/emulator.h"

namespace edgewise::cuda {
namespace {

using edgewise::testing::Case;
using edgewise::testing::Shape;
using testing::CapOf;
using testing::DeviceCase;
using testing::DeviceCopies;
using testing::Drawn;
using testing::DrawnUnder;
using testing::ExpectAsReference;
using testing::ExpectCap;
using testing::Get;
using testing::kLaws;
using testing::Select;

TEST(SelectYoungestTest, KeepsWhatTheReferenceKeepsAtEveryShare) {
  for (const Law law : kLaws) {
    Shape shape;
    shape.lengths = {70, 33};
    shape.mean_rate = 0.3;
    shape.gap_share = law == Law::kPoissonSet ? 0.2 : 0.0;
    Case host(shape);
    host.AddProblems(DrawnRows{.law = law, .key = {.seed = 5}}, 0);
    host.AskForAll();
    const uint64_t all = DrawnUnder(host, 0).edges.size();
    for (const uint64_t cap : {all * 9 / 10, all / 2, all / 100, all, all - 1, all + 1, uint64_t{1}, uint64_t{0}}) {
      ExpectAsReference(host, {cap}, "law " + std::to_string(static_cast<int>(law)) + " cap " + std::to_string(cap));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(SelectYoungestTest, KeepsWhatTheReferenceKeepsInRandomCalls) {
  std::mt19937 random(11);
  for (int round = 0; round < 25; ++round) {
    Shape shape;
    shape.seed = static_cast<uint32_t>(round);
    shape.lengths = {static_cast<int>(1 + random() % 90), static_cast<int>(1 + random() % 40), 1};
    shape.heads = static_cast<int>(1 + random() % 3);
    const double rates[] = {0.01, 0.1, 0.5, 2.0};
    shape.mean_rate = rates[random() % 4];
    shape.gap_share = random() % 3 == 0 ? 0.3 : 0.0;
    Case host(shape);
    DrawnRows drawn;
    drawn.law = static_cast<Law>(random() % 3);
    drawn.exploration = random() % 3 == 0 ? 0.01f : 0.0f;
    drawn.self_loops = random() % 2 == 0;
    drawn.local_window = random() % 3 == 0 ? 4 : 0;
    drawn.key.seed = random();
    host.AddProblems(drawn, 0);
    drawn.key.sample = 1;
    host.AddProblems(drawn, 1);
    host.problems[3].cap = 2;
    host.problems[4].cap = -1;
    host.AskForAll();
    std::vector<uint64_t> caps;
    for (int32_t c = 0; c < 3; ++c) {
      const Drawn of_cap = DrawnUnder(host, c);
      caps.push_back(of_cap.forced + random() % (of_cap.edges.size() + 2));
    }
    ExpectAsReference(host, caps, "round " + std::to_string(round));
    if (HasFatalFailure()) return;
  }
}

// A sequence of more than one chunk of keys, so many edges that most buckets have one, and every kind of order.
TEST(SelectYoungestTest, OrdersOfBlocksAndThreadsChangeNothing) {
  Shape shape;
  shape.lengths = {kChunkKeys + 40};
  shape.heads = 1;
  shape.rank = 16;
  shape.mean_rate = 0.01;
  Case host(shape);
  host.AddProblems(DrawnRows{.self_loops = true}, 0);
  const Drawn drawn = DrawnUnder(host, 0);
  DeviceCase device(host, {CapOf(drawn.forced + drawn.edges.size() / 3)});
  for (const emulator::Order order : {emulator::kForward, emulator::kBackward, emulator::Shuffled(1)}) {
    emulator::SetOrder(order);
    Select(device);
    ExpectCap(device.Caps()[0], drawn, drawn.edges.size() / 3, 1, "order " + std::to_string(order.kind));
  }
  emulator::SetOrder(emulator::kForward);
}

TEST(SelectYoungestTest, UndrawnEdgesUseTheAllowanceAndUnlimitedCapsAreLeftAlone) {
  Shape shape;
  shape.lengths = {30};
  shape.heads = 2;
  shape.mean_rate = 0.5;
  Case host(shape);
  host.AddProblems(AllPairs{true}, 0);
  host.AddProblems(DrawnRows{}, 0);
  host.AddProblems(AllPairs{}, 1);
  host.AddProblems(DrawnRows{}, 2);
  host.AskForAll();
  const uint64_t undrawn = 2 * 465;
  ExpectAsReference(host, {undrawn + 100, 1800, 40}, "above");
  ExpectAsReference(host, {undrawn, 1800, 0}, "none are left");
  DeviceCase device(host, {CapOf(undrawn + 3), CapOf(kNoCap), CapOf(kNoCap)});
  Select(device);
  const std::vector<DeviceCap> caps = device.Caps();
  EXPECT_EQ(caps[0].allowed, 3u);
  EXPECT_EQ(caps[1].undrawn, 1800u);
  for (int c : {1, 2}) {
    EXPECT_EQ(caps[c].capped, 0);
    EXPECT_EQ(caps[c].cut.age_bits, ~uint64_t{0});
  }
}

TEST(SelectYoungestTest, ALargerAllowanceKeepsASuperset) {
  Shape shape;
  shape.lengths = {60, 20};
  shape.mean_rate = 0.4;
  Case host(shape);
  host.AddProblems(DrawnRows{.law = Law::kPoissonSet, .self_loops = true}, 0);
  const Drawn drawn = DrawnUnder(host, 0);
  AgedEdge previous = {0, 0};
  for (uint64_t allowed = 0; allowed < drawn.edges.size(); allowed = allowed * 3 / 2 + 1) {
    DeviceCase device(host, {CapOf(drawn.forced + allowed)});
    Select(device);
    const DeviceCap cap = device.Caps()[0];
    ExpectCap(cap, drawn, allowed, device.call.num_heads, std::to_string(allowed));
    const AgedEdge cut = {cap.cut.age_bits, cap.cut.order};
    EXPECT_TRUE(IsBefore(previous, cut)) << allowed;
    previous = cut;
  }
}

// Layers of one sample take from its ledger what they use, as the host's chain of allowances does.
TEST(SelectYoungestTest, LedgersAreChargedInStreamOrder) {
  for (const uint64_t budget : {uint64_t{2500}, uint64_t{4000}, uint64_t{100000}}) {
    Shape shape;
    shape.lengths = {40, 25};
    shape.mean_rate = 0.3;
    DeviceCopies memory;
    uint64_t* ledgers = memory.Put(std::vector<uint64_t>{budget, budget / 2});
    uint64_t remaining[2] = {budget, budget / 2};
    for (int layer = 0; layer < 3; ++layer) {
      shape.seed = static_cast<uint32_t>(layer);
      Case host(shape);
      host.AddProblems(AllPairs{true}, 0);
      host.problems.pop_back();  // of the second sequence
      host.AddProblems(DrawnRows{.self_loops = true, .key = {.layer = static_cast<uint32_t>(layer)}}, 0);
      host.AddProblems(DrawnRows{.key = {.sample = 1, .layer = static_cast<uint32_t>(layer)}}, 1);
      const uint64_t undrawn = layer == 0 ? 2 * 40 * 41 / 2 : 0;
      if (layer > 0) host.problems.erase(host.problems.begin());
      const uint64_t forced = 2 * 65;
      const uint64_t fraction = kWholeShare / (3 - layer) + (layer == 0 ? 1 : 0);
      const BudgetShare shares[2] = {{fraction, undrawn + forced, forced * (2 - layer)}, {fraction, 0, 0}};
      const uint64_t most[2] = {kNoCap, 90};
      DeviceCase device(host, {CapOf(most[0], ledgers, shares[0]), CapOf(most[1], ledgers + 1, shares[1])});
      Select(device);
      const std::vector<DeviceCap> caps = device.Caps();
      for (int c = 0; c < 2; ++c) {
        const Drawn drawn = DrawnUnder(host, c);
        const uint64_t taken = drawn.forced + (c == 0 ? undrawn : 0);
        const uint64_t allowance = std::min(most[c], LayerAllowance(remaining[c], shares[c]));
        const uint64_t allowed = allowance - taken;
        ASSERT_GE(allowance, taken);
        ExpectCap(caps[c], drawn, allowed, 2, "layer " + std::to_string(layer) + " cap " + std::to_string(c));
        remaining[c] -= taken + std::min<uint64_t>(drawn.edges.size(), allowed);
        EXPECT_EQ(Get(ledgers + c, 1)[0], remaining[c]) << layer << " " << c;
      }
    }
  }
}

// More caps than scratch is for: they are settled some at a time, and read what a ledger held before the first.
TEST(SelectYoungestTest, ManyCapsAreSettledInParts) {
  constexpr int kCaps = 2 * kMaxCapsAtOnce + 3;
  Shape shape;
  shape.lengths.assign(kCaps, 9);
  shape.heads = 1;
  shape.mean_rate = 0.4;
  Case host(shape);
  host.AddProblems(DrawnRows{.key = {.seed = 3}}, 0);
  host.AskForAll();
  std::vector<uint64_t> most;
  for (int c = 0; c < kCaps; ++c) {
    host.problems[c].cap = c;
    most.push_back(c % 30);
  }
  ExpectAsReference(host, most, "many");
  EXPECT_EQ(CapScratchBytes(kCaps), CapScratchBytes(kMaxCapsAtOnce));

  constexpr uint64_t kBudget = 20;
  DeviceCopies memory;
  uint64_t* ledger = memory.Put(std::vector<uint64_t>{kBudget});
  std::vector<DeviceCap> caps(kCaps, CapOf(kNoCap));
  caps.front() = caps.back() = CapOf(kNoCap, ledger, {kWholeShare, 0, 0});
  DeviceCase device(host, caps);
  Select(device);
  const std::vector<DeviceCap> got = device.Caps();
  uint64_t left = kBudget;
  for (const int c : {0, kCaps - 1}) {
    const Drawn drawn = DrawnUnder(host, c);
    ExpectCap(got[c], drawn, kBudget, 1, std::to_string(c));
    left -= std::min<uint64_t>(drawn.edges.size(), kBudget);
  }
  EXPECT_EQ(Get(ledger, 1)[0], left);
}

TEST(SelectYoungestTest, ACallWithoutCapsOrRowsIsNoError) {
  Shape shape;
  shape.lengths = {5};
  Case host(shape);
  host.AddProblems(AllPairs{}, 0);
  DeviceCase nothing_drawn(host, {CapOf(50)});
  Select(nothing_drawn);
  ExpectCap(nothing_drawn.Caps()[0], {}, 0, 2, "all pairs");
  DeviceCase no_caps(host, {CapOf(50)});
  no_caps.call.num_caps = 0;
  EXPECT_EQ(SelectYoungest(nullptr, no_caps.call, nullptr), cudaSuccess);
  EXPECT_EQ(CapScratchBytes(0), 0);
}

}  // namespace
}  // namespace edgewise::cuda
