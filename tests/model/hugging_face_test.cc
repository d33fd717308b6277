// Hugging Face folders against what transformers computes with them in float64 (tests/reference/make_hugging_face.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "tests/model/near.h"
#include "tests/model/run_model.h"
#include "tests/support/paths.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;

std::string Folder() { return tests::TestdataFolder() + "_hugging_face"; }

std::vector<std::string> Cases() {
  std::vector<std::string> cases;
  for (const auto& entry : std::filesystem::directory_iterator(Folder())) {
    cases.push_back(entry.path().filename().string());
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

json GoldenOf(const std::string& name) {
  std::ifstream file(Folder() + "/" + name + "/golden.json");
  return json::parse(file)["inputs"];
}

ModelInput InputOf(const Model& model, const json& entry) {
  ModelInput input = MakeInput(model, entry["token_ids"].get<std::vector<int32_t>>());
  input.sequences[0].token_types = entry.value("token_types", std::vector<int32_t>());
  return input;
}

// The pooled vector as an answer has it.
std::vector<float> EmbeddingOf(const ModelConfig& config, const InputResult& result) {
  std::vector<float> vector = result.probabilities;
  double squares = 0.0;
  for (const float value : vector) squares += static_cast<double>(value) * value;
  for (float& value : vector) value = config.normalize ? static_cast<float>(value / std::sqrt(squares)) : value;
  return vector;
}

class HuggingFaceTest : public ::testing::TestWithParam<std::string> {};

TEST_P(HuggingFaceTest, AgreesWithTransformersInFloat64) {
  const LoadedModel model = LoadModel(Folder() + "/" + GetParam() + "/1");
  const json golden = GoldenOf(GetParam());
  ASSERT_GE(golden.size(), 4u);
  Comparison comparison;
  for (size_t e = 0; e < golden.size(); ++e) {
    const json& entry = golden[e];
    const std::string what = GetParam() + ", input " + std::to_string(e);
    const InputResult result = RunOne(*model, InputOf(*model, entry));
    ASSERT_TRUE(result.status.ok()) << what;
    if (entry.contains("embedding")) {
      ASSERT_EQ(model->config().task, ModelTask::kEmbedding);
      comparison.Add(EmbeddingOf(model->config(), result), entry["embedding"], what);
      continue;
    }
    if (entry.contains("token_log_likelihoods")) {
      const json& expected = entry["token_log_likelihoods"];
      std::vector<float> got;
      for (const double p : result.sample_results[0].token_probabilities) {
        got.push_back(static_cast<float>(std::log(p)));
      }
      comparison.Add(got, expected, what + ", log-likelihoods");
    }
    const json& logits = entry["logits"];
    const json rows = logits[0].is_array() ? logits : json::array({logits});
    ASSERT_EQ(static_cast<size_t>(result.rows), rows.size()) << what;
    const auto labels = static_cast<size_t>(result.labels);
    for (size_t row = 0; row < rows.size(); ++row) {
      if (rows[row].is_null()) {
        EXPECT_EQ(result.label_id[row], -1) << what << ": a pad";
      } else {
        comparison.Add(std::span(result.logits).subspan(row * labels, labels), rows[row], what);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, HuggingFaceTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param; });

TEST(HuggingFaceTokenTypesTest, MakeADifference) {
  const LoadedModel model = LoadModel(Folder() + "/bert_sequence/1");
  const json golden = GoldenOf("bert_sequence");
  ModelInput input = InputOf(*model, golden[4]);
  ASSERT_FALSE(input.sequences[0].token_types.empty());
  const InputResult typed = RunOne(*model, input);
  input.sequences[0].token_types.assign(input.sequences[0].token_ids.size(), 0);
  const InputResult zeros = RunOne(*model, input);
  input.sequences[0].token_types.clear();
  EXPECT_TRUE(SameBytes(zeros, RunOne(*model, input)));
  EXPECT_FALSE(SameBytes(zeros, typed));
}

}  // namespace
}  // namespace edgewise::testing
