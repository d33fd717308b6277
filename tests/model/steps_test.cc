// A layer of many rows runs in several steps, between which the backend does other work: the bytes are the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "model/forward/pass.h"
#include "model/kinds/kind.h"
#include "tests/model/model_kinds.h"
#include "tests/model/run_model.h"
#include "tests/model/wave_config.h"

namespace edgewise::testing {
namespace {

// Of all lengths and samples, every third under a budget, every second with its expected edges.
std::vector<ModelInput> Inputs(const ModelKind& kind, const Model& model) {
  std::vector<ModelInput> inputs;
  std::mt19937_64 random(5);
  for (int i = 0; i < 6; ++i) {
    ModelInput& input = inputs.emplace_back(RandomInput(kind, model, random, 60));
    input.seed = i;
    input.samples = 1 + i % 3;
    input.wanted.expected = i % 2 == 0;
    if (i % 3 != 1) continue;
    const uint64_t least = std::max<uint64_t>(1, model.LeastEdges(input));
    input.max_edges = least + (model.Pairs(input) - least) / 4;
  }
  return inputs;
}

class StepsTest : public ::testing::TestWithParam<ModelKind> {};

TEST_P(StepsTest, PassesThatTakeTurnsWithinALayerGiveTheSameBytes) {
  const TemporaryFolder folder;
  const LoadedModel loaded = LoadModel(WriteModel(folder.path(), ConfigOf(GetParam())), 2);
  const std::vector<ModelInput> inputs = Inputs(GetParam(), *loaded);
  const std::vector<InputResult> whole = RunAll(*loaded, inputs);
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 4; ++trial) {
    std::vector<std::unique_ptr<Pass>> passes;
    for (int p = 0; p < 3; ++p) {
      const int64_t rows = 1 + static_cast<int64_t>(random() % 60);
      passes.push_back(std::make_unique<Pass>(*loaded, inputs, Pass::Options{.step_rows = rows}));
    }
    for (size_t left = passes.size(); left > 0;) {
      Pass& pass = *passes[random() % passes.size()];
      if (pass.done()) continue;
      ASSERT_TRUE(pass.Step().ok());
      if (pass.done()) --left;
    }
    for (const auto& pass : passes) {
      for (size_t i = 0; i < inputs.size(); ++i) {
        const InputResult result = pass->TakeResult(static_cast<int64_t>(i));
        ASSERT_TRUE(result.status.ok()) << result.status;
        ASSERT_TRUE(SameBytes(result, whole[i])) << "input " << i;
        ASSERT_EQ(result.expected_edges, whole[i].expected_edges) << "input " << i;
      }
    }
  }
}

TEST_P(StepsTest, APassThatIsDroppedWithinALayerLeavesTheOthersAlone) {
  const TemporaryFolder folder;
  const LoadedModel loaded = LoadModel(WriteModel(folder.path(), ConfigOf(GetParam())), 2);
  const std::vector<ModelInput> inputs = Inputs(GetParam(), *loaded);
  const std::vector<InputResult> whole = RunAll(*loaded, inputs);
  for (int steps = 1; steps < 250; steps += 9) {  // to all stages of the first layers
    Pass stays(*loaded, inputs, {.step_rows = 20});
    {
      Pass leaves(*loaded, inputs, {.step_rows = 20});
      for (int s = 0; s < steps; ++s) {
        ASSERT_TRUE(leaves.Step().ok());
        ASSERT_TRUE(stays.Step().ok());
      }
    }
    for (size_t i = 1; i < inputs.size(); ++i) stays.Cancel(static_cast<int64_t>(i), absl::CancelledError("left"));
    while (!stays.done()) ASSERT_TRUE(stays.Step().ok());
    ASSERT_TRUE(SameBytes(stays.TakeResult(0), whole[0])) << steps << " steps";
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, StepsTest, ::testing::ValuesIn(ModelKinds()),
                         [](const auto& info) { return info.param.name; });

// 999 rows: eleven parts of 96 at most, at one a step.
TEST(LongStepsTest, ExpectedEdgesTakeStepsOfTheirOwn) {
  const TemporaryFolder folder;
  const LoadedModel loaded = LoadModel(WriteModel(folder.path(), WaveConfig({{"max_position_embeddings", 1000}})));
  std::vector<ModelInput> inputs = {MakeInput(*loaded, RandomTokens(999, 49, 1))};
  const auto steps = [&](bool expected) {
    inputs[0].wanted.expected = expected;
    Pass pass(*loaded, inputs, {.step_rows = 100});
    int count = 0;
    for (; !pass.done(); ++count) EXPECT_TRUE(pass.Step().ok());
    EXPECT_EQ(pass.TakeResult(0).expected_edges > 0.0, expected);
    return count;
  };
  const int without = steps(false);
  EXPECT_EQ(steps(true), without + 11);
}

// The threshold of a cap is found before the first of the 65,536 rows attends.
TEST(LongStepsTest, SixtyFiveThousandRowsUnderACapGiveTheSameBytes) {
  constexpr int32_t kTokens = 65536;
  const TemporaryFolder folder;
  nlohmann::json config = WaveConfig({{"max_position_embeddings", kTokens}, {"position_embedding", "none"}});
  config["attention"]["exploration"] = 32.0 / kTokens;
  const LoadedModel loaded = LoadModel(WriteModel(folder.path(), config), 2);
  std::vector<ModelInput> inputs = {MakeInput(*loaded, RandomTokens(kTokens - 1, 49, 1))};
  inputs[0].max_edges = loaded->LeastEdges(inputs[0]) + 1'000'000;
  const InputResult whole = RunAll(*loaded, inputs, {})[0];
  ASSERT_TRUE(whole.status.ok()) << whole.status;
  EXPECT_TRUE(whole.sample_results[0].capped);

  Pass pass(*loaded, inputs, {.step_rows = 4096});
  int steps = 0;
  for (; !pass.done(); ++steps) ASSERT_TRUE(pass.Step().ok());
  EXPECT_GE(steps, 4 * 16);  // projections, a search of two runs at least, attention
  EXPECT_TRUE(SameBytes(pass.TakeResult(0), whole));
}

}  // namespace
}  // namespace edgewise::testing
