// Sequences of work that are started as one graph give what the same calls give one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda_module.h"
#include "tests/cuda/device_run.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/kernels/attention_cases.h"

extern "C" edgewise::CudaModuleCreate EdgewiseCreateCudaBackend;

namespace edgewise {
namespace {

using testing::Case;
using testing::Place;
using testing::SameBytes;
using testing::Shape;

constexpr int64_t kWidth = 32;  // of Shape's heads together

std::unique_ptr<Backend> Make(const char* graphs, const std::string& precision = "fp32") {
  if (graphs == nullptr) {
    unsetenv("EDGEWISE_CUDA_GRAPHS");
  } else {
    setenv("EDGEWISE_CUDA_GRAPHS", graphs, 1);
  }
  absl::StatusOr<std::unique_ptr<Backend>> backend;
  EdgewiseCreateCudaBackend({"cuda:0", 0, "auto", precision}, 0, &backend);
  EXPECT_TRUE(backend.ok()) << backend.status();
  unsetenv("EDGEWISE_CUDA_GRAPHS");
  return *std::move(backend);
}

std::vector<float> Random(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.3f);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// What is asked of one layer.
struct Spec {
  std::vector<int> lengths = {20, 33};
  AttentionPattern pattern = DrawnRows{};
  uint64_t cap = 0;  // of each layer; 0: none
  bool ledger = false;
  bool all_reports = false;
  bool graph = false;
  uint32_t seed = 1;
};

struct Got {
  std::vector<float> out;
  std::vector<AttentionReport> reports;
  std::vector<bool> capped;
};

// Layers with weights of their own on one backend. Nothing waits between them but what the specs ask for.
class Layers {
 public:
  explicit Layers(Backend& backend) : backend_(backend), norm_(Place(backend, Random(kWidth, 4))) {
    up_ = *backend.PrepareLinear(Random(4 * kWidth * kWidth, 1), Random(4 * kWidth, 2), 4 * kWidth, kWidth,
                                 Activation::kGelu);
    down_ = *backend.PrepareLinear(Random(4 * kWidth * kWidth, 3), {}, kWidth, 4 * kWidth, Activation::kNone);
    ledger_ = *backend.MakeLedger(900);
  }

  // `end`: what the body returns at its end, in place of OK.
  absl::Status Run(const Spec& spec, const absl::Status& end = absl::OkStatus()) {
    Shape shape;
    shape.lengths = spec.lengths;
    shape.seed = spec.seed;
    Layer& layer = *layers_.emplace_back(std::make_unique<Layer>(shape));
    layer.attention.AddProblems(spec.pattern, spec.cap > 0 || spec.ledger ? 0 : -1);
    for (const auto& report : layer.attention.reports) {
      report->want_expected = report->want_key_degrees = spec.all_reports;
      report->want_graph = spec.graph;
    }
    if (spec.cap > 0 || spec.ledger) {
      EdgeCap& cap = layer.caps.emplace_back();
      if (spec.cap > 0) cap.max_edges = spec.cap;
      if (spec.ledger) cap.ledger = ledger_.get();
    }
    const AttentionInputs inputs = PlaceInputs(layer);
    const int64_t rows = layer.attention.out_rows;
    layer.out = *backend_.Allocate(rows * kWidth);
    return InSequence(backend_, [&]() -> absl::Status {
      const Matrix out(layer.out.data(), rows, kWidth);
      absl::StatusOr<Buffer> scratch = backend_.Allocate(rows * kWidth);
      if (!scratch.ok()) return scratch.status();
      const Matrix attended(scratch->data(), rows, kWidth);
      absl::Status status = backend_.Attend(inputs, layer.attention.problems, layer.caps, attended);
      if (status.ok()) status = backend_.FeedForward(*up_, *down_, attended, attended);
      std::vector<int64_t> order(rows);
      std::iota(order.rbegin(), order.rend(), 0);
      if (status.ok()) status = backend_.GatherRows(attended, order, out);
      if (status.ok()) status = backend_.LayerNorm(out, norm_.data(), norm_.data(), 1e-5f, out);
      if (status.ok()) status = backend_.CopyLedger(*ledger_).status();  // freed before it is started
      return status.ok() ? end : status;
    });
  }

  std::vector<Got> Finish(uint64_t* remaining = nullptr) {
    std::vector<Got> got;
    EXPECT_TRUE(backend_.Synchronize().ok());
    for (const auto& layer : layers_) {
      Got& of = got.emplace_back();
      of.out.resize(layer->attention.out_rows * kWidth);
      EXPECT_TRUE(backend_.Download(layer->out.data(), of.out).ok());
      for (const auto& report : layer->attention.reports) of.reports.push_back(*report);
      for (const EdgeCap& cap : layer->caps) of.capped.push_back(cap.capped);
    }
    layers_.clear();
    if (remaining != nullptr) *remaining = *backend_.Remaining(*ledger_);
    return got;
  }

 private:
  struct Layer {
    explicit Layer(const Shape& shape) : attention(shape) {}
    Case attention;
    std::vector<EdgeCap> caps;
    std::vector<Buffer> placed;
    Buffer out;
  };

