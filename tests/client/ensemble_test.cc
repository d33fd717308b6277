// Parts of an ensemble merge to the whole. The whole is computed by fake_ensemble.h.
#include "edgewise/client/ensemble.h"

#include <gtest/gtest.h>

#include <cmath>
#include <ostream>
#include <utility>
#include <vector>

#include "tests/client/fake_ensemble.h"

namespace edgewise {
namespace {

using testing::kLabels;
using testing::kPad;
using testing::kPositions;
using testing::MakeResponse;
using testing::Names;
using testing::Task;

// All of `counts` one after the other.
std::vector<v1::PredictResponse> MakeParts(Task task, const std::vector<int>& counts, bool logits = true) {
  std::vector<v1::PredictResponse> parts;
  int first = 0;
  for (int count : counts) {
    parts.push_back(MakeResponse(task, first, count, logits));
    first += count;
  }
  return parts;
}

constexpr int kSamples = 30;

// 7, 11, 13, 14, 19, 23 and 29 are sizes by which a count cannot be divided and multiplied again without an error
// (29.0 / 7 * 7 is not 29).
std::vector<std::vector<int>> Splits() {
  return {{30}, {7, 23}, {1, 29}, {29, 1}, {11, 19}, {10, 10, 10}, {14, 3, 13}, std::vector<int>(kSamples, 1)};
}

void ExpectWhole(Task task, bool logits) {
  const v1::PredictResponse whole = MakeResponse(task, 0, kSamples, logits);
  for (const std::vector<int>& counts : Splits()) {
    const std::vector<v1::PredictResponse> parts = MakeParts(task, counts, logits);
    absl::StatusOr<v1::PredictResponse> merged = MergeEnsembleParts(parts, Names());
    ASSERT_TRUE(merged.ok()) << merged.status();
    EXPECT_EQ(merged->SerializeAsString(), whole.SerializeAsString())
        << counts.size() << " parts\nmerged " << merged->DebugString() << "whole " << whole.DebugString();
  }
}

TEST(EnsembleTest, PartsOfAClassificationMergeToTheBytesOfTheWhole) { ExpectWhole(Task::kClassification, true); }
TEST(EnsembleTest, PartsOfAMultiLabelModelMergeToTheBytesOfTheWhole) { ExpectWhole(Task::kMultiLabel, true); }
TEST(EnsembleTest, PartsOfTokenClassificationMergeToTheBytesOfTheWhole) { ExpectWhole(Task::kTokens, true); }
TEST(EnsembleTest, PartsOfARegressionMergeToTheBytesOfTheWhole) { ExpectWhole(Task::kRegression, false); }
TEST(EnsembleTest, PartsOfALanguageModelMergeToTheBytesOfTheWhole) { ExpectWhole(Task::kLanguage, true); }
TEST(EnsembleTest, LogitsStayAbsentWhereNoneWereAskedFor) { ExpectWhole(Task::kClassification, false); }

TEST(EnsembleTest, OneSampleHasNoDeviationAndNoMutualInformation) {
  const std::vector<v1::PredictResponse> parts = MakeParts(Task::kClassification, {1});
  absl::StatusOr<v1::PredictResponse> merged = MergeEnsembleParts(parts);
  ASSERT_TRUE(merged.ok()) << merged.status();
  for (float deviation : merged->predictions(0).stddev()) EXPECT_EQ(deviation, 0.0f);
  EXPECT_EQ(merged->predictions(0).mutual_information(), 0.0);
}

TEST(EnsembleTest, MutualInformationIsNeverNegative) {
  int negative = 0;  // before it is clamped
  for (int first = 0; first < 50; ++first) {
    v1::PredictResponse part = MakeResponse(Task::kClassification, first, 1, false);
    part.mutable_predictions()->RemoveLast();
    v1::Prediction* prediction = part.mutable_predictions(0);
    for (int copy = 1; copy < 7; ++copy) *prediction->add_sample_outputs() = prediction->sample_outputs(0);
    prediction->set_samples(7);
    absl::StatusOr<v1::PredictResponse> merged = MergeEnsembleParts({&part, 1}, Names());
    ASSERT_TRUE(merged.ok()) << merged.status();
    // Seven equal samples: the mean is each of them, but the mean of their entropies is rounded.
    const double entropy = merged->predictions(0).predictive_entropy();
    double sum = 0;
    for (int copy = 0; copy < 7; ++copy) sum += entropy;
    negative += entropy - sum / 7 < 0;
    EXPECT_GE(merged->predictions(0).mutual_information(), 0.0);
    EXPECT_LT(merged->predictions(0).mutual_information(), 1e-12);
  }
  EXPECT_GT(negative, 0) << "this test tests nothing";
}

TEST(EnsembleTest, CertaintyHasAnEntropyOfZeroAndNotOfMinusZero) {
  v1::PredictResponse part = MakeResponse(Task::kClassification, 0, 1, false);
  v1::SampleOutput* sample = part.mutable_predictions(0)->mutable_sample_outputs(0);
  for (int c = 0; c < kLabels; ++c) sample->set_probabilities(c, c == 3 ? 1.0f : 0.0f);
  const absl::StatusOr<v1::PredictResponse> merged = MergeEnsembleParts({&part, 1});
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->predictions(0).predictive_entropy(), 0.0);
  EXPECT_FALSE(std::signbit(merged->predictions(0).predictive_entropy()));
  EXPECT_FALSE(std::signbit(merged->predictions(0).mutual_information()));
}

TEST(EnsembleTest, LabelsThatAreCertainHaveNoEntropy) {
  v1::PredictResponse part = MakeResponse(Task::kMultiLabel, 0, 2, false);
  for (v1::SampleOutput& sample : *part.mutable_predictions(0)->mutable_sample_outputs()) {
    for (int c = 0; c < kLabels; ++c) sample.set_probabilities(c, c % 2 == 0 ? 1.0f : 0.0f);
  }
  const absl::StatusOr<v1::PredictResponse> merged = MergeEnsembleParts({&part, 1});
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->predictions(0).predictive_entropy(), 0.0);
  EXPECT_FALSE(std::signbit(merged->predictions(0).predictive_entropy()));
  EXPECT_EQ(merged->predictions(0).mutual_information(), 0.0);
  EXPECT_EQ(merged->predictions(0).label_id(), 0);
}

