// Every field of an answer is the number of the result that it is named after: results whose numbers all differ.
#include "server/handler/respond.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/server/test_models.h"

namespace edgewise::server {
namespace {

template <typename Message>
void ExpectMessage(const Message& message, const std::string& text) {
  Message expected;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &expected));
  EXPECT_EQ(message.DebugString(), expected.DebugString());
}

ModelConfig ThreeLabels(ModelTask task) {
  ModelConfig config;
  config.task = task;
  config.num_labels = 3;
  config.labels = {"no", "perhaps", "yes"};
  return config;
}

// Two samples of two layers of two heads; the last of three rows is that of a pad.
InputResult Result(int32_t rows) {
  InputResult result;
  result.rows = rows;
  result.labels = 3;
  result.samples = 2;
  const int32_t labels[] = {2, 0, -1};
  for (int32_t row = 0; row < rows; ++row) {
    const float of_row = row == 2 ? 0.0f : 1.0f + static_cast<float>(row);
    for (const float value : {0.25f, 0.125f, 0.5f}) {
      result.probabilities.push_back(value * of_row);
      result.stddev.push_back(value * of_row / 16);
      result.logits.push_back(value * of_row * 8);
    }
    result.label_id.push_back(labels[row]);
    result.predictive_entropy.push_back(of_row * 0.75);
    result.mutual_information.push_back(of_row * 0.375);
  }
  result.edges = 13.5;
  result.max_sample_edges = 17;
  result.pairs = 54;
  result.density = 0.25;
  result.capped = true;
  result.isolated_queries = 1.5;
  result.expected_edges = 14.5;
  const uint64_t edges[2][2][2] = {{{1, 2}, {3, 4}}, {{2, 4}, {5, 6}}};
  for (size_t s = 0; s < 2; ++s) {
    SampleResult& sample = result.sample_results.emplace_back();
    sample.edges = s == 0 ? 10 : 17;
    for (int32_t i = 0; i < rows * 3; ++i) {
      sample.probabilities.push_back(static_cast<float>(i) / 32 + static_cast<float>(s));
      sample.logits.push_back(static_cast<float>(i) / 2 - static_cast<float>(s));
    }
    sample.layers.resize(2);
    for (size_t l = 0; l < 2; ++l) {
      for (size_t h = 0; h < 2; ++h) {
        HeadCounts& head = sample.layers[l].emplace_back();
        head.edges = edges[s][l][h];
        head.expected = static_cast<double>(edges[s][l][h]) + 0.25;
        head.key_degrees = {static_cast<uint32_t>(l), static_cast<uint32_t>(edges[s][l][h])};
      }
    }
  }
  return result;
}

ModelInput Input() {
  ModelInput input;
  input.sequences.resize(2);
  input.sequences[0].truncated_tokens = 3;
  input.sequences[1].truncated_tokens = 4;
  input.max_edges = 20;
  return input;
}

// The fields of layer_stats are left out.
const char kEdges[] = R"(edges { edges: 13.5 pairs: 54 density: 0.25 budget: 20 capped: true
                                 max_sample_edges: 17 isolated_queries: 1.5 })";

TEST(RespondTest, ClassificationWithEverythingAskedFor) {
  OutputSelection outputs;
  outputs.logits = outputs.layer_stats = outputs.key_degrees = outputs.each_sample = outputs.graph = true;
  outputs.top_k = 2;
  InputResult result = Result(1);
  result.graph.emplace();
  result.graph->layers.resize(1);
  HeadEdges& head = result.graph->layers[0].emplace_back();
  head.row_offsets = {0, 1, 3};
  head.keys = {1, 0, 1};
  head.weights = {1.0f, 0.25f, 0.75f};
  head.multiplicity = {1, 2, 3};
  v1::Prediction prediction;
  FillPrediction(ThreeLabels(ModelTask::kSequenceClassification), nullptr, Input(), result, outputs, prediction);
  ExpectMessage(prediction, R"(
      probabilities: [0.25, 0.125, 0.5] stddev: [0.015625, 0.0078125, 0.03125] logits: [2, 1, 4]
      label_id: 2 label: "yes" predictive_entropy: 0.75 mutual_information: 0.375
      top { label_id: 2 label: "yes" probability: 0.5 } top { label_id: 0 label: "no" probability: 0.25 }
      samples: 2 truncated_tokens: 7
      sample_outputs { probabilities: [0, 0.03125, 0.0625] logits: [0, 0.5, 1] edges: 10 }
      sample_outputs { probabilities: [1, 1.03125, 1.0625] logits: [-1, -0.5, 0] edges: 17 }
      graph { layers { heads { row_offsets: [0, 1, 3] keys: [1, 0, 1] weights: [1, 0.25, 0.75]
                               multiplicities: [1, 2, 3] } } }
      edges { edges: 13.5 pairs: 54 density: 0.25 budget: 20 capped: true expected_edges: 14.5
              max_sample_edges: 17 isolated_queries: 1.5
              layers { heads { edges: 1.5 expected: 1.75 key_degrees: [0, 3] }
                       heads { edges: 3 expected: 3.25 key_degrees: [0, 6] } }
              layers { heads { edges: 4 expected: 4.25 key_degrees: [2, 8] }
                       heads { edges: 5 expected: 5.25 key_degrees: [2, 10] } } })");
}

