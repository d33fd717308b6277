// The model against the float64 reference of tests/reference, on the logits that it wrote to tests/testdata.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/model/run_model.h"
#include "tests/support/paths.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;

constexpr double kLogitTolerance = 1e-4;

std::vector<std::string> Cases() {
  std::vector<std::string> cases;
  for (const auto& entry : std::filesystem::directory_iterator(tests::TestdataFolder())) {
    if (std::filesystem::exists(entry.path() / "golden.json")) cases.push_back(entry.path().filename().string());
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

Graph ReadGraph(const json& value) {
  Graph graph;
  for (const json& layer : value["layers"]) {
    auto& heads = graph.layers.emplace_back();
    for (const json& head : layer["heads"]) {
      HeadEdges& edges = heads.emplace_back();
      edges.row_offsets = head["row_offsets"].get<std::vector<int64_t>>();
      edges.keys = head["keys"].get<std::vector<int32_t>>();
    }
  }
  return graph;
}

class GoldenTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string folder = tests::TestdataFolder() + "/" + GetParam();
    loaded_ = LoadModel(folder + "/1");
    std::ifstream file(folder + "/golden.json");
    golden_ = json::parse(file);
    ASSERT_FALSE(golden_.empty());
  }

  ModelInput Input(const json& entry) const {
    ModelInput input;
    if (entry.contains("features")) {
      std::vector<float> values;
      for (const json& row : entry["features"]) {
        for (const json& value : row) values.push_back(value.get<float>());
      }
      const auto rows = static_cast<uint32_t>(entry["features"].size());
      auto sequence =
          loaded_->PrepareFeatures(rows, static_cast<uint32_t>(values.size()) / rows, values, TruncateMode::kRefuse);
      EXPECT_TRUE(sequence.ok()) << sequence.status();
      input.sequences.push_back(*std::move(sequence));
    } else {
      input = MakeInput(*loaded_, entry["token_ids"].get<std::vector<int32_t>>(),
                        entry.value("second", std::vector<int32_t>()));
    }
    input.sequences[0].bias_values = entry.value("bias_values", std::vector<float>());
    input.sequences[0].bias_buckets = entry.value("bias_buckets", std::vector<uint8_t>());
    EXPECT_TRUE(loaded_->CheckBias(input.sequences[0]).ok()) << loaded_->CheckBias(input.sequences[0]);
    input.seed = entry.value("seed", uint64_t{0});
    input.first_sample = entry.value("sample", 0u);
    return input;
  }

  void ExpectLogits(const json& entry, const InputResult& result) const {
    const json& logits = entry["logits"];
    const bool per_token = loaded_->config().task == ModelTask::kTokenClassification;
    const int32_t rows = per_token ? static_cast<int32_t>(logits.size()) : 1;
    ASSERT_EQ(result.rows, rows);
    for (int32_t row = 0; row < rows; ++row) {
      const json& expected = per_token ? logits[row] : logits;
      if (expected.is_null()) {
        EXPECT_EQ(result.label_id[row], -1) << "a pad has no prediction";
        continue;
      }
      ASSERT_EQ(static_cast<size_t>(result.labels), expected.size());
      for (int32_t c = 0; c < result.labels; ++c) {
        EXPECT_NEAR(result.logits[row * result.labels + c], expected[c].get<double>(), kLogitTolerance);
        if (!result.regression) continue;
        EXPECT_EQ(result.probabilities[c], result.logits[c]) << "a regression gives its values";
      }
    }
    if (!entry.contains("log_probabilities")) return;
    const std::vector<double>& tokens = result.sample_results[0].token_probabilities;
    ASSERT_EQ(tokens.size(), entry["log_probabilities"].size());
    double sum = 0.0;
    for (size_t t = 0; t < tokens.size(); ++t) {
      EXPECT_NEAR(std::log(tokens[t]), entry["log_probabilities"][t].get<double>(), kLogitTolerance);
      sum += std::log(tokens[t]);
    }
    EXPECT_DOUBLE_EQ(result.log_likelihood, sum);
    EXPECT_DOUBLE_EQ(result.perplexity, tokens.empty() ? 1.0 : std::exp(-sum / static_cast<double>(tokens.size())));
  }

  LoadedModel loaded_;
  json golden_;
};

