// Sequences of work that are started as one graph give what the same calls give one by one.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/backend.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/graph_layers.h"

namespace edgewise {
namespace {

using testing::Compare;
using testing::ExpectSame;
using testing::Got;
using testing::Layers;
using testing::Make;
using testing::Place;
using testing::Random;
using testing::SameBytes;
using testing::Spec;

DrawnRows Drawn(uint64_t seed) { return {.self_loops = true, .key = {seed, 1, 2, 3}}; }

TEST(BackendGraphTest, ARepeatedShapeIsInstantiatedOnce) {
  for (const char* precision : {"fp32", "bf16"}) {
    std::vector<Spec> specs;
    for (uint32_t seed = 1; seed <= 6; ++seed) specs.push_back({.pattern = Drawn(seed), .seed = seed});
    specs.back().lengths = {11, 50};  // another grid is not another shape
    const emulator::GraphCounts counts = Compare(specs, precision);
    EXPECT_EQ(counts.launched, 6u) << precision;
    EXPECT_EQ(counts.instantiated, 1u) << precision;
    EXPECT_EQ(counts.updated, 5u) << precision;
    EXPECT_EQ(counts.refused, 0u) << precision;
  }
}

TEST(BackendGraphTest, ChangingShapesCapsAndReports) {
  std::vector<Spec> specs;
  for (uint32_t round = 0; round < 3; ++round) {
    specs.push_back({.pattern = Drawn(round), .seed = round});
    specs.push_back({.pattern = AllPairs{}, .seed = round});
    specs.push_back({.lengths = {7}, .pattern = Drawn(round), .cap = 20, .all_reports = true, .seed = round});
    specs.push_back({.pattern = Drawn(round), .ledger = true, .seed = round});
    specs.push_back({.lengths = {64, 3, 9}, .pattern = Drawn(round), .cap = 100, .ledger = true, .seed = round});
    specs.push_back({.pattern = AllPairs{true}, .all_reports = true, .seed = round});
  }
  for (const char* precision : {"fp32", "bf16"}) {
    const emulator::GraphCounts counts = Compare(specs, precision);
    EXPECT_EQ(counts.launched, specs.size());
    EXPECT_LE(counts.instantiated, 6u);
    EXPECT_EQ(counts.refused, 0u);
  }
}

TEST(BackendGraphTest, AReportThatWantsAGraphStartsWhatIsHeldBack) {
  std::vector<Spec> specs;
  for (uint32_t seed = 0; seed < 4; ++seed) {
    specs.push_back({.pattern = Drawn(seed), .cap = 60, .graph = seed % 2 == 1, .seed = seed});
  }
  specs.push_back({.pattern = AllPairs{}, .graph = true});
  Compare(specs);
}

TEST(BackendGraphTest, MoreShapesThanAreKept) {
  const emulator::GraphCounts before = emulator::Graphs();
  {
    const auto backend = Make("1");
    const Buffer from = Place(*backend, Random(64, 7)), to = *backend->Allocate(64);
    const Matrix x(from.data(), 2, 32), y(to.data(), 2, 32);
    for (int layer = 0; layer < 40; ++layer) {
      const auto norms = [&] {
        absl::Status status;
        for (int i = 0; i <= layer % 20; ++i) status.Update(backend->LayerNorm(x, from.data(), from.data(), 1e-5f, y));
        return status;
      };
      EXPECT_TRUE(InSequence(*backend, norms).ok());
    }
  }
  EXPECT_EQ(emulator::Graphs().instantiated - before.instantiated, 40u);
  const int64_t live = emulator::Graphs().live;
  EXPECT_EQ(live, 0) << "all go with the backend";
}

TEST(BackendGraphTest, OtherWorkOfTheSameLength) {
  const auto backend = Make("1");
  const Buffer from = Place(*backend, Random(64, 7)), to = *backend->Allocate(256);
  const Matrix x(from.data(), 2, 32), y(to.data(), 2, 32);
  const std::unique_ptr<EdgeLedger> ledger = *backend->MakeLedger(5);
  const auto norm = [&] { return backend->LayerNorm(x, from.data(), from.data(), 1e-5f, y); };
  const auto copy = [&] { return backend->CopyLedger(*ledger).status(); };
  const emulator::GraphCounts before = emulator::Graphs();
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(InSequence(*backend, norm).ok());
    EXPECT_TRUE(InSequence(*backend, [&] { return backend->PairFeatures(x, x, Matrix(to.data(), 2, 128)); }).ok());
  }
  emulator::GraphCounts after = emulator::Graphs();
  EXPECT_EQ(after.instantiated - before.instantiated, 2u);
  EXPECT_EQ(after.refused, before.refused);
  // The same kernels, but not the same places of the copy: an executable graph that refuses is replaced.
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(InSequence(*backend, [&] { return copy().ok() ? norm() : copy(); }).ok());
    EXPECT_TRUE(InSequence(*backend, [&] { return norm().ok() ? copy() : norm(); }).ok());
  }
  after = emulator::Graphs();
  EXPECT_EQ(after.refused - before.refused, 3u);
  EXPECT_EQ(after.instantiated - before.instantiated, 6u);
  EXPECT_EQ(after.launched - before.launched, 10u);
}

