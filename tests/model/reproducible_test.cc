// Promises 4 and 7 (docs/promises.md): an answer depends on the model, the input, the seed and the budget, and on
// nothing else.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>

#include "model/kinds/kind.h"
#include "model/load/load.h"
#include "tests/model/cancelling_backend.h"
#include "tests/model/events_backend.h"
#include "tests/model/model_builder.h"
#include "tests/model/model_kinds.h"
#include "tests/model/run_model.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;

class ReproducibleTest : public ::testing::TestWithParam<ModelKind> {
 protected:
  ReproducibleTest() { WriteModel(folder_.path(), ConfigOf(GetParam()), 5); }

  std::vector<ModelInput> Inputs(const Model& model) const {
    std::vector<ModelInput> inputs;
    std::mt19937_64 random(11);
    for (int i = 0; i < 12; ++i) {
      inputs.push_back(RandomInput(GetParam(), model, random, 60));
      inputs.back().seed = random() % 3;  // strangers may share a seed
      inputs.back().samples = 1 + i % 4;
      inputs.back().dense = i % 5 == 4;
      if (i % 3 == 2) inputs.back().attention = nullptr;  // the model's own among those with an override
      if (i % 4 != 1) continue;
      const uint64_t least = std::max<uint64_t>(1, model.LeastEdges(inputs.back()));
      inputs.back().max_edges = least + (model.Pairs(inputs.back()) - least) / 3;
    }
    return inputs;
  }

  TemporaryFolder folder_;
};

TEST_P(ReproducibleTest, AloneAndAmongStrangersTheBytesAreTheSame) {
  const LoadedModel loaded = LoadModel(folder_.path());
  const std::vector<ModelInput> inputs = Inputs(*loaded);
  std::vector<InputResult> alone;
  for (const ModelInput& input : inputs) alone.push_back(RunOne(*loaded, input));
  std::mt19937_64 random(12);
  for (int trial = 0; trial < 8; ++trial) {
    std::vector<size_t> order;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (random() % 2 == 0) order.push_back(i);
    }
    std::shuffle(order.begin(), order.end(), random);
    std::vector<ModelInput> batch;
    for (size_t i : order) batch.push_back(inputs[i]);
    const std::vector<InputResult> results = RunAll(*loaded, batch);
    for (size_t i = 0; i < order.size(); ++i)
      ASSERT_TRUE(SameBytes(results[i], alone[order[i]])) << "input " << order[i];
    Pass::Options options;
    options.max_wave_tokens = 1 + static_cast<int64_t>(random() % 200);  // groups and waves cut anywhere
    const std::vector<InputResult> cut = RunAll(*loaded, batch, options);
    for (size_t i = 0; i < order.size(); ++i) ASSERT_TRUE(SameBytes(cut[i], alone[order[i]])) << "input " << order[i];
  }
}

TEST_P(ReproducibleTest, ThreadsAndRestartsChangeNoByte) {
  std::vector<InputResult> first;
  for (const int threads : {1, 2, 4, 1}) {
    const LoadedModel loaded = LoadModel(folder_.path(), threads);
    const std::vector<InputResult> results = RunAll(*loaded, Inputs(*loaded));
    if (first.empty()) {
      for (const InputResult& result : results) first.push_back(result);
    }
    for (size_t i = 0; i < results.size(); ++i) ASSERT_TRUE(SameBytes(first[i], results[i])) << threads << " threads";
  }
}

