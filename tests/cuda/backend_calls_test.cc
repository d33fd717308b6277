// Calls of a backend one behind the other: several before one wait, failures in between, and weights that go meanwhile.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/linked_backend.h"
#include "tests/kernels/devices.h"
#include "tests/kernels/random_floats.h"

namespace edgewise {
namespace {

using testing::Case;
using testing::DrawnFrom;
using testing::ExpectSameReports;
using testing::MakeLinked;
using testing::Outcome;
using testing::Place;
using testing::PlacedCase;
using testing::Random;
using testing::RunOn;
using testing::SameBytes;
using testing::Shape;

std::unique_ptr<Case> DrawnCase(uint32_t seed) {
  Shape shape;
  shape.lengths = {20, 33};
  shape.seed = seed;
  auto made = std::make_unique<Case>(shape);
  made->AddProblems(DrawnFrom(seed), 0);
  for (const auto& report : made->reports) report->wanted.expected = report->wanted.key_degrees = true;
  return made;
}

TEST(BackendMemoryTest, WeightsAreThoseOfModelsAndLastAsLong) {
  const auto backend = MakeLinked("bf16");
  const auto weights = [&] { return backend->Memory()->weights; };
  const uint64_t before = backend->Memory()->in_use;
  EXPECT_EQ(weights(), 0u);
  const std::vector<float> matrix = Random(64 * 32, 1), vector = Random(64, 2);
  auto embedding = backend->AllocateWeights(1000);
  ASSERT_TRUE(embedding.ok());
  EXPECT_EQ(weights(), 4000u);
  auto linear = backend->PrepareLinear(matrix, vector, 64, 32, Activation::kNone);
  ASSERT_TRUE(linear.ok());
  EXPECT_EQ(weights(), 4000u + 64 * 32 * 2 + 64 * 4) << "in bf16, the bias in float32";
  auto buffer = backend->Allocate(1000);
  ASSERT_TRUE(buffer.ok() && backend->Reserve(1000, 1000).ok());
  EXPECT_EQ(weights(), 4000u + 64 * 32 * 2 + 64 * 4);
  EXPECT_GT(backend->Memory()->in_use, before);
  *embedding = Buffer();
  linear->reset();
  EXPECT_EQ(weights(), 0u);
  const auto last = *backend->PrepareLinear(matrix, {}, 64, 32, Activation::kNone);
  emulator::FailAfter(0);
  EXPECT_FALSE(backend->Linear(*last, buffer->AsMatrix(1, 32), buffer->AsMatrix(1, 64), false, Phase::kDecode).ok());
  EXPECT_FALSE(backend->Memory().has_value()) << "a device that is lost tells nothing";
  emulator::FailAfter(-1);
}

TEST(BackendCallsTest, OneWaitFillsTheReportsOfAllCalls) {
  const auto backend = MakeLinked();
  std::vector<std::unique_ptr<Case>> cases;
  std::vector<std::unique_ptr<PlacedCase>> placed;
  std::vector<std::vector<EdgeCap>> caps;
  std::vector<Outcome> want;
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    cases.push_back(DrawnCase(seed));
    caps.push_back({EdgeCap{seed % 2 == 0 ? 200 : kNoCap}});
    want.push_back(RunOn(*backend, *cases.back(), caps.back()));
    for (const auto& report : cases.back()->reports) report->heads.clear();
    placed.push_back(std::make_unique<PlacedCase>(*backend, *cases.back()));
  }
  for (size_t c = 0; c < cases.size(); ++c) {
    ASSERT_TRUE(backend->Attend(placed[c]->inputs, cases[c]->problems, caps[c], placed[c]->Out()).ok());
  }
  ASSERT_TRUE(backend->Synchronize().ok());
  for (size_t c = 0; c < cases.size(); ++c) {
    SCOPED_TRACE(c);
    Outcome got;
    got.caps = caps[c];
    for (const auto& report : cases[c]->reports) got.reports.push_back(*report);
    ExpectSameReports(got, want[c], 0.0, 0.0);
    EXPECT_EQ(caps[c][0].capped, c % 2 == 1);
  }
  for (size_t c = 0; c < cases.size(); ++c) {
    std::vector<float> out(want[c].out.size());
    ASSERT_TRUE(backend->Download(placed[c]->out.data(), out).ok());
    EXPECT_TRUE(SameBytes(out, want[c].out)) << c;
  }
}

// Each round fills more than a chunk of staging memory with indices.
TEST(BackendCallsTest, StagingMemoryIsUsedAgain) {
  const auto backend = MakeLinked();
  constexpr int64_t kRows = 60000;  // 480 KB of indices
  const std::vector<float> values = Random(256, 9);
  const Buffer from = Place(*backend, values);
  std::vector<Buffer> to;
  for (int i = 0; i < 10; ++i) to.push_back(*backend->Allocate(kRows));
  size_t bytes = 0;
  for (int round = 0; round < 2; ++round) {
    std::vector<std::vector<float>> want;
    for (const Buffer& gathered : to) {
      std::vector<int64_t> rows;
      std::vector<float>& of = want.emplace_back();
      for (int64_t r = 0; r < kRows; ++r) {
        rows.push_back((r * 7 + static_cast<int64_t>(want.size()) * 31 + round * 3) % 256);
        of.push_back(values[rows.back()]);
      }
      ASSERT_TRUE(backend->GatherRows(from.AsMatrix(256, 1), rows, gathered.AsMatrix(kRows, 1)).ok());
    }
    if (round == 0) bytes = emulator::LiveBytes();
    std::vector<float> back(kRows);
    for (size_t i = 0; i < to.size(); ++i) {
      ASSERT_TRUE(backend->Download(to[i].data(), back).ok());
      EXPECT_TRUE(SameBytes(back, want[i])) << round << " " << i;
    }
  }
  EXPECT_EQ(emulator::LiveBytes(), bytes);
}

TEST(BackendCallsTest, ACallWithoutMemoryLeavesTheOthersAsTheyAre) {
  for (const char* precision : {"fp32", "bf16"}) {
    const auto first = DrawnCase(5), second = DrawnCase(6);
    const Outcome want = RunOn(*MakeLinked(precision), *first, {EdgeCap{}});
    const auto backend = MakeLinked(precision);
    const PlacedCase placed(*backend, *second);
    emulator::SetMemoryLimit(emulator::LiveBytes());
    std::vector<Buffer> rest;  // of what the pool has
    for (int64_t floats = 1 << 20; floats > 0;) {
      absl::StatusOr<Buffer> part = backend->Allocate(floats);
      if (part.ok()) rest.push_back(*std::move(part));
      if (!part.ok()) floats /= 2;
    }
    std::vector<EdgeCap> caps(1);
    const absl::Status status = backend->Attend(placed.inputs, second->problems, caps, placed.Out());
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_EQ(backend->Allocate(1 << 20).status().code(), absl::StatusCode::kResourceExhausted);
    emulator::SetMemoryLimit(SIZE_MAX);
    EXPECT_FALSE(backend->lost());
    const Outcome got = RunOn(*backend, *first, {EdgeCap{}});
    EXPECT_TRUE(SameBytes(got.out, want.out)) << precision;
    ExpectSameReports(got, want, 0.0, 0.0);
  }
}

TEST(BackendCallsTest, ALostDeviceIsToldAndItsReportsAreForgotten) {
  const auto backend = MakeLinked();
  const auto made = DrawnCase(1);
  const PlacedCase placed(*backend, *made);
  std::vector<EdgeCap> caps(1);
  ASSERT_TRUE(backend->Attend(placed.inputs, made->problems, caps, placed.Out()).ok());
  EXPECT_FALSE(backend->lost());
  emulator::FailAfter(0);
  EXPECT_EQ(backend->Attend(placed.inputs, made->problems, caps, placed.Out()).code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(backend->lost());
  EXPECT_EQ(backend->Synchronize().code(), absl::StatusCode::kInternal);
  emulator::FailAfter(-1);
  EXPECT_TRUE(backend->Synchronize().ok());
  for (const auto& report : made->reports) {
    for (const HeadReport& head : report->heads) EXPECT_EQ(head.edges, 0u) << "their owners may be gone";
  }
}

TEST(BackendCallsTest, WeightsMayGoOnAnotherThread) {
  const auto backend = MakeLinked();
  const auto made = DrawnCase(3);
  const Outcome want = RunOn(*backend, *made, {EdgeCap{}});
  std::vector<std::unique_ptr<LinearWeights>> weights;
  const auto prepare = [&] {
    for (uint32_t i = 0; i < 40; ++i) {
      weights.push_back(*backend->PrepareLinear(Random(64 * 64, i), {}, 64, 64, Activation::kNone));
    }
  };
  prepare();
  std::thread other([&] { weights.clear(); });
  for (int i = 0; i < 12; ++i) EXPECT_TRUE(SameBytes(RunOn(*backend, *made, {EdgeCap{}}).out, want.out));
  other.join();
  const size_t bytes = emulator::LiveBytes();
  prepare();
  EXPECT_EQ(emulator::LiveBytes(), bytes) << "their memory is used again";
}

}  // namespace
}  // namespace edgewise