TEST(BackendGraphTest, OffUnlessAskedFor) {
  const uint64_t before = emulator::Graphs().launched;
  for (const char* value : {static_cast<const char*>(nullptr), "0", ""}) {
    const auto backend = Make(value);
    Layers layers(*backend);
    ASSERT_TRUE(layers.Run({}).ok());
    layers.Finish();
  }
  EXPECT_EQ(emulator::Graphs().launched, before);
}

// Layers of which the second fails, on both backends alike.
TEST(BackendGraphTest, AnErrorInBetweenLeavesTheOthersAsTheyAre) {
  const auto plain = Make(nullptr), graphs = Make("1");
  std::vector<Got> got[2];
  uint64_t left[2] = {};
  int which = 0;
  for (Backend* backend : {plain.get(), graphs.get()}) {
    Layers layers(*backend);
    EXPECT_TRUE(layers.Run({.pattern = Drawn(1), .ledger = true}).ok());
    EXPECT_EQ(layers.Run({.pattern = Drawn(2), .ledger = true}, absl::AbortedError("x")).code(),
              absl::StatusCode::kAborted);
    EXPECT_TRUE(layers.Run({.pattern = Drawn(3), .cap = 50}).ok());
    got[which] = layers.Finish(&left[which]);
    ++which;
  }
  ExpectSame(got[1], got[0]);
  EXPECT_EQ(left[1], left[0]);
}