// One of two samples says yes to a label and no to the others, the other sample to the next: nothing in the parts but
// multi_label tells a question per label from one question.
TEST(EnsembleTest, WhatThePartsDoNotShowIsSaidByThem) {
  for (const bool multi_label : {false, true}) {
    std::vector<v1::PredictResponse> parts = MakeParts(Task::kClassification, {1, 1}, false);
    for (int i = 0; i < 2; ++i) {
      v1::Prediction* prediction = parts[static_cast<size_t>(i)].mutable_predictions(0);
      prediction->set_multi_label(multi_label);
      for (int c = 0; c < kLabels; ++c) {
        prediction->mutable_sample_outputs(0)->set_probabilities(c, c == i ? 1.0f : 0.0f);
      }
    }
    const absl::StatusOr<v1::PredictResponse> merged = MergeEnsembleParts(parts, Names());
    ASSERT_TRUE(merged.ok()) << merged.status();
    EXPECT_EQ(merged->predictions(0).multi_label(), multi_label);
    EXPECT_DOUBLE_EQ(merged->predictions(0).predictive_entropy(), (multi_label ? 2.0 : 1.0) * std::log(2.0));
    EXPECT_DOUBLE_EQ(merged->predictions(0).mutual_information(), (multi_label ? 2.0 : 1.0) * std::log(2.0));
  }
}

TEST(EnsembleTest, MeanIsRoundedOnceAndNotPartByPart) {
  // The mean of the parts' rounded means differs from the mean of the samples for some of these inputs; if it never
  // did, the tests above would prove nothing about rounding.
  int differ = 0;
  const std::vector<v1::PredictResponse> parts = MakeParts(Task::kTokens, {4, 5});
  const v1::PredictResponse whole = MakeResponse(Task::kTokens, 0, 9);
  for (int t = 0; t < kPositions; ++t) {
    if (t == kPad) continue;
    for (int c = 0; c < kLabels; ++c) {
      const double naive = (4.0 * parts[0].predictions(0).tokens(t).probabilities(c) +
                            5.0 * parts[1].predictions(0).tokens(t).probabilities(c)) /
                           9.0;
      differ += static_cast<float>(naive) != whole.predictions(0).tokens(t).probabilities(c);
    }
  }
  EXPECT_GT(differ, 0);
}

