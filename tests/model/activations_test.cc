// Every activation that config.json may name, against transformers in float64 (tests/reference/make_activations.py).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/model/model_builder.h"
#include "tests/model/near.h"
#include "tests/model/run_model.h"
#include "tests/support/paths.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

json JsonOf(const fs::path& path) {
  std::ifstream file(path);
  return json::parse(file);
}

class ActivationsTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ActivationsTest, AreThoseOfTransformers) {
  const std::string name = GetParam();
  const fs::path source = tests::TestdataFolder() + "_hugging_face/" + name;
  const json inputs = JsonOf(source / "golden.json")["inputs"];
  const json golden = JsonOf(tests::TestdataFolder() + "_activations.json")[name];
  const char* const field = name == "modernbert_sequence" ? "hidden_activation" : "hidden_act";
  std::set<std::vector<float>> different;
  for (const auto& [activation, rows] : golden.items()) {
    const TemporaryFolder folder;
    const fs::path copy = folder.path();
    fs::copy_file(source / "1" / "model.safetensors", copy / "model.safetensors");
    json config = JsonOf(source / "1" / "config.json");
    config[field] = activation;
    std::ofstream(copy / "config.json") << config;
    const LoadedModel model = LoadModel(folder.path());
    Comparison comparison;
    for (size_t i = 0; i < rows.size(); ++i) {
      const InputResult result = RunOne(*model, MakeInput(*model, inputs[i]["token_ids"].get<std::vector<int32_t>>()));
      ASSERT_TRUE(result.status.ok()) << result.status;
      comparison.Add(result.logits, rows[i], activation);
      if (i == 0) different.insert(result.logits);
    }
  }
  EXPECT_EQ(different.size(), 7u) << "gelu, its tanh, relu, silu, quick_gelu, mish, tanh";
}

INSTANTIATE_TEST_SUITE_P(Folders, ActivationsTest, ::testing::Values("bert_sequence", "modernbert_sequence"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace edgewise::testing
