// Models whose labels do not exclude each other: a sigmoid per label (docs/ensembles.md).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/model/model_builder.h"
#include "tests/model/near.h"
#include "tests/model/run_model.h"
#include "tests/support/paths.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;

// What TextClassificationPipeline of transformers makes of the logits (tests/reference/make_hugging_face.py).
TEST(MultiLabelTest, ProbabilitiesAreTheScoresOfTransformersPipeline) {
  for (const std::string name : {"bert_multi_label", "distilbert_one_label"}) {
    const std::string folder = tests::TestdataFolder() + "_hugging_face/" + name;
    const LoadedModel model = LoadModel(folder + "/1");
    EXPECT_EQ(model->config().task, ModelTask::kSequenceClassification);
    std::ifstream file(folder + "/golden.json");
    const json golden = json::parse(file);
    Comparison comparison;
    double largest_sum = 0.0;
    for (const json& entry : golden["inputs"]) {
      ModelInput input = MakeInput(*model, entry["token_ids"].get<std::vector<int32_t>>());
      input.sequences[0].token_types = entry.value("token_types", std::vector<int32_t>());
      const InputResult result = RunOne(*model, input);
      ASSERT_TRUE(result.status.ok()) << result.status;
      comparison.Add(result.probabilities, entry["scores"], name);
      const json& scores = entry["scores"];
      EXPECT_EQ(result.label_id[0], std::max_element(scores.begin(), scores.end()) - scores.begin());
      double sum = 0.0;
      for (const json& score : scores) sum += score.get<double>();
      largest_sum = std::max(largest_sum, sum);
    }
    EXPECT_GT(name == "bert_multi_label" ? largest_sum : 2.0, 1.4) << "a softmax would do";
  }
}

double YesOrNo(long double p) { return static_cast<double>(-p * std::log(p) - (1 - p) * std::log(1 - p)); }

class MultiLabelEnsembleTest : public ::testing::Test {
 protected:
  static json Config() {
    json config = SmallConfig();
    config["problem_type"] = "multi_label_classification";
    return config;
  }
  ModelInput Input(uint32_t samples) const {
    ModelInput input = MakeInput(*loaded_, RandomTokens(25, 50, 4));
    input.seed = 77;
    input.samples = samples;
    return input;
  }

  TemporaryFolder folder_;
  LoadedModel loaded_ = LoadModel(WriteModel(folder_.path(), Config(), 3));
};

TEST_F(MultiLabelEnsembleTest, EntropiesAreSumsOverTheLabels) {
  const InputResult result = RunOne(*loaded_, Input(7));
  ASSERT_EQ(result.samples, 7u);
  double entropy_of_mean = 0.0, mean_entropy = 0.0;
  for (int32_t c = 0; c < result.labels; ++c) {
    long double mean = 0.0;
    for (const SampleResult& sample : result.sample_results) {
      const float p = sample.probabilities[c];
      EXPECT_FLOAT_EQ(p, static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(sample.logits[c])))));
      mean += static_cast<long double>(p) / 7;
      mean_entropy += YesOrNo(p) / 7;
    }
    EXPECT_FLOAT_EQ(result.probabilities[c], static_cast<float>(mean));
    entropy_of_mean += YesOrNo(mean);
  }
  EXPECT_NEAR(result.predictive_entropy[0], entropy_of_mean, 1e-12);
  EXPECT_NEAR(result.mutual_information[0], entropy_of_mean - mean_entropy, 1e-12);
  EXPECT_GT(result.mutual_information[0], 0.0);
}

// The same weights with a softmax have the same logits.
TEST_F(MultiLabelEnsembleTest, OnlyTheProbabilitiesDiffer) {
  const TemporaryFolder folder;
  const LoadedModel single = LoadModel(WriteModel(folder.path(), SmallConfig(), 3));
  const InputResult one = RunOne(*single, Input(3)), many = RunOne(*loaded_, Input(3));
  EXPECT_EQ(one.logits, many.logits);
  EXPECT_EQ(one.edges, many.edges);
  EXPECT_NE(one.probabilities, many.probabilities);
}

TEST_F(MultiLabelEnsembleTest, ToleranceHoldsForTheWorstLabel) {
  const InputResult all = RunOne(*loaded_, Input(64));
  int beyond_the_leading_label = 0;
  for (const double tolerance : {0.05, 0.02, 0.01, 0.007, 1e-9}) {
    uint32_t expected = 64, of_leading = 64;
    for (uint32_t k = 63; k >= 4; --k) {
      double worst = 0.0, largest = 0.0, leading = 0.0;
      for (int32_t c = 0; c < all.labels; ++c) {
        double mean = 0.0, squares = 0.0;
        for (uint32_t s = 0; s < k; ++s) mean += all.sample_results[s].probabilities[c] / k;
        for (uint32_t s = 0; s < k; ++s) squares += std::pow(all.sample_results[s].probabilities[c] - mean, 2);
        const double error = std::sqrt(squares / (k - 1) / k);
        worst = std::max(worst, error);
        if (mean > largest) leading = error;
        largest = std::max(largest, mean);
      }
      if (worst < tolerance) expected = k;
      if (leading < tolerance) of_leading = k;
    }
    ModelInput input = Input(64);
    input.tolerance = tolerance;
    EXPECT_EQ(RunOne(*loaded_, input).samples, expected) << "tolerance " << tolerance;
    beyond_the_leading_label += expected != of_leading;
  }
  EXPECT_GT(beyond_the_leading_label, 0) << "this test tests nothing";
}

InputResult Combined(const std::vector<std::vector<float>>& samples) {
  InputResult result;
  result.rows = 1;
  result.labels = static_cast<int32_t>(samples[0].size());
  result.pairs = 1;
  result.multi_label = true;
  result.samples = static_cast<uint32_t>(samples.size());
  for (const std::vector<float>& probabilities : samples) {
    SampleResult& sample = result.sample_results.emplace_back();
    sample.logits = sample.probabilities = probabilities;
  }
  CombineSamples(result);
  return result;
}

TEST(MultiLabelCombinedTest, CertaintyIsExact) {
  const InputResult sure = Combined({{0.0f, 1.0f, 1.0f}, {0.0f, 1.0f, 1.0f}});
  EXPECT_EQ(sure.label_id[0], 1);
  EXPECT_EQ(sure.predictive_entropy[0], 0.0);
  EXPECT_FALSE(std::signbit(sure.predictive_entropy[0]));
  EXPECT_EQ(sure.mutual_information[0], 0.0);
  // Samples that are sure of opposite answers: one bit a label.
  const InputResult torn = Combined({{0.0f, 1.0f, 1.0f}, {1.0f, 0.0f, 1.0f}});
  EXPECT_DOUBLE_EQ(torn.predictive_entropy[0], 2 * std::log(2.0));
  EXPECT_DOUBLE_EQ(torn.mutual_information[0], 2 * std::log(2.0));
  // A probability so small that 1 - p is 1 counts: p (1 - ln p).
  const double tiny = 1e-30f;
  EXPECT_DOUBLE_EQ(Combined({{1e-30f}}).predictive_entropy[0], tiny * (1.0 - std::log(tiny)));
}

// Of a softmax no row is all zeros but that of a pad.
TEST(MultiLabelCombinedTest, NoToEveryLabelIsAnAnswer) {
  const InputResult none = Combined({{0.0f, 0.0f}});
  EXPECT_EQ(none.label_id[0], 0);
  EXPECT_EQ(none.predictive_entropy[0], 0.0);
}

}  // namespace
}  // namespace edgewise::testing