TEST(RespondTest, ClassificationWithNothingAskedFor) {
  v1::Prediction prediction;
  ModelInput input = Input();
  input.max_edges = kNoCap;
  InputResult result = Result(1);
  result.capped = false;
  FillPrediction(ThreeLabels(ModelTask::kSequenceClassification), nullptr, input, result, {}, prediction);
  ExpectMessage(prediction, R"(
      probabilities: [0.25, 0.125, 0.5] stddev: [0.015625, 0.0078125, 0.03125]
      label_id: 2 label: "yes" predictive_entropy: 0.75 mutual_information: 0.375 samples: 2 truncated_tokens: 7
      edges { edges: 13.5 pairs: 54 density: 0.25 max_sample_edges: 17 isolated_queries: 1.5 })");
}

TEST(RespondTest, LabelsOfTokensAndPads) {
  OutputSelection outputs;
  outputs.logits = true;
  v1::Prediction prediction;
  FillPrediction(ThreeLabels(ModelTask::kTokenClassification), nullptr, Input(), Result(3), outputs, prediction);
  ExpectMessage(prediction, R"(
      tokens { probabilities: [0.25, 0.125, 0.5] stddev: [0.015625, 0.0078125, 0.03125] logits: [2, 1, 4]
               label_id: 2 label: "yes" predictive_entropy: 0.75 mutual_information: 0.375 }
      tokens { probabilities: [0.5, 0.25, 1] stddev: [0.03125, 0.015625, 0.0625] logits: [4, 2, 8]
               label_id: 0 label: "no" predictive_entropy: 1.5 mutual_information: 0.75 }
      tokens { pad: true } samples: 2 truncated_tokens: 7 )" +
                                std::string(kEdges));
}

TEST(RespondTest, ValuesOfARegressionHaveSpreadAndNoLabel) {
  OutputSelection outputs;
  outputs.each_sample = true;
  v1::Prediction prediction;
  InputResult result = Result(1);
  result.regression = true;
  FillPrediction(ThreeLabels(ModelTask::kRegression), nullptr, Input(), result, outputs, prediction);
  ExpectMessage(prediction, R"(
      values: [0.25, 0.125, 0.5] stddev: [0.015625, 0.0078125, 0.03125] samples: 2 truncated_tokens: 7
      sample_outputs { values: [0, 0.03125, 0.0625] edges: 10 }
      sample_outputs { values: [1, 1.03125, 1.0625] edges: 17 } )" +
                                std::string(kEdges));
}

TEST(RespondTest, LikelihoodOfATextAndTheNextToken) {
  OutputSelection outputs;
  outputs.each_sample = true;
  ModelConfig config = ThreeLabels(ModelTask::kCausalLm);
  config.labels.clear();
  config.tokenizer.kind = TokenizerKind::kByte;
  config.tokenizer.offset = -63;  // 2 is "A"
  InputResult result = Result(1);
  result.log_likelihood = -2.5;
  result.perplexity = 3.5;
  for (SampleResult& sample : result.sample_results)
    sample.token_probabilities = {0.5, static_cast<double>(sample.edges)};
  v1::Prediction prediction;
  FillPrediction(config, nullptr, Input(), result, outputs, prediction);
  ExpectMessage(prediction, R"(
      probabilities: [0.25, 0.125, 0.5] stddev: [0.015625, 0.0078125, 0.03125]
      label_id: 2 label: "A" predictive_entropy: 0.75 mutual_information: 0.375 samples: 2 truncated_tokens: 7
      log_likelihood: -2.5 perplexity: 3.5 scored_tokens: 2
      sample_outputs { probabilities: [0, 0.03125, 0.0625] token_probabilities: [0.5, 10] edges: 10 }
      sample_outputs { probabilities: [1, 1.03125, 1.0625] token_probabilities: [0.5, 17] edges: 17 } )" +
                                std::string(kEdges));
}