TEST_P(GoldenTest, LogitsAgreeWithTheFloat64Reference) {
  for (const json& entry : golden_) {
    ModelInput input = Input(entry);
    if (entry.contains("graph")) input.graph = ReadGraph(entry["graph"]);
    ASSERT_TRUE(loaded_->CheckGraph(input).ok()) << loaded_->CheckGraph(input);
    const InputResult result = RunOne(*loaded_, input);
    ASSERT_TRUE(result.status.ok()) << result.status;
    ExpectLogits(entry, result);
    if (entry.contains("graph")) {
      EXPECT_EQ(result.edges, static_cast<double>(CountEdges(*input.graph)));
    }
  }
}

// Kinds whose edges do not hang on rounding: the same edges as the reference, from the same seed and sample.
TEST_P(GoldenTest, ChoosesTheEdgesOfTheReferenceAndGivesTheSameBytesWhenTheyAreGiven) {
  for (const json& entry : golden_) {
    if (!entry.contains("seed")) continue;
    ModelInput input = Input(entry);
    input.wanted.graph = true;
    const InputResult own = RunOne(*loaded_, input);
    ASSERT_TRUE(own.status.ok()) << own.status;
    const Graph expected = ReadGraph(entry["graph"]);
    ASSERT_EQ(own.graph->layers.size(), expected.layers.size());
    for (size_t l = 0; l < expected.layers.size(); ++l) {
      for (size_t h = 0; h < expected.layers[l].size(); ++h) {
        ASSERT_EQ(own.graph->layers[l][h].row_offsets, expected.layers[l][h].row_offsets) << "layer " << l;
        ASSERT_EQ(own.graph->layers[l][h].keys, expected.layers[l][h].keys) << "layer " << l;
      }
    }
    ExpectLogits(entry, own);
    input.graph = expected;
    EXPECT_TRUE(SameBytes(own, RunOne(*loaded_, input)));
  }
}

// The first layer's input does not depend on what was drawn, so its expectation is the reference's.
TEST_P(GoldenTest, ExpectedEdgesOfTheFirstLayerAgreeWithTheReference) {
  for (const json& entry : golden_) {
    if (!entry.contains("expected_edges")) continue;
    ModelInput input = Input(entry);
    input.wanted.expected = true;
    const InputResult result = RunOne(*loaded_, input);
    ASSERT_TRUE(result.status.ok()) << result.status;
    const auto& layers = result.sample_results[0].layers;
    ASSERT_EQ(layers.size(), entry["expected_edges"].size());
    for (size_t l = 0; l < layers.size(); l += loaded_->config().num_hidden_layers) {
      for (size_t h = 0; h < layers[l].size(); ++h) {
        const double expected = entry["expected_edges"][l][h].get<double>();
        EXPECT_NEAR(layers[l][h].expected, expected, 1e-3 * expected + 1e-6) << "layer " << l << " head " << h;
      }
    }
  }
}

TEST_P(GoldenTest, TrailingPadsChangeNoByte) {
  const ModelConfig& config = loaded_->config();
  if (config.pad_token_id < 0 || config.task == ModelTask::kTokenClassification)
    GTEST_SKIP() << "no pads, or one row each";
  for (const json& entry : golden_) {
    if (!entry.contains("token_ids") || entry.contains("bias_values") || entry.contains("bias_buckets")) continue;
    std::vector<int32_t> ids = entry["token_ids"].get<std::vector<int32_t>>();
    // The CLS token makes a full sequence lose its last position, so leave room for it.
    const size_t most = config.max_position_embeddings - (config.pooling == Pooling::kCls ? 1 : 0);
    if (ids.size() >= most) continue;
    const std::vector<int32_t> second = entry.value("second", std::vector<int32_t>());
    const InputResult plain = RunOne(*loaded_, MakeInput(*loaded_, ids, second));
    ids.resize(most, config.pad_token_id);
    const InputResult padded = RunOne(*loaded_, MakeInput(*loaded_, ids, second));
    EXPECT_TRUE(SameBytes(plain, padded));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenTest, ::testing::ValuesIn(Cases()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace edgewise::testing
