// Density as the authors of SBM-Transformer count it.
#include <gtest/gtest.h>

#include "tests/model/model_builder.h"
#include "tests/model/run_model.h"

namespace edgewise::testing {
namespace {

constexpr int32_t kLength = 64;  // of SmallConfig

// A model of SmallConfig with `layers` layers whose tokens `pad` are pads; the weights do not depend on `pad`.
LoadedModel Load(const TemporaryFolder& folder, int layers, int32_t pad) {
  auto config = SmallConfig();
  config["num_hidden_layers"] = layers;
  config["pad_token_id"] = pad;
  config["attention"]["exploration"] = 0.01;
  return LoadModel(WriteModel(folder.path(), config));
}

ModelInput Asking(const Model& model, const std::vector<int32_t>& ids) {
  ModelInput input = MakeInput(model, ids);
  input.seed = 7;
  input.samples = 3;
  input.want_padded_density = true;
  return input;
}

TEST(PaddedDensityTest, IsTheDensityWhereNothingIsPadded) {
  const TemporaryFolder folder;
  const LoadedModel model = Load(folder, 2, 0);
  const InputResult result = RunOne(*model, Asking(*model, RandomTokens(kLength, 50, 1)));
  EXPECT_GT(result.density, 0.1);
  EXPECT_LT(result.density, 0.9);
  EXPECT_NEAR(result.padded_density, result.density, 1e-12);
}

TEST(PaddedDensityTest, CountsPadsAsQueriesAndKeys) {
  const TemporaryFolder folder, tokens_folder;
  const LoadedModel model = Load(folder, 1, 0);
  const LoadedModel tokens = Load(tokens_folder, 1, -1);  // id 0 is a token like any other
  std::vector<int32_t> ids = RandomTokens(20, 50, 1);
  ids[5] = 0;  // an interior pad
  const InputResult result = RunOne(*model, Asking(*model, ids));
  ids.resize(kLength, 0);
  const InputResult all = RunOne(*tokens, Asking(*tokens, ids));
  EXPECT_NEAR(result.padded_density, all.density, 1e-12);
  EXPECT_NE(result.padded_density, result.density);
}

// In the second layer a pad's query is what the first made of it: attended over valid keys, never over pads.
TEST(PaddedDensityTest, PadsAttendToTokensOnly) {
  const TemporaryFolder folder, tokens_folder;
  const LoadedModel model = Load(folder, 2, 0);
  const LoadedModel tokens = Load(tokens_folder, 2, -1);
  std::vector<int32_t> ids = RandomTokens(20, 50, 1);
  const InputResult result = RunOne(*model, Asking(*model, ids));
  ids.resize(kLength, 0);
  EXPECT_NE(result.padded_density, RunOne(*tokens, Asking(*tokens, ids)).density);
}

TEST(PaddedDensityTest, LeavesTheAnswerAlone) {
  const TemporaryFolder folder;
  const LoadedModel model = Load(folder, 2, 0);
  ModelInput input = Asking(*model, RandomTokens(20, 50, 1));
  std::vector<ModelInput> inputs = {input, input, input};
  inputs[1].want_padded_density = false;
  inputs[2].max_edges = model->LeastEdges(input) + 500;
  const std::vector<InputResult> results = RunAll(*model, inputs);
  EXPECT_TRUE(SameBytes(results[0], results[1]));
  EXPECT_EQ(results[1].padded_density, 0.0);
  EXPECT_TRUE(results[2].capped);
  EXPECT_EQ(results[2].padded_density, results[0].padded_density);  // of the uncapped draw
}

}  // namespace
}  // namespace edgewise::testing
