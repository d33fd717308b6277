// Layers of work on a CUDA backend in sequences of their own (Backend::BeginSequence), and the comparison of what they
// give with and without graphs.
#ifndef EDGEWISE_TESTS_CUDA_GRAPH_LAYERS_H_
#define EDGEWISE_TESTS_CUDA_GRAPH_LAYERS_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda_module.h"
#include "tests/cuda/device_run.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/kernels/attention_cases.h"

extern "C" edgewise::CudaModuleCreate EdgewiseCreateCudaBackend;

namespace edgewise::testing {

inline constexpr int64_t kWidth = 32;  // of Shape's heads together

// EDGEWISE_CUDA_GRAPHS is `graphs` while the backend is made; null: not set.
inline std::unique_ptr<Backend> Make(const char* graphs, const std::string& precision = "fp32") {
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

inline std::vector<float> Random(size_t count, uint32_t seed) {
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
  const DropFlag* drop = nullptr;            // of the first sequence
  std::function<void()> before_end = [] {};  // called when everything was enqueued, before the sequence ends
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
    layer.attention.problems[0].drop = spec.drop;
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
      spec.before_end();
      return status.ok() ? end : status;
    });
  }

  void DropLast() { layers_.pop_back(); }

  // Waits, and forgets the layers.
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

inline void ExpectSame(const std::vector<Got>& got, const std::vector<Got>& want) {
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
inline emulator::GraphCounts Compare(const std::vector<Spec>& specs, const std::string& precision = "fp32") {
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

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_CUDA_GRAPH_LAYERS_H_