TEST(EnsembleTest, LikelihoodIsOfTheMeanProbabilityAndNotTheMeanLikelihood) {
  const std::vector<v1::PredictResponse> parts = MakeParts(Task::kLanguage, {1, 1});
  const double first = parts[0].predictions(0).log_likelihood(), second = parts[1].predictions(0).log_likelihood();
  absl::StatusOr<v1::PredictResponse> merged = MergeEnsembleParts(parts, Names());
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_GT(merged->predictions(0).log_likelihood(), (first + second) / 2 + 0.01);
}

TEST(EnsembleTest, TextOfOneTokenHasNoLikelihood) {
  std::vector<v1::PredictResponse> parts = MakeParts(Task::kLanguage, {2, 2});
  for (v1::PredictResponse& part : parts) {
    for (v1::Prediction& prediction : *part.mutable_predictions()) {
      prediction.set_scored_tokens(0);
      prediction.set_log_likelihood(0);
      prediction.set_perplexity(1);
      for (v1::SampleOutput& sample : *prediction.mutable_sample_outputs()) sample.clear_token_probabilities();
    }
  }
  absl::StatusOr<v1::PredictResponse> merged = MergeEnsembleParts(parts, Names());
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->predictions(0).perplexity(), 1.0);
  EXPECT_EQ(merged->predictions(0).log_likelihood(), 0.0);
}

TEST(EnsembleTest, OrderOfThePartsIsTheOrderOfTheSamples) {
  std::vector<v1::PredictResponse> parts = MakeParts(Task::kClassification, {4, 5});
  std::swap(parts[0], parts[1]);
  absl::StatusOr<v1::PredictResponse> merged = MergeEnsembleParts(parts, Names());
  ASSERT_TRUE(merged.ok());
  EXPECT_NE(merged->SerializeAsString(), MakeResponse(Task::kClassification, 0, 9).SerializeAsString());
}

TEST(EnsembleTest, TiesGoToTheFirstLabel) {
  v1::PredictResponse part = MakeResponse(Task::kClassification, 0, 1, false);
  part.mutable_predictions()->DeleteSubrange(1, 1);
  v1::SampleOutput* sample = part.mutable_predictions(0)->mutable_sample_outputs(0);
  for (int c = 0; c < kLabels; ++c) sample->set_probabilities(c, c == 0 ? 0.0f : 0.25f);
  absl::StatusOr<v1::PredictResponse> merged = MergeEnsembleParts({&part, 1}, Names());
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->predictions(0).label_id(), 1);
  EXPECT_EQ(merged->predictions(0).top(0).label(), "one");
  EXPECT_EQ(merged->predictions(0).top(1).label(), "two");
}

TEST(EnsembleTest, LabelWithoutAKnownNameGoesByItsNumber) {
  // Two parts favour labels 0 and 1, together label 2 wins, which neither names.
  std::vector<v1::PredictResponse> parts;
  for (int favourite : {0, 1}) {
    parts.push_back(MakeResponse(Task::kClassification, 0, 1, false));
    parts.back().mutable_predictions()->DeleteSubrange(1, 1);
    v1::Prediction* prediction = parts.back().mutable_predictions(0);
    prediction->clear_top();
    prediction->set_label_id(favourite);
    prediction->set_label(Names()[favourite]);
    for (int c = 0; c < kLabels; ++c) {
      prediction->mutable_sample_outputs(0)->set_probabilities(c, c == favourite ? 0.5f : c == 2 ? 0.45f : 0.0f);
    }
  }
  EXPECT_EQ(MergeEnsembleParts(parts)->predictions(0).label(), "2");
  EXPECT_EQ(MergeEnsembleParts(parts, Names())->predictions(0).label(), "two");
}

struct Refusal {
  const char* name;
  void (*spoil)(v1::PredictResponse*);  // the second of two parts
  const char* message;
};

void PrintTo(const Refusal& refusal, std::ostream* stream) { *stream << refusal.name; }

class RefusalTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(RefusalTest, NamesWhatDiffers) {
  std::vector<v1::PredictResponse> parts = MakeParts(Task::kClassification, {2, 2});
  GetParam().spoil(&parts[1]);
  absl::StatusOr<v1::PredictResponse> merged = MergeEnsembleParts(parts);
  ASSERT_EQ(merged.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(merged.status().message()).find(GetParam().message), std::string::npos) << merged.status();
}