TEST_P(ReproducibleTest, ADroppedInputLeavesTheOthersAlone) {
  auto backend = std::make_unique<CancellingBackend>(MakeBackend());
  const CancellingBackend& counted = *backend;
  const LoadedModel loaded = LoadModel(folder_.path(), std::move(backend));
  const std::vector<ModelInput> inputs = Inputs(*loaded);
  const std::vector<InputResult> whole = RunAll(*loaded, inputs);
  int first_drawn = loaded->config().num_hidden_layers;
  for (const ModelInput& input : inputs) {
    first_drawn = std::min(first_drawn, FirstDrawnLayer(AttentionOf(loaded->config(), input)));
  }
  const int wave_starts = first_drawn;  // in the step after so many; it attends for every sample
  for (int steps = 0; steps < 3; ++steps) {
    Pass pass(*loaded, inputs, {});
    for (int s = 0; s < steps && !pass.done(); ++s) ASSERT_TRUE(pass.Step().ok());
    const int64_t calls = counted.calls(), problems = counted.last_problems();
    for (int64_t i = 0; i < static_cast<int64_t>(inputs.size()); i += 2) pass.Cancel(i, absl::CancelledError("gone"));
    ASSERT_TRUE(pass.Step().ok());
    if (steps > wave_starts && counted.calls() > calls) {
      EXPECT_LT(counted.last_problems(), problems) << "it has left the batch";
    }
    while (!pass.done()) ASSERT_TRUE(pass.Step().ok());
    for (size_t i = 0; i < inputs.size(); ++i) {
      const InputResult result = pass.TakeResult(static_cast<int64_t>(i));
      if (i % 2 == 1) {
        EXPECT_TRUE(SameBytes(result, whole[i])) << "input " << i << " after " << steps << " steps";
      } else if (result.sample_results.empty()) {
        EXPECT_EQ(result.status, absl::CancelledError("gone"));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ReproducibleTest, ::testing::ValuesIn(ModelKinds()),
                         [](const auto& info) { return info.param.name; });

// How often two heads' draws of the same n x n pairs met, against what independence and equality of the random numbers
// would give, over many seeds.
struct Overlap {
  explicit Overlap(int n) : n(n) {}
  void Add(const HeadEdges& a, const HeadEdges& b) {
    std::vector<int> hits(static_cast<size_t>(n) * n, 0);
    for (int i = 0; i < n; ++i) {
      for (int64_t e = a.row_offsets[i]; e < a.row_offsets[i + 1]; ++e) hits[i * n + a.keys[e]] |= 1;
      for (int64_t e = b.row_offsets[i]; e < b.row_offsets[i + 1]; ++e) hits[i * n + b.keys[e]] |= 2;
    }
    for (int hit : hits) {
      both += hit == 3;
      first += hit & 1;
      second += hit >> 1;
    }
    pairs += static_cast<double>(n) * n;
  }
  // Rates of these models spread little, so independent draws meet in close to the product of their densities; equal
  // random numbers would meet in close to the smaller density.
  void ExpectIndependent() const {
    const double product = first / pairs * (second / pairs);
    EXPECT_GT(both / pairs, product * 0.98);
    EXPECT_LT(both / pairs, 0.5 * (product + std::min(first, second) / pairs));
  }
  int n;
  double both = 0.0, first = 0.0, second = 0.0, pairs = 0.0;
};

// Else the suites that run on it would say nothing of events.
TEST(EventsBackendTest, DrawsOtherEdgesThanTheRule) {
  const ModelKind kind = ModelKinds()[0];
  const TemporaryFolder folder;
  WriteModel(folder.path(), ConfigOf(kind), 5);
  const LoadedModel pairs = LoadModel(folder.path(), *CreateBackend({.device = "cpu"}));
  const LoadedModel events =
      LoadModel(folder.path(), std::make_unique<EventsBackend>(*CreateBackend({.device = "cpu"})));
  std::mt19937_64 random(3);
  ModelInput input = RandomInput(kind, *pairs, random);
  input.wanted.graph = true;
  const InputResult a = RunOne(*pairs, input), b = RunOne(*events, input);
  const auto keys = [](const InputResult& result) { return result.graph->layers.at(0).at(0).keys; };
  EXPECT_NE(keys(a), keys(b));
}

TEST(PairTest, TheTwoSequencesDrawIndependently) {
  json config = SmallConfig();
  config["task"] = "pair-classification";
  config["num_hidden_layers"] = 1;
  const TemporaryFolder folder;
  const LoadedModel loaded = LoadModel(WriteModel(folder.path(), config));
  const std::vector<int32_t> ids = RandomTokens(40, 50, 1);
  ModelInput input = MakeInput(*loaded, ids, ids);
  input.wanted.graph = true;
  Overlap overlap(40);
  for (input.seed = 0; input.seed < 20; ++input.seed) {
    const InputResult result = RunOne(*loaded, input);
    for (size_t h = 0; h < 2; ++h) overlap.Add(result.graph->layers[0][h], result.graph->layers[1][h]);
  }
  overlap.ExpectIndependent();
}

TEST(TiedLayersTest, ApplicationsOfOneLayerDrawIndependently) {
  json config = SmallConfig();
  config["tied_layers"] = true;
  const TemporaryFolder folder;
  const LoadedModel loaded = LoadModel(WriteModel(folder.path(), config));
  ModelInput input = MakeInput(*loaded, RandomTokens(40, 50, 1));
  input.wanted.graph = true;
  Overlap layers(40), samples(40);
  for (input.seed = 0; input.seed < 20; ++input.seed) {
    input.first_sample = 0;
    const InputResult result = RunOne(*loaded, input);
    input.first_sample = 1;
    const InputResult next = RunOne(*loaded, input);
    for (size_t h = 0; h < 2; ++h) {
      layers.Add(result.graph->layers[0][h], result.graph->layers[1][h]);
      samples.Add(result.graph->layers[0][h], next.graph->layers[0][h]);
    }
  }
  layers.ExpectIndependent();
  samples.ExpectIndependent();
}

TEST(NonFiniteTest, AnInputThatOverflowsFailsAloneAndTheOthersKeepTheirBytes) {
  json config = SmallConfig();
  const TemporaryFolder folder;
  auto tensors = RandomTensors(config, 1);
  // Only token 49 at position 10 overflows; the self-test does not see it.
  tensors["embeddings.word.weight"].values[49 * 32] = 3e38f;
  tensors["embeddings.position.weight"].values[10 * 32] = 3e38f;
  WriteFile(folder.path() + "/config.json", config.dump());
  WriteFile(folder.path() + "/model.safetensors", SafetensorsBytes(tensors));
  const LoadedModel loaded = LoadModel(folder.path());
  const ModelInput good = MakeInput(*loaded, {1, 2, 3, 4, 5});
  const ModelInput bad = MakeInput(*loaded, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 49, 3});
  const std::vector<InputResult> results = RunAll(*loaded, {good, bad, good});
  EXPECT_EQ(results[1].status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(std::string(results[1].status.message()).find("NON_FINITE_OUTPUT"), std::string::npos);
  EXPECT_TRUE(SameBytes(results[0], RunOne(*loaded, good)));
  EXPECT_TRUE(SameBytes(results[0], results[2]));
}

}  // namespace
}  // namespace edgewise::testing
