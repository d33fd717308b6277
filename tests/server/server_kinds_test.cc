// Features, biases, values, overrides and language models over a real port.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/server/answered.h"
#include "tests/server/test_server.h"

namespace edgewise::server {
namespace {

v1::PredictRequest FeatureRequest(const std::string& model) {
  v1::PredictRequest request;
  request.set_model(model);
  v1::Features* features = request.add_inputs()->mutable_sequence()->mutable_features();
  features->set_rows(5);
  features->set_columns(6);
  for (int i = 0; i < 30; ++i) features->add_values(std::sin(static_cast<float>(i)));
  return request;
}

v1::PredictRequest LongText(const std::string& model, int tokens) {
  v1::PredictRequest request;
  request.set_model(model);
  v1::TokenIds* ids = request.add_inputs()->mutable_sequence()->mutable_token_ids();
  for (int i = 0; i < tokens; ++i) ids->add_values(1 + i * 7 % 22);
  request.mutable_ensemble()->set_seed(3);
  return request;
}

class KindsTest : public ::testing::Test {
 protected:
  TestServer server_;
  v1::PredictResponse response_;
};

TEST_F(KindsTest, RowsOfFeaturesAndABiasChangeTheAnswer) {
  v1::PredictRequest request = FeatureRequest("features");
  ASSERT_ANSWERED(server_.Predict(request, response_));
  const v1::Prediction plain = response_.predictions(0);
  EXPECT_EQ(plain.probabilities_size(), 4);
  EXPECT_EQ(plain.edges().pairs(), 2u * 2u * 25u);
  v1::PairwiseBias* bias = request.mutable_inputs(0)->mutable_sequence()->mutable_bias();
  for (int i = 0; i < 25; ++i) bias->add_values(i % 3 == 0 ? 2.0f : -1.0f);
  ASSERT_ANSWERED(server_.Predict(request, response_));
  EXPECT_NE(response_.predictions(0).probabilities(0), plain.probabilities(0));
}

TEST_F(KindsTest, BucketsLookUpTheModelsTable) {
  v1::PredictRequest request = SmallRequest("pairwise-buckets");
  request.mutable_ensemble()->set_seed(1);
  ASSERT_ANSWERED(server_.Predict(request, response_));
  const v1::Prediction plain = response_.predictions(0);
  std::string buckets;
  for (char i = 0; i < 16; ++i) buckets += static_cast<char>(i % 9);
  request.mutable_inputs(0)->mutable_sequence()->mutable_bias()->set_buckets(buckets);
  ASSERT_ANSWERED(server_.Predict(request, response_));
  EXPECT_NE(response_.predictions(0).probabilities(0), plain.probabilities(0));
}

TEST_F(KindsTest, RegressionGivesValuesAndTheirSpreadAndNoLabels) {
  v1::PredictRequest request = SmallRequest("regression");
  request.mutable_override()->set_kind("ssa");
  request.mutable_override()->set_keep(2);
  request.mutable_ensemble()->set_samples(5);
  request.mutable_outputs()->set_each_sample(true);
  ASSERT_ANSWERED(server_.Predict(request, response_));
  const v1::Prediction& prediction = response_.predictions(0);
  ASSERT_EQ(prediction.values_size(), 2);
  ASSERT_EQ(prediction.stddev_size(), 2);
  EXPECT_GT(prediction.stddev(0), 0.0f);
  EXPECT_EQ(prediction.probabilities_size(), 0);
  EXPECT_EQ(prediction.label(), "");
  EXPECT_EQ(prediction.predictive_entropy(), 0.0);
  ASSERT_EQ(prediction.sample_outputs_size(), 5);
  double mean = 0.0;
  for (const v1::SampleOutput& sample : prediction.sample_outputs()) {
    ASSERT_EQ(sample.values_size(), 2);
    EXPECT_EQ(sample.probabilities_size(), 0);
    mean += sample.values(0);
  }
  EXPECT_EQ(prediction.values(0), static_cast<float>(mean / 5));
  EXPECT_EQ(server_.Metric(R"(edgewise_ensemble_disagreement_ratio_sum{model="regression",version="1"})"), 0.0);
}

TEST_F(KindsTest, OverrideMakesADenseModelSparseAndAWindowOfAllIsDense) {
  v1::PredictRequest request = LongText("dense", 40);
  ASSERT_ANSWERED(server_.Predict(request, response_));
  EXPECT_EQ(response_.predictions(0).edges().density(), 1.0);
  const v1::Prediction dense = response_.predictions(0);
  request.mutable_override()->set_kind("ssa");
  request.mutable_override()->set_windows(8);
  request.mutable_override()->add_sigma(0.1);
  ASSERT_ANSWERED(server_.Predict(request, response_));
  EXPECT_EQ(response_.predictions(0).edges().density(), 0.125);
  request.mutable_override()->set_last_layers(1);
  ASSERT_ANSWERED(server_.Predict(request, response_));
  EXPECT_EQ(response_.predictions(0).edges().density(), (1 + 0.125) / 2);
  request.mutable_override()->set_windows(1);
  ASSERT_ANSWERED(server_.Predict(request, response_));
  EXPECT_EQ(response_.predictions(0).edges().density(), 1.0);
  EXPECT_EQ(response_.predictions(0).probabilities(0), dense.probabilities(0));
}

TEST_F(KindsTest, LanguageModelGivesTheNextTokenAndScoresTheText) {
  v1::PredictRequest request = LongText("lm-dense", 20);
  request.mutable_outputs()->set_top_k(3);
  request.mutable_outputs()->set_logits(true);
  request.mutable_outputs()->set_each_sample(true);
  ASSERT_ANSWERED(server_.Predict(request, response_));
  const v1::Prediction& prediction = response_.predictions(0);
  EXPECT_EQ(prediction.probabilities_size(), 24);
  EXPECT_EQ(prediction.logits_size(), 24);
  ASSERT_EQ(prediction.top_size(), 3);
  EXPECT_EQ(prediction.top(0).label(), std::to_string(prediction.label_id()));
  EXPECT_EQ(prediction.scored_tokens(), 19u);
  EXPECT_EQ(prediction.edges().pairs(), 2u * 2u * 210u);
  ASSERT_EQ(prediction.sample_outputs_size(), 1);
  const auto& probabilities = prediction.sample_outputs(0).token_probabilities();
  ASSERT_EQ(probabilities.size(), 19);
  double sum = 0.0;
  for (const double p : probabilities) sum += std::log(p);
  EXPECT_DOUBLE_EQ(prediction.log_likelihood(), sum);
  EXPECT_DOUBLE_EQ(prediction.perplexity(), std::exp(-sum / 19));
}

TEST_F(KindsTest, TextBeyondTheContextIsScoredInWindowsEachTokenOnce) {
  for (const char* model : {"lm-dense", "lm-ssa-local", "lm-block-local"}) {
    v1::PredictRequest request = LongText(model, 200);
    request.mutable_outputs()->set_each_sample(true);
    request.mutable_ensemble()->set_samples(2);
    ASSERT_ANSWERED(server_.Predict(request, response_));
    EXPECT_EQ(response_.predictions(0).scored_tokens(), 199u) << model;
    EXPECT_EQ(response_.predictions(0).sample_outputs(1).token_probabilities_size(), 199);
    EXPECT_EQ(response_.predictions(0).truncated_tokens(), 0u);
    // The first 47 are those of the first window alone.
    v1::PredictRequest first = LongText(model, 48);
    first.mutable_outputs()->set_each_sample(true);
    v1::PredictResponse alone;
    ASSERT_ANSWERED(server_.Predict(first, alone));
    for (int t = 0; t < 47; ++t) {
      EXPECT_EQ(response_.predictions(0).sample_outputs(0).token_probabilities(t),
                alone.predictions(0).sample_outputs(0).token_probabilities(t))
          << model << " " << t;
    }
    request.mutable_inputs(0)->mutable_sequence()->set_truncate(v1::HEAD);
    ASSERT_ANSWERED(server_.Predict(request, response_));
    EXPECT_EQ(response_.predictions(0).scored_tokens(), 47u);
    EXPECT_EQ(response_.predictions(0).truncated_tokens(), 152u);
  }
}

TEST_F(KindsTest, EdgesOfWindowsAreThoseThatTheMetricsCount) {
  const v1::PredictRequest request = LongText("lm-ssa-local", 100);
  ASSERT_ANSWERED(server_.Predict(request, response_));
  const std::string labels = R"({model="lm-ssa-local",version="1"})";
  EXPECT_EQ(server_.Metric("edgewise_attention_edges_total" + labels), response_.predictions(0).edges().edges());
  EXPECT_EQ(server_.Metric("edgewise_attention_pairs_total" + labels),
            static_cast<double>(response_.predictions(0).edges().pairs()));
}

TEST_F(KindsTest, PartsOfAnEnsembleMergeToTheBytesOfTheWhole) {
  v1::PredictRequest regression = SmallRequest("regression");
  regression.mutable_override()->set_kind("ssa");
  regression.mutable_override()->set_keep(2);
  std::vector<v1::PredictRequest> requests = {LongText("lm-ssa-local", 100), LongText("lm-dense", 1), regression};
  for (const char* capped : {"sbm", "ssa-local", "block-local"}) {
    requests.push_back(LongText(capped, 40));
    requests.back().mutable_budget()->set_max_density(0.19);
  }
  for (v1::PredictRequest& request : requests) {
    request.mutable_ensemble()->set_seed(5);
    request.mutable_outputs()->set_each_sample(true);
    request.mutable_outputs()->set_layer_stats(true);
    const bool labels = request.model() != "regression";
    request.mutable_outputs()->set_logits(labels);
    request.mutable_outputs()->set_top_k(labels ? 3 : 0);
    v1::PredictResponse whole;
    ExpectPartsMerge(server_, request, whole);
    EXPECT_EQ(whole.predictions(0).edges().capped(), request.has_budget()) << request.model();
  }
}

TEST_F(KindsTest, ModelsSayWhatTheyTake) {
  v1::GetModelRequest request;
  v1::GetModelResponse model;
  const auto get = [&](const char* name) {
    CallContext context;
    request.set_model(name);
    EXPECT_TRUE(server_.stub().GetModel(&context, request, &model).ok());
    return model.model();
  };
  EXPECT_EQ(get("features").feature_size(), 6u);
  EXPECT_EQ(get("features").pairwise_bias(), "values");
  EXPECT_EQ(get("features").vocab_size(), 0u);
  EXPECT_EQ(get("pairwise-buckets").num_buckets(), 9u);
  EXPECT_EQ(get("pairwise-buckets").pairwise_bias(), "buckets");
  EXPECT_FALSE(get("pairwise-buckets").causal());
  EXPECT_TRUE(get("lm-dense").causal());
  EXPECT_EQ(get("lm-dense").pairwise_bias(), "none");
  EXPECT_EQ(get("lm-dense").labels_size(), 0);
}

}  // namespace
}  // namespace edgewise::server
