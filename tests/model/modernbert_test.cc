// Windows on both sides and rotary positions by kind of layer, as folders of ModernBERT have them.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/kinds/kind.h"
#include "tests/model/model_builder.h"
#include "tests/model/run_model.h"
#include "tests/support/paths.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;

std::string ModernBert(const std::string& name) { return tests::TestdataFolder() + "_hugging_face/" + name + "/1"; }

// Layers 1 and 2 of four see 4 positions on either side.
TEST(ModernBertTest, WindowsAreOnBothSides) {
  const LoadedModel model = LoadModel(ModernBert("modernbert_sequence"));
  ModelInput input = MakeInput(*model, RandomTokens(30, 40, 3));
  const uint64_t heads = 4, all = heads * 30 * 30, window = heads * (30 * 9 - 2 * (4 + 3 + 2 + 1));
  EXPECT_EQ(model->Pairs(input), 4 * all);
  EXPECT_EQ(model->LeastEdges(input), 2 * all + 2 * window);
  const InputResult own = RunOne(*model, input);
  EXPECT_EQ(own.sample_results[0].edges, 2 * all + 2 * window);
  input.dense = true;
  const InputResult dense = RunOne(*model, input);
  EXPECT_EQ(dense.sample_results[0].edges, 4 * all);
  EXPECT_FALSE(SameBytes(own, dense));
}

json ConfigOf(const std::string& folder) {
  std::ifstream file(folder + "/config.json");
  return json::parse(file);
}

// layer_types with rope_parameters, and what they are where they are not given.
TEST(ModernBertTest, TwoSpellingsGiveTheSameBytes) {
  const std::string from = ModernBert("modernbert_sequence");
  const TemporaryFolder folder;
  std::filesystem::copy(from, folder.path(), std::filesystem::copy_options::recursive);
  json config = ConfigOf(from);
  for (const char* field : {"layer_types", "rope_parameters"}) ASSERT_EQ(config.erase(field), 1u);
  WriteFile(folder.path() + "/config.json", config.dump());
  const LoadedModel one = LoadModel(from), other = LoadModel(folder.path());
  const std::vector<int32_t> ids = RandomTokens(36, 40, 1);
  const InputResult expected = RunOne(*one, MakeInput(*one, ids));
  EXPECT_TRUE(SameBytes(expected, RunOne(*other, MakeInput(*other, ids))));
  config["global_rope_theta"] = 100.0;
  WriteFile(folder.path() + "/config.json", config.dump());
  const LoadedModel third = LoadModel(folder.path());
  EXPECT_FALSE(SameBytes(expected, RunOne(*third, MakeInput(*third, ids))));
}

// Windows that are as long as the text, and all pairs in place of shorter windows, are the same.
TEST(ModernBertTest, WithoutWindowsALayerKeepsItsRotaryPositions) {
  const std::string from = ModernBert("modernbert_sequence");
  const TemporaryFolder folder;
  std::filesystem::copy(from, folder.path(), std::filesystem::copy_options::recursive);
  json config = ConfigOf(from);
  config["local_attention"] = 80;
  WriteFile(folder.path() + "/config.json", config.dump());
  const LoadedModel narrow = LoadModel(from), wide = LoadModel(folder.path());
  ModelInput input = MakeInput(*narrow, RandomTokens(36, 40, 1));
  const InputResult expected = RunOne(*wide, input);
  EXPECT_FALSE(SameBytes(expected, RunOne(*narrow, input)));
  input.dense = true;
  EXPECT_TRUE(SameBytes(expected, RunOne(*narrow, input)));
  input.dense = false;
  AttentionConfig block;
  block.kind = &kBlockKind;
  block.block_size = 64;
  input.attention = std::make_shared<const std::vector<AttentionConfig>>(4, block);
  EXPECT_TRUE(SameBytes(expected, RunOne(*narrow, input)));
}

}  // namespace
}  // namespace edgewise::testing