  AttentionInputs PlaceInputs(Layer& layer) {
    Case& from = layer.attention;
    AttentionInputs inputs = from.inputs;
    const auto place = [&](std::span<const float> host, const float*& pointer) {
      pointer = layer.placed.emplace_back(Place(backend_, host)).data() + (pointer - host.data());
    };
    for (ConstMatrix* matrix : {&inputs.q, &inputs.k, &inputs.v}) place(from.data, matrix->data);
    place(from.x, inputs.memberships.x);
    place(from.y, inputs.memberships.y);
    place(from.query_bound, inputs.memberships.query_bound);
    place(from.key_bound, inputs.memberships.key_bound);
    return inputs;
  }

  Backend& backend_;
  Buffer norm_;
  std::unique_ptr<LinearWeights> up_, down_;
  std::unique_ptr<EdgeLedger> ledger_;
  std::vector<std::unique_ptr<Layer>> layers_;
};

void ExpectSame(const std::vector<Got>& got, const std::vector<Got>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t l = 0; l < want.size(); ++l) {
    SCOPED_TRACE("layer " + std::to_string(l));
    EXPECT_TRUE(SameBytes(got[l].out, want[l].out));
    EXPECT_FALSE(std::isnan(want[l].out[0]));
    EXPECT_EQ(got[l].capped, want[l].capped);
    ASSERT_EQ(got[l].reports.size(), want[l].reports.size());
    for (size_t p = 0; p < want[l].reports.size(); ++p) {
      ASSERT_EQ(got[l].reports[p].heads.size(), want[l].reports[p].heads.size());
      for (size_t h = 0; h < want[l].reports[p].heads.size(); ++h) {
        const HeadReport &a = got[l].reports[p].heads[h], &b = want[l].reports[p].heads[h];
        EXPECT_EQ(a.edges, b.edges);
        EXPECT_EQ(a.isolated, b.isolated);
        EXPECT_EQ(a.expected, b.expected);
        EXPECT_EQ(a.key_degrees, b.key_degrees);
        EXPECT_EQ(a.graph.keys, b.graph.keys);
        EXPECT_EQ(a.graph.weights, b.graph.weights);
      }
    }
  }
}

// Runs the specs on a backend with graphs and on one without; returns what became of graphs meanwhile.
emulator::GraphCounts Compare(const std::vector<Spec>& specs, const std::string& precision = "fp32") {
  const auto plain = Make(nullptr, precision), graphs = Make("1", precision);
  Layers one_by_one(*plain), together(*graphs);
  for (const Spec& spec : specs) EXPECT_TRUE(one_by_one.Run(spec).ok());
  uint64_t want_left = 0, left = 0;
  const std::vector<Got> want = one_by_one.Finish(&want_left);
  const emulator::GraphCounts before = emulator::Graphs();
  for (const Spec& spec : specs) EXPECT_TRUE(together.Run(spec).ok());
  const emulator::GraphCounts after = emulator::Graphs();
  ExpectSame(together.Finish(&left), want);
  EXPECT_EQ(left, want_left);
  return {after.instantiated - before.instantiated, after.updated - before.updated, after.refused - before.refused,
          after.launched - before.launched, 0};
}

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
  std::vector<Spec> specs;
  for (int round = 0; round < 2; ++round) {
    for (int count = 1; count <= 20; ++count) {
      // One launch for the key degrees of every sequence.
      Spec spec = {.lengths = std::vector<int>(count, 3), .pattern = Drawn(count), .all_reports = true};
      specs.push_back(spec);
    }
  }
  EXPECT_EQ(Compare(specs).instantiated, 40u);
  const int64_t live = emulator::Graphs().live;
  EXPECT_EQ(live, 0) << "all go with the backend";
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
  const uint64_t launched = emulator::Graphs().launched;
  ASSERT_TRUE(layers.Run(specs[1]).ok());
  EXPECT_EQ(emulator::Graphs().launched, launched);
  std::vector<Got> got = layers.Finish();
  EXPECT_EQ(got[1].reports[0].heads[0].edges, 0u) << "never ran, and nothing is told of it";
  got.erase(got.begin() + 1);
  ExpectSame(got, want.Finish());
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
  for (int round = 0; round < 3; ++round) {
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
    if (round == 1) bytes = emulator::LiveBytes();
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
  for (int b = 0; b < 2; ++b) {
    threads.emplace_back([&, b] {
      Layers layers(*backends[b]);
      for (uint32_t i = 0; i < 12; ++i) EXPECT_TRUE(layers.Run({.lengths = {9}, .pattern = Drawn(i), .seed = i}).ok());
      got[b] = layers.Finish();
    });
  }
  threads.emplace_back([&] {
    for (uint32_t i = 0; i < 40; ++i)
      EXPECT_TRUE(third->PrepareLinear(Random(64, i), {}, 8, 8, Activation::kNone).ok());
  });
  for (std::thread& thread : threads) thread.join();
  ExpectSame(got[0], got[1]);
}

}  // namespace
}  // namespace edgewise