TEST(BackendGraphTest, ACaptureThatFailsIsOneErrorAndNoMoreGraphs) {
  const auto plain = Make(nullptr), graphs = Make("1");
  Layers want(*plain), layers(*graphs);
  const std::vector<Spec> specs = {{.pattern = Drawn(1), .all_reports = true}, {.pattern = Drawn(3), .cap = 50}};
  for (const Spec& spec : specs) ASSERT_TRUE(want.Run(spec).ok());
  ASSERT_TRUE(layers.Run(specs[0]).ok());
  emulator::FailGraphs(1, 0);
  const absl::Status failed = layers.Run({.pattern = Drawn(2)});
  EXPECT_EQ(failed.code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(graphs->lost());
  layers.DropLast();  // nothing will be told of it
  const uint64_t launched = emulator::Graphs().launched;
  ASSERT_TRUE(layers.Run(specs[1]).ok());
  EXPECT_EQ(emulator::Graphs().launched, launched);
  ExpectSame(layers.Finish(), want.Finish());
}

TEST(BackendGraphTest, NoMemoryForAGraphMakesRoomOnce) {
  const auto graphs = Make("1");
  Layers layers(*graphs);
  ASSERT_TRUE(layers.Run({.pattern = AllPairs{}}).ok());
  emulator::FailGraphs(0, 1);
  EXPECT_TRUE(layers.Run({.pattern = Drawn(1)}).ok());
  emulator::FailGraphs(0, 2);
  EXPECT_EQ(layers.Run({.pattern = Drawn(1), .cap = 5}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(layers.Run({.pattern = Drawn(1), .cap = 5}).ok());
  const std::vector<Got> got = layers.Finish();
  EXPECT_GT(got[1].reports[0].heads[0].edges, 0u);
  EXPECT_GT(got[3].reports[0].heads[0].edges, 0u);
}

TEST(BackendGraphTest, RunningOutOfMemoryInBetween) {
  const auto plain = Make(nullptr), graphs = Make("1");
  Layers want(*plain), layers(*graphs);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(want.Run({.pattern = Drawn(5)}).ok());
  ASSERT_TRUE(layers.Run({.pattern = Drawn(5)}).ok());
  const uint64_t launched = emulator::Graphs().launched;
  const absl::Status status = InSequence(*graphs, [&]() -> absl::Status {
    absl::StatusOr<Buffer> some = graphs->Allocate(1000);
    absl::Status within = graphs->LayerNorm(Matrix(some->data(), 10, 32), some->data(), some->data(), 1e-5f,
                                            Matrix(some->data(), 10, 32));
    emulator::SetMemoryLimit(emulator::LiveBytes());
    if (within.ok()) within = graphs->Allocate(1 << 20).status();
    emulator::SetMemoryLimit(SIZE_MAX);
    return within;
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(emulator::Graphs().launched, launched + 1) << "what was held back ran before memory was looked for";
  ASSERT_TRUE(layers.Run({.pattern = Drawn(5)}).ok());
  ExpectSame(layers.Finish(), want.Finish());
}

TEST(BackendGraphTest, ALostDeviceIsTold) {
  const auto graphs = Make("1");
  {
    Layers layers(*graphs);
    ASSERT_TRUE(layers.Run({.pattern = Drawn(1)}).ok());
    emulator::FailAfter(2);
    EXPECT_EQ(layers.Run({.pattern = Drawn(1)}).code(), absl::StatusCode::kInternal);
    EXPECT_TRUE(graphs->lost());
    emulator::FailAfter(-1);
  }
}

// Waiting calls within a sequence see what came before them.
TEST(BackendGraphTest, WaitingCallsStartWhatIsHeldBack) {
  const auto backend = Make("1");
  const std::vector<float> values = Random(64, 7);
  const Buffer from = Place(*backend, values), to = Place(*backend, Random(64, 8));
  const std::vector<int64_t> rows = {1, 0};
  const auto gather = [&] {
    return backend->GatherRows(ConstMatrix(from.data(), 2, 32), rows, Matrix(to.data(), 2, 32));
  };
  std::vector<float> back(64), swapped(values.begin() + 32, values.end());
  swapped.insert(swapped.end(), values.begin(), values.begin() + 32);
  std::unique_ptr<EdgeLedger> ledger;
  const absl::Status status = InSequence(*backend, [&]() -> absl::Status {
    absl::Status within = gather();
    if (within.ok()) within = backend->Download(to.data(), back);
    EXPECT_TRUE(SameBytes(back, swapped));
    if (within.ok()) within = backend->BeginSequence();
    ledger = *backend->MakeLedger(77);
    EXPECT_EQ(*backend->Remaining(*ledger), 77u);
    if (within.ok()) within = backend->BeginSequence();
    if (within.ok()) within = gather();
    if (within.ok()) within = backend->Throttle();
    if (within.ok()) within = backend->BeginSequence();
    if (within.ok()) within = gather();
    if (within.ok()) within = backend->Upload(values, to.data());
    if (within.ok()) within = backend->Download(to.data(), back);
    EXPECT_TRUE(SameBytes(back, values));
    if (within.ok()) within = backend->BeginSequence();
    if (within.ok()) within = gather();
    const auto weights = backend->PrepareLinear(values, {}, 8, 8, Activation::kNone);
    EXPECT_TRUE(weights.ok());
    return within;
  });
  EXPECT_TRUE(status.ok()) << status;
}

// Small arrays that fill more memory than is ever waited for, within a sequence and after it.
TEST(BackendGraphTest, StagingWithinASequenceIsNotUsedTwice) {
  const auto backend = Make("1");
  constexpr int64_t kRows = 60000;  // 480 KB of indices
  const std::vector<float> values = Random(256, 9);
  const Buffer from = Place(*backend, values);
  std::vector<Buffer> to;
  for (int i = 0; i < 20; ++i) to.push_back(*backend->Allocate(kRows));
  size_t bytes = 0;
  for (int round = 0; round < 5; ++round) {
    const auto index = [&](int i, int64_t r) { return (r * 7 + i * 31 + round * 3) % 256; };
    const auto gather = [&](int i) {
      std::vector<int64_t> rows(kRows);
      for (int64_t r = 0; r < kRows; ++r) rows[r] = index(i, r);
      return backend->GatherRows(ConstMatrix(from.data(), 256, 1), rows, Matrix(to[i].data(), kRows, 1));
    };
    const absl::Status status = InSequence(*backend, [&] {
      absl::Status within;
      for (int i = 0; i < 20 && within.ok(); ++i) within = gather(i);
      return within;
    });
    ASSERT_TRUE(status.ok()) << status;
    if (round == 2) bytes = emulator::LiveBytes();  // a round begins within a chunk: not all need as many
    std::vector<float> back(kRows);
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(backend->Download(to[i].data(), back).ok());
      for (int64_t r = 0; r < kRows; ++r) ASSERT_EQ(back[r], values[index(i, r)]) << round << " " << i << " " << r;
    }
  }
  EXPECT_EQ(emulator::LiveBytes(), bytes) << "chunks are used again";
}

// Memory that goes while other streams are captured: nothing that waits for the device meets a capture.
TEST(BackendGraphTest, WeightsMayGoOnOtherThreads) {
  std::vector<std::unique_ptr<Backend>> backends;
  for (int b = 0; b < 2; ++b) backends.push_back(Make("1"));
  const auto third = Make("1");
  std::vector<std::thread> threads;
  std::vector<Got> got[2];
  std::atomic<int> running = 2;
  for (int b = 0; b < 2; ++b) {
    threads.emplace_back([&, b] {
      Layers layers(*backends[b]);
      for (uint32_t i = 0; i < 12; ++i) EXPECT_TRUE(layers.Run({.lengths = {9}, .pattern = Drawn(i), .seed = i}).ok());
      got[b] = layers.Finish();
      --running;
    });
  }
  threads.emplace_back([&] {
    for (uint32_t i = 0; running > 0; ++i) {
      EXPECT_TRUE(third->PrepareLinear(Random(64, i), {}, 8, 8, Activation::kNone).ok());
    }
  });
  for (std::thread& thread : threads) thread.join();
  ExpectSame(got[0], got[1]);
}

}  // namespace
}  // namespace edgewise