INSTANTIATE_TEST_SUITE_P(
    EnsembleTest, RefusalTest,
    ::testing::Values(
        Refusal{"Model", [](auto* part) { part->set_model("other"); }, "parts[1].model is other, but parts[0] has toy"},
        Refusal{"Version", [](auto* part) { part->set_version(3); }, "parts[1].version is 3, but parts[0] has 2"},
        Refusal{"Seed", [](auto* part) { part->set_seed(4); },
                "parts[1].seed is 4, but parts[0] has 18364758544493064720"},
        Refusal{"Device", [](auto* part) { part->set_device("cuda/sm_90/fp32"); },
                "parts[1].device is cuda/sm_90/fp32"},
        Refusal{"Inputs", [](auto* part) { part->mutable_predictions()->RemoveLast(); },
                "parts[1].predictions: their number is 1, but parts[0] has 2"},
        Refusal{"Pairs", [](auto* part) { part->mutable_predictions(1)->mutable_edges()->set_pairs(7); },
                "parts[1].predictions[1].edges.pairs is 7, but parts[0] has 216"},
        Refusal{"Budget", [](auto* part) { part->mutable_predictions(0)->mutable_edges()->set_budget(7); },
                "parts[1].predictions[0].edges.budget is 7, but parts[0] has 120"},
        Refusal{"EachSample", [](auto* part) { part->mutable_predictions(0)->clear_sample_outputs(); },
                "has 0 sample_outputs for 2 samples; ask for outputs.each_sample"},
        Refusal{"Labels",
                [](auto* part) {
                  part->mutable_predictions(0)->mutable_sample_outputs(1)->mutable_probabilities()->RemoveLast();
                },
                "sample_outputs[1].probabilities has 4 entries, expected 5"},
        Refusal{"Logits", [](auto* part) { part->mutable_predictions(0)->mutable_sample_outputs(0)->clear_logits(); },
                "sample_outputs[0].logits has 0 entries, expected 5"},
        Refusal{"Layers",
                [](auto* part) { part->mutable_predictions(0)->mutable_edges()->mutable_layers()->RemoveLast(); },
                "edges.layers: their number is 1, but parts[0] has 2"},
        Refusal{"Truncated", [](auto* part) { part->mutable_predictions(0)->set_truncated_tokens(4); },
                "truncated_tokens is 4, but parts[0] has 3"},
        Refusal{"TokenScores", [](auto* part) { part->mutable_predictions(0)->add_token_scores(); }, ".token_scores"},
        Refusal{"TokenEmbeddings", [](auto* part) { part->mutable_predictions(0)->mutable_token_embeddings(); },
                ".token_embeddings"},
        Refusal{"Graph", [](auto* part) { part->mutable_predictions(0)->mutable_graph()->add_layers(); }, ".graph"},
        Refusal{"Heads",
                [](auto* part) {
                  part->mutable_predictions(0)->mutable_edges()->mutable_layers(1)->mutable_heads()->RemoveLast();
                },
                "parts[1].predictions[0].edges.layers.heads: their number is 2, but parts[0] has 3"},
        Refusal{"KeyDegrees",
                [](auto* part) {
                  part->mutable_predictions(0)->mutable_edges()->mutable_layers(1)->mutable_heads(1)->add_key_degrees(
                      1);
                },
                "parts[1].predictions[0].edges.layers.heads.key_degrees: their number is 7, but parts[0] has 6"},
        Refusal{"Top", [](auto* part) { part->mutable_predictions(0)->mutable_top()->RemoveLast(); },
                "parts[1].predictions[0].top has 2 labels, but parts[0] has 3"},
        Refusal{"MultiLabel", [](auto* part) { part->mutable_predictions(1)->set_multi_label(true); },
                "parts[1].predictions[1].multi_label differs from parts[0]"},
        Refusal{"Scored", [](auto* part) { part->mutable_predictions(0)->set_scored_tokens(3); },
                "parts[1].predictions[0].scored_tokens is 3, but parts[0] has 0"},
        Refusal{
            "TokenProbabilities",
            [](auto* part) { part->mutable_predictions(0)->mutable_sample_outputs(0)->add_token_probabilities(0.5); },
            "sample_outputs[0].token_probabilities has 1 entries, expected 0"}),
    [](const auto& info) { return info.param.name; });

