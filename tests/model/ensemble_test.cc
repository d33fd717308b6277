// Promise 3 (docs/promises.md): self-ensembles.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "model/kinds/kind.h"
#include "tests/model/model_builder.h"
#include "tests/model/model_kinds.h"
#include "tests/model/run_model.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;

class EnsembleTest : public ::testing::Test {
 protected:
  EnsembleTest() : loaded_(LoadModel(WriteModel(folder_.path(), SmallConfig(), 3))) {}

  ModelInput Input(uint32_t samples) const {
    ModelInput input = MakeInput(*loaded_, RandomTokens(25, 50, 4));
    input.seed = 77;
    input.samples = samples;
    return input;
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
};

TEST_F(EnsembleTest, TheAnswerIsTheMeanAndSpreadOfItsSamples) {
  const InputResult result = RunOne(*loaded_, Input(7));
  ASSERT_EQ(result.samples, 7u);
  double entropy_of_mean = 0.0, mean_entropy = 0.0;
  for (int32_t c = 0; c < result.labels; ++c) {
    double sum = 0.0, squares = 0.0, logits = 0.0;
    for (const SampleResult& sample : result.sample_results) {
      sum += sample.probabilities[c];
      logits += sample.logits[c];
    }
    const double mean = sum / 7;
    for (const SampleResult& sample : result.sample_results) squares += std::pow(sample.probabilities[c] - mean, 2);
    EXPECT_EQ(result.probabilities[c], static_cast<float>(mean));
    EXPECT_EQ(result.logits[c], static_cast<float>(logits / 7));
    EXPECT_FLOAT_EQ(result.stddev[c], static_cast<float>(std::sqrt(squares / 6)));
    entropy_of_mean -= mean * std::log(mean);
    for (const SampleResult& sample : result.sample_results) {
      mean_entropy -= sample.probabilities[c] * std::log(static_cast<double>(sample.probabilities[c])) / 7;
    }
  }
  EXPECT_GT(result.stddev[0], 0.0f);
  EXPECT_NEAR(result.predictive_entropy[0], entropy_of_mean, 1e-12);
  EXPECT_NEAR(result.mutual_information[0], entropy_of_mean - mean_entropy, 1e-12);
  EXPECT_GT(result.mutual_information[0], 0.0);
}

TEST_F(EnsembleTest, SamplesDrawDifferentEdges) {
  const InputResult result = RunOne(*loaded_, Input(4));
  EXPECT_NE(result.sample_results[0].probabilities, result.sample_results[1].probabilities);
  EXPECT_NE(result.sample_results[2].probabilities, result.sample_results[3].probabilities);
}

TEST_F(EnsembleTest, OneSampleHasNoSpread) {
  const InputResult result = RunOne(*loaded_, Input(1));
  for (float deviation : result.stddev) EXPECT_EQ(deviation, 0.0f);
  EXPECT_EQ(result.mutual_information[0], 0.0);
}

class EnsembleOfEveryKind : public ::testing::TestWithParam<ModelKind> {
 protected:
  EnsembleOfEveryKind() : loaded_(LoadModel(WriteModel(folder_.path(), ConfigOf(GetParam()), 3))) {
    std::mt19937_64 random(4);
    do {
      input_ = RandomInput(GetParam(), *loaded_, random);
    } while (input_.sequences[0].valid() < 15);
    input_.samples = 9;
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
  ModelInput input_;
};

TEST_P(EnsembleOfEveryKind, PartsAreTheSamplesOfTheWhole) {
  const InputResult whole = RunOne(*loaded_, input_);
  InputResult merged = whole;
  merged.sample_results.clear();
  ModelInput part = input_;
  for (const uint32_t count : {4u, 1u, 4u}) {
    part.samples = count;
    const InputResult result = RunOne(*loaded_, part);
    for (const SampleResult& sample : result.sample_results) merged.sample_results.push_back(sample);
    part.first_sample += count;
  }
  CombineSamples(merged);
  EXPECT_TRUE(SameBytes(whole, merged));
}

TEST_P(EnsembleOfEveryKind, WavesChangeNoByte) {
  const InputResult whole = RunOne(*loaded_, input_);
  for (const int64_t tokens : {1, 25, 60, 130}) {
    Pass::Options options;
    options.max_wave_tokens = tokens;
    EXPECT_TRUE(SameBytes(whole, RunAll(*loaded_, {input_}, options)[0])) << tokens << " tokens a wave";
  }
}

// Whenever the limit comes, whatever has run by then.
TEST_P(EnsembleOfEveryKind, ALimitGivesTheBytesOfAnEnsembleOfSoMany) {
  const std::vector<ModelInput> inputs = {input_, input_};
  std::map<uint32_t, InputResult> asked;  // by samples
  for (const int64_t wave : {int64_t{1}, kMaxWaveTokens}) {
    for (const int steps : {0, 3, 7, 12, 20}) {
      Pass pass(*loaded_, inputs, {.max_wave_tokens = wave});
      for (int step = 0; step < steps; ++step) ASSERT_TRUE(pass.Step().ok());
      std::vector<uint32_t> limits;
      for (size_t i = 0; i < inputs.size(); ++i) {
        limits.push_back(std::max(i == 0 ? 2u : 1u, pass.samples_done(i)));
        pass.Limit(i, limits[i]);
        EXPECT_EQ(pass.done(i), pass.samples_done(i) >= limits[i]);
      }
      while (!pass.done()) ASSERT_TRUE(pass.Step().ok());
      for (size_t i = 0; i < inputs.size(); ++i) {
        ModelInput fewer = inputs[i];
        fewer.samples = limits[i];
        if (!asked.contains(limits[i])) asked.emplace(limits[i], RunOne(*loaded_, fewer));
        const InputResult result = pass.TakeResult(i);
        EXPECT_EQ(result.samples, limits[i]);
        EXPECT_TRUE(SameBytes(result, asked.at(limits[i]))) << limits[i] << " samples after " << steps << " steps";
      }
    }
  }
}

TEST_P(EnsembleOfEveryKind, TheSamplesDifferWhereSomethingIsDrawn) {
  const InputResult result = RunOne(*loaded_, input_);
  const bool differ =
      std::any_of(result.sample_results.begin(), result.sample_results.end(),
                  [&](const SampleResult& sample) { return sample.logits != result.sample_results[0].logits; });
  EXPECT_EQ(differ, loaded_->Samples(input_));
  for (float deviation : result.stddev) EXPECT_TRUE(differ || deviation == 0.0f);
}

INSTANTIATE_TEST_SUITE_P(Kinds, EnsembleOfEveryKind, ::testing::ValuesIn(ModelKinds()),
                         [](const auto& info) { return info.param.name; });

// The likelihood of a text is made of the samples' mean probabilities, not of their mean likelihoods.
TEST(LanguageEnsembleTest, TheLikelihoodIsOfTheMeanProbabilityOfEveryToken) {
  const TemporaryFolder folder;
  const ModelKind kind = LanguageModelKinds()[3];
  const LoadedModel loaded = LoadModel(WriteModel(folder.path(), ConfigOf(kind), 3));
  ModelInput input = MakeInput(*loaded, RandomTokens(40, 50, 4));
  input.samples = 5;
  const InputResult result = RunOne(*loaded, input);
  double sum = 0.0;
  for (size_t t = 0; t < 39; ++t) {
    double mean = 0.0;
    for (const SampleResult& sample : result.sample_results) mean += sample.token_probabilities[t];
    sum += std::log(mean / 5);
  }
  EXPECT_DOUBLE_EQ(result.log_likelihood, sum);
  EXPECT_DOUBLE_EQ(result.perplexity, std::exp(-sum / 39));
}

// A regression stops when the worst of its values is known well enough.
TEST(RegressionEnsembleTest, ToleranceHoldsForEveryValue) {
  json config = SmallConfig();
  config["task"] = "regression";
  const TemporaryFolder folder;
  const LoadedModel loaded = LoadModel(WriteModel(folder.path(), config, 3));
  ModelInput input = MakeInput(*loaded, RandomTokens(25, 50, 4));
  input.samples = 64;
  const InputResult all = RunOne(*loaded, input);
  EXPECT_EQ(all.label_id[0], -1);
  EXPECT_EQ(all.predictive_entropy[0], 0.0);
  for (const double tolerance : {0.1, 0.03, 0.01, 1e-9}) {
    uint32_t expected = 64;
    for (uint32_t k = 4; k < expected; ++k) {
      double worst = 0.0;
      for (int32_t c = 0; c < all.labels; ++c) {
        double mean = 0.0, squares = 0.0;
        for (uint32_t s = 0; s < k; ++s) mean += all.sample_results[s].probabilities[c] / k;
        for (uint32_t s = 0; s < k; ++s) squares += std::pow(all.sample_results[s].probabilities[c] - mean, 2);
        worst = std::max(worst, std::sqrt(squares / (k - 1) / k));
      }
      if (worst < tolerance) expected = k;
    }
    input.tolerance = tolerance;
    EXPECT_EQ(RunOne(*loaded, input).samples, expected) << "tolerance " << tolerance;
  }
}

TEST_F(EnsembleTest, ToleranceStopsAtTheFirstSampleThatMeetsIt) {
  const InputResult all = RunOne(*loaded_, Input(64));
  for (const double tolerance : {0.1, 0.01, 0.003, 1e-9}) {
    uint32_t expected = 0;
    for (uint32_t k = 4; k <= 64 && expected == 0; ++k) {
      std::vector<double> mean(all.labels, 0.0);
      for (uint32_t s = 0; s < k; ++s) {
        for (int32_t c = 0; c < all.labels; ++c) mean[c] += all.sample_results[s].probabilities[c] / k;
      }
      const size_t leading = std::max_element(mean.begin(), mean.end()) - mean.begin();
      double squares = 0.0;
      for (uint32_t s = 0; s < k; ++s) {
        squares += std::pow(all.sample_results[s].probabilities[leading] - mean[leading], 2);
      }
      if (std::sqrt(squares / (k - 1) / k) < tolerance) expected = k;
    }
    ModelInput input = Input(64);
    input.tolerance = tolerance;
    const InputResult result = RunOne(*loaded_, input);
    EXPECT_EQ(result.samples, expected == 0 ? 64u : expected) << "tolerance " << tolerance;
    InputResult same = RunOne(*loaded_, Input(result.samples));
    EXPECT_TRUE(SameBytes(same, result)) << "surplus samples leave no trace";
  }
}

TEST_F(EnsembleTest, DenseSamplesAreAllAlike) {
  ModelInput input = Input(5);
  input.dense = true;
  const InputResult result = RunOne(*loaded_, input);
  ASSERT_EQ(result.sample_results.size(), 5u);
  for (float deviation : result.stddev) EXPECT_EQ(deviation, 0.0f);
}

TEST_F(EnsembleTest, LayersBelowTheFirstDrawnOneAreSharedAndCounted) {
  json config = SmallConfig();
  const json sbm = config["attention"];
  config["num_hidden_layers"] = 3;
  config["attention"] = {{{"kind", "dense"}}, sbm, {{"kind", "dense"}}};
  const TemporaryFolder folder;
  const LoadedModel loaded = LoadModel(WriteModel(folder.path(), config));
  ModelInput input = MakeInput(*loaded, RandomTokens(10, 50, 5));
  input.samples = 5;
  const InputResult result = RunOne(*loaded, input);
  for (const SampleResult& sample : result.sample_results) {
    ASSERT_EQ(sample.layers.size(), 3u);
    EXPECT_EQ(sample.layers[0][0].edges, 100u);
    EXPECT_EQ(sample.layers[2][1].edges, 100u);
    EXPECT_LT(sample.layers[1][0].edges, 100u);
  }
  for (uint32_t s = 0; s < 5; ++s) {
    ModelInput one = input;
    one.samples = 1;
    one.first_sample = s;
    EXPECT_EQ(RunOne(*loaded, one).logits, result.sample_results[s].logits) << "as computed alone";
  }
}

// A likelihood of 0 has no finite logarithm; one that is small enough has no finite perplexity.
TEST(ScoredTokensTest, AnImpossibleTextFailsAndSaysWhy) {
  const auto combined = [](std::vector<double> first, std::vector<double> second) {
    InputResult result;
    result.rows = result.labels = 1;
    result.pairs = 1;
    result.samples = 2;
    for (std::vector<double>* probabilities : {&first, &second}) {
      SampleResult& sample = result.sample_results.emplace_back();
      sample.logits = sample.probabilities = {1.0f};
      sample.token_probabilities = *probabilities;
    }
    CombineSamples(result);
    return result;
  };
  EXPECT_EQ(combined({0.0, 0.5}, {0.0, 0.5}).status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(combined({5e-324}, {5e-324}).status.code(), absl::StatusCode::kInternal);
  const InputResult possible = combined({0.0, 0.5}, {0.5, 0.5});
  EXPECT_TRUE(possible.status.ok());
  EXPECT_DOUBLE_EQ(possible.log_likelihood, std::log(0.25) + std::log(0.5));
}

// Samples that are all alike have no mutual information, though the mean of their entropies is rounded.
TEST(MutualInformationTest, IsNeverNegativeNorMinusZero) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<float> weight(0.0f, 1.0f);
  int negative = 0;  // before it is clamped
  for (int round = 0; round < 200; ++round) {
    std::vector<float> probabilities(5);
    float sum = 0.0f;
    for (float& p : probabilities) sum += p = weight(random);
    for (float& p : probabilities) p /= sum;
    if (round == 0) probabilities = {0.0f, 1.0f, 0.0f, 0.0f, 0.0f};
    InputResult result;
    result.rows = 1;
    result.labels = 5;
    result.pairs = 1;
    result.samples = 7;
    result.sample_results.resize(7);
    for (SampleResult& sample : result.sample_results) sample.logits = sample.probabilities = probabilities;
    CombineSamples(result);
    ASSERT_TRUE(result.status.ok()) << result.status;
    const double entropy = result.predictive_entropy[0];
    double entropies = 0.0;
    for (int sample = 0; sample < 7; ++sample) entropies += entropy;
    negative += entropy - entropies / 7 < 0.0;
    EXPECT_FALSE(std::signbit(result.mutual_information[0])) << result.mutual_information[0];
    EXPECT_FALSE(std::signbit(entropy)) << entropy;
    EXPECT_LT(result.mutual_information[0], 1e-12);
  }
  EXPECT_GT(negative, 0) << "this test tests nothing";
}

TEST(CombinedEdgesTest, MeansAndTheMostOfTheSamplesThatCount) {
  InputResult result;
  result.rows = result.labels = 1;
  result.pairs = 80;
  result.samples = 2;  // the third is surplus
  const uint64_t edges[] = {30, 10, 70}, isolated[] = {1, 4, 9};
  for (int s = 0; s < 3; ++s) {
    SampleResult& sample = result.sample_results.emplace_back();
    sample.logits = sample.probabilities = {1.0f};
    sample.edges = edges[s];
    sample.isolated = isolated[s];
    sample.capped = s == 0;
    sample.layers.resize(2);
    for (auto& layer : sample.layers) {
      for (const double expected : {1.5, 4.0}) layer.emplace_back().expected = expected * (s + 1);
    }
  }
  CombineSamples(result);
  EXPECT_EQ(result.edges, 20.0);
  EXPECT_EQ(result.max_sample_edges, 30u);
  EXPECT_EQ(result.isolated_queries, 2.5);
  EXPECT_EQ(result.expected_edges, 16.5);
  EXPECT_EQ(result.density, 0.25);
  EXPECT_TRUE(result.capped);
  for (SampleResult& sample : result.sample_results) sample.capped = &sample == &result.sample_results[2];
  CombineSamples(result);
  EXPECT_FALSE(result.capped);
}

}  // namespace
}  // namespace edgewise::testing