TEST(RespondTest, EdgesOfAGeneratedRow) {
  RowEdges row;
  row.edges = 3.0;
  row.max_sample_edges = 4;
  row.pairs = 12;
  row.budget = 5;
  row.capped = true;
  v1::EdgeReport report;
  FillRowEdges(row, report);
  ExpectMessage(report, "edges: 3 pairs: 12 density: 0.25 budget: 5 capped: true max_sample_edges: 4");
  report.Clear();
  FillRowEdges(RowEdges(), report);
  ExpectMessage(report, "");
}

class ModelInfoTest : public ::testing::Test {
 protected:
  static v1::ModelInfo Info(const std::string& name, bool vocabulary) {
    auto loaded = std::make_shared<LoadedModel>();
    loaded->model = LoadTestModel(name);
    v1::ModelInfo info;
    FillModelInfo({name, 7, ModelState::kReady, "the last reload failed", std::move(loaded)}, vocabulary, info);
    EXPECT_EQ(info.name(), name);
    EXPECT_EQ(info.version(), 7);
    EXPECT_EQ(info.error(), "the last reload failed");
    EXPECT_EQ(info.sha256().size(), 64u);
    EXPECT_GT(info.parameters(), 0u);
    EXPECT_EQ(info.device(), TestBackend().device());
    for (const char* field : {"name", "version", "error", "sha256", "parameters", "device"}) {
      info.GetReflection()->ClearField(&info, info.GetDescriptor()->FindFieldByName(field));
    }
    return info;
  }
};

TEST_F(ModelInfoTest, IsThatOfTheConfiguration) {
  ExpectMessage(Info("sbm", true), R"(
      state: READY description: "random weights for tests: sbm" task: "sequence-classification"
      attention: "sbm/bernoulli" layers: 2 heads: 2 hidden_size: 16 max_tokens: 48 vocab_size: 40 tokenizer: "none"
      pairwise_bias: "none" random_numbers: 2 pooling: "mean")");
  const v1::ModelInfo tokens = Info("sbm-tokens", true);
  EXPECT_EQ(tokens.layers(), 1u);
  EXPECT_EQ(tokens.heads(), 2u);
  EXPECT_EQ(tokens.task(), "token-classification");
  EXPECT_EQ(tokens.attention(), "sbm/poisson_multi");
  const v1::ModelInfo features = Info("features", true);
  EXPECT_EQ(features.feature_size(), 6u);
  EXPECT_EQ(features.vocab_size(), 0u);
  EXPECT_FALSE(features.causal());
  EXPECT_EQ(Info("pairwise-values", true).pairwise_bias(), "values");
  EXPECT_EQ(Info("pairwise-values", true).num_buckets(), 0u);
  EXPECT_EQ(Info("pairwise-buckets", true).pairwise_bias(), "buckets");
  EXPECT_EQ(Info("pairwise-buckets", true).num_buckets(), 9u);
  EXPECT_TRUE(Info("lm-dense", true).causal());
}

TEST_F(ModelInfoTest, StatesAreTold) {
  const std::pair<ModelState, v1::ModelInfo::State> states[] = {{ModelState::kLoading, v1::ModelInfo::LOADING},
                                                                {ModelState::kReady, v1::ModelInfo::READY},
                                                                {ModelState::kFailed, v1::ModelInfo::FAILED},
                                                                {ModelState::kDraining, v1::ModelInfo::DRAINING}};
  for (const auto& [state, told] : states) {
    v1::ModelInfo info;
    FillModelInfo({"m", 1, state, "why", nullptr}, true, info);
    EXPECT_EQ(info.state(), told);
    EXPECT_EQ(info.error(), "why");
    EXPECT_EQ(info.layers(), 0u);
  }
}

}  // namespace
}  // namespace edgewise::server