TEST(EnsembleTest, TimingIsTheLongestWaitAndTheSumOfTheComputeTimes) {
  std::vector<v1::PredictResponse> parts = MakeParts(Task::kClassification, {2, 2});
  for (int i = 0; i < 2; ++i) {
    v1::Timing* timing = parts[i].mutable_timing();
    timing->set_queue_us(i == 0 ? 30 : 20);
    timing->set_compute_us(100 + i);
    timing->set_total_us(140 + i);
    timing->set_batch_inputs(4 - i);
  }
  const v1::Timing timing = MergeEnsembleParts(parts)->timing();
  EXPECT_EQ(timing.queue_us(), 30u);
  EXPECT_EQ(timing.compute_us(), 201u);
  EXPECT_EQ(timing.total_us(), 141u);
  EXPECT_EQ(timing.batch_inputs(), 4u);
}

TEST(EnsembleTest, TimingOfOnePartIsKeptAndTokensOfABatchAreTheMost) {
  std::vector<v1::PredictResponse> parts = MakeParts(Task::kClassification, {2, 2, 2});
  EXPECT_FALSE(MergeEnsembleParts(parts)->has_timing());
  parts[1].mutable_timing()->set_compute_us(7);
  parts[1].mutable_timing()->set_batch_tokens(90);
  EXPECT_EQ(MergeEnsembleParts(parts)->timing().compute_us(), 7u);
  parts[2].mutable_timing()->set_batch_tokens(80);
  EXPECT_EQ(MergeEnsembleParts(parts)->timing().batch_tokens(), 90u);
}

TEST(EnsembleTest, RequestIdIsThatOfTheFirstPart) {
  std::vector<v1::PredictResponse> parts = MakeParts(Task::kClassification, {2, 2});
  parts[0].set_request_id("first");
  parts[1].set_request_id("second");
  EXPECT_EQ(MergeEnsembleParts(parts)->request_id(), "first");
}

TEST(EnsembleTest, AGraphIsOfOneSampleAlone) {
  const auto merge = [](const std::vector<int>& counts) {
    std::vector<v1::PredictResponse> parts = MakeParts(Task::kClassification, counts);
    parts[0].mutable_predictions(0)->mutable_graph()->add_layers()->add_heads()->add_keys(3);
    return MergeEnsembleParts(parts);
  };
  ASSERT_TRUE(merge({1}).ok()) << merge({1}).status();
  EXPECT_EQ(merge({1})->predictions(0).graph().layers(0).heads(0).keys(0), 3u);
  for (const std::vector<int>& counts : {std::vector<int>{2}, {1, 1}}) {
    EXPECT_EQ(merge(counts).status().message(),
              "parts[0].predictions[0].graph: graphs are of one sample and cannot be merged");
  }
}

TEST(EnsembleTest, TokensAndValuesMustAgreeToo) {
  std::vector<v1::PredictResponse> tokens = MakeParts(Task::kTokens, {2, 2});
  tokens[1].mutable_predictions(1)->mutable_tokens(kPad)->set_pad(false);
  EXPECT_EQ(MergeEnsembleParts(tokens).status().message(),
            "parts[1].predictions[1].tokens[2].pad differs from parts[0]");
  tokens = MakeParts(Task::kTokens, {2, 2});
  tokens[1].mutable_predictions(1)->mutable_tokens()->RemoveLast();
  EXPECT_EQ(MergeEnsembleParts(tokens).status().message(),
            "parts[1].predictions[1] has 5 positions of 5 labels and 0 values, but parts[0] has 6, 5 and 0");
  std::vector<v1::PredictResponse> values = MakeParts(Task::kRegression, {2, 2}, false);
  values[1].mutable_predictions(0)->mutable_sample_outputs(1)->mutable_values()->RemoveLast();
  EXPECT_EQ(MergeEnsembleParts(values).status().message(),
            "parts[1].predictions[0].sample_outputs[1].values has 1 entries, expected 2");
}

TEST(EnsembleTest, NoPartsAreRefused) {
  EXPECT_EQ(MergeEnsembleParts({}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace edgewise
