// edgewise evaluate: what it says of answers where the data knows what is right.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "client/cli/request/label_names.h"
#include "tests/client/evaluate_fixture.h"

namespace edgewise::cli {
namespace {

using EvaluateQualityTest = EvaluateTest;
using Response = absl::StatusOr<v1::PredictResponse>;

// What the fixture answers to dense attention, "negative" with p = 0.75 or 0.25, is right in the second of four.
TEST_F(EvaluateQualityTest, LabelsGiveTheMeasuresOfAClassifier) {
  answer_ = [](const v1::PredictRequest& request) {
    Response response = Answer(request);
    v1::Prediction& prediction = *response->mutable_predictions(0);
    const size_t length = request.inputs(0).sequence().text().size();
    prediction.set_predictive_entropy(length == 1 ? 0.1 : 0.2 * static_cast<double>(length));  // 0.1 0.4 0.6 0.8
    prediction.set_mutual_information(length == 4 ? 0.0 : 0.5);
    return response;
  };
  const nlohmann::json json = RunJson({"--model=toy", "--samples=1,8"});
  const nlohmann::json& dense = json["settings"][0]["measures"];  // answers 0 0 0 0, labels 1 0 1 1
  EXPECT_EQ(dense["accuracy"], 0.25);
  EXPECT_DOUBLE_EQ(dense["macro_f1"], (2.0 / 5 + 0) / 2);
  // p of "negative" is 0.25, 0.75, 0.25, 0.75: two wrong at 0.25, one right and one wrong at 0.75.
  EXPECT_DOUBLE_EQ(dense["calibration_error"], (2 * 0.25 + 2 * 0.25) / 4);
  EXPECT_DOUBLE_EQ(dense["auroc_entropy"], 2.0 / 3) << "the right one has 0.4";
  EXPECT_EQ(dense["auroc_mutual_information"], nullptr) << "one sample has none";
  const nlohmann::json& samples = json["settings"][2]["measures"];  // answers 1 0 1 0
  EXPECT_EQ(samples["auroc_entropy"], 1.0);
  EXPECT_EQ(samples["auroc_mutual_information"], 0.0);
  EXPECT_DOUBLE_EQ(samples["macro_f1"], (4.0 / 5 + 2.0 / 3) / 2);
}

TEST_F(EvaluateQualityTest, LabelsMayBeTheNamesOfTheModel) {
  const std::string named =
      "{\"text\": \"a\", \"label\": \"positive\"}\n{\"text\": \"bb\", \"label\": \"negative\"}\n"
      "{\"text\": \"ccc\", \"label\": 1}\n{\"text\": \"dddd\", \"label\": \"positive\"}\n";
  EXPECT_EQ(RunJson({"--model=toy"}, kExitOk, named)["settings"], RunJson({"--model=toy"})["settings"]);
  const size_t calls = calls_.size();
  const EvaluateOutcome run = Run({"--model=toy"}, named + "{\"text\": \"e\", \"label\": \"mixed\"}\n");
  EXPECT_EQ(run.status, kExitUsage);
  EXPECT_HAS(run.err, ".jsonl:5: label is \"mixed\"; the model has the labels negative, positive\n");
  EXPECT_EQ(calls_.size(), calls) << "before the time of all is spent";
  EXPECT_HAS(Run({"--model=encoder"}, "{\"text\": \"e\", \"label\": \"mixed\"}\n").err,
             ".jsonl:1: label is \"mixed\"; the model's labels have no names; give a number");
}

TEST(LabelNamesTest, NamesBecomeIdsAndNumbersStay) {
  v1::ModelInfo model;
  for (const char* name : {"O", "B-PER", "twice", "twice"}) model.add_labels(name);
  std::vector<LabelledInput> inputs(1);
  inputs[0] = *ParseInputLine(R"({"text": "a", "labels": ["B-PER", null, 2, "O"]})");
  EXPECT_TRUE(HasLabelNames(inputs));
  ASSERT_EQ(ResolveLabelNames(model, inputs), absl::OkStatus());
  EXPECT_EQ(inputs[0].labels, (std::vector<std::optional<int32_t>>{1, std::nullopt, 2, 0}));
  EXPECT_FALSE(HasLabelNames(inputs));
  inputs[0] = *ParseInputLine(R"({"text": "a", "labels": [0, "twice"]})");
  inputs[0].place = "f:3";
  EXPECT_EQ(ResolveLabelNames(model, inputs),
            absl::InvalidArgumentError(
                "f:3: labels[1] is \"twice\"; the model has several labels of this name; give a number"));
  for (int i = 4; i < 1030; ++i) model.add_labels(absl::StrCat("l", i));
  inputs[0] = *ParseInputLine(R"({"text": "a", "label": "x"})");
  const std::string message(ResolveLabelNames(model, inputs).message());
  EXPECT_HAS(message, "label is \"x\"; the model has the labels O, B-PER, twice, twice, l4, ");
  EXPECT_HAS(message, ", l19, ... (1,030 in all)");
}

TEST_F(EvaluateQualityTest, WithoutErrorsTheirDetectionIsUnknown) {
  const std::string right = "{\"text\": \"a\", \"label\": 1}\n{\"text\": \"bb\", \"label\": 0}\n";
  const nlohmann::json json = RunJson({"--model=toy", "--samples=4"}, kExitOk, right);
  EXPECT_EQ(json["settings"][1]["measures"]["accuracy"], 1.0);
  EXPECT_EQ(json["settings"][1]["measures"]["auroc_entropy"], nullptr);
  EXPECT_EQ(json["settings"][1]["measures"]["auroc_mutual_information"], nullptr);
  EXPECT_HAS(Run({"--model=toy", "--samples=4"}, right).out,
             "  2  no cap        4  100.00 %            25.00 %              -                         -              "
             "0.0123\n");
}

TEST_F(EvaluateQualityTest, RefusedRowHasNoQuality) {
  const EvaluateOutcome run = Run({"--model=toy", "--caps=0.1%", "--samples=2"});
  EXPECT_HAS(run.out, "\n  3  cap 0.1 %        2         -                  -");
}

TEST_F(EvaluateQualityTest, TokensWithALabelCountEach) {
  answer_ = [](const v1::PredictRequest& request) {
    Response response = Answer(request);
    v1::Prediction& prediction = *response->mutable_predictions(0);
    prediction.clear_probabilities();
    for (const int label : {0, 1, 2, 0}) {
      v1::TokenPrediction& token = *prediction.add_tokens();
      token.set_pad(prediction.tokens_size() == 4);
      token.set_label_id(label);
      for (int c = 0; c < 3 && !token.pad(); ++c) token.add_probabilities(c == label ? 0.5f : 0.25f);
      token.set_predictive_entropy(label == 2 ? 0.9 : 0.1);
    }
    return response;
  };
  const std::string data = "{\"text\": \"a\", \"labels\": [0, null, 1, 2]}\n";
  const nlohmann::json row = RunJson({"--model=toy"}, kExitOk, data)["settings"][0];
  EXPECT_EQ(row["known"], 2) << "neither the unknown one nor the pad";
  EXPECT_EQ(row["quality"], 0.5);
  EXPECT_DOUBLE_EQ(row["measures"]["macro_f1"], (1.0 + 0 + 0) / 3);
  EXPECT_EQ(row["measures"]["calibration_error"], 0.0);
  EXPECT_EQ(row["measures"]["auroc_entropy"], 1.0);
}

// Of a multi-label model, by the length of the text.
Response YesOrNo(const v1::PredictRequest& request) {
  constexpr float kProbabilities[][2] = {{0.875f, 0.25f}, {0.625f, 0.75f}, {0.125f, 0.25f}, {0.75f, 0.375f}};
  constexpr double kEntropies[] = {0.1, 0.4, 0.6, 0.8};
  v1::PredictResponse response = edgewise::testing::PlausibleAnswer(request);
  v1::Prediction& prediction = *response.mutable_predictions(0);
  const size_t index = request.inputs(0).sequence().text().size() - 1;
  prediction.clear_probabilities();
  for (const float p : kProbabilities[index]) prediction.add_probabilities(p);
  prediction.set_multi_label(true);
  prediction.set_label_id(index == 1 ? 1 : 0);
  prediction.set_predictive_entropy(kEntropies[index]);
  return response;
}

TEST_F(EvaluateQualityTest, AnAnswerOfSeveralLabelsIsRightWhereAllOfThemAre) {
  answer_ = YesOrNo;
  const std::string data =
      "{\"text\": \"a\", \"labels\": [\"negative\"]}\n{\"text\": \"bb\", \"labels\": [0]}\n"
      "{\"text\": \"ccc\", \"labels\": []}\n{\"text\": \"dddd\", \"labels\": [\"positive\", 0]}\n";
  const nlohmann::json row = RunJson({"--model=toy"}, kExitOk, data)["settings"][0];
  EXPECT_EQ(row["known"], 4);
  EXPECT_EQ(row["quality"], 0.5) << "the answers are 0, 0 and 1, none, 0";
  EXPECT_EQ(row["measures"]["macro_f1"], 0.5) << "all of label 0 are found; of label 1 none, and one is wrong";
  // Of the eight answers of yes or no, those of 0.875 are both right, of 0.75 three of four, of 0.625 one of two.
  EXPECT_DOUBLE_EQ(row["measures"]["calibration_error"], (2 * 0.125 + 4 * 0.0 + 2 * 0.125) / 8);
  EXPECT_EQ(row["measures"]["auroc_entropy"], 0.75);
  const std::string table = Run({"--model=toy"}, data).out;
  EXPECT_HAS(table, "accuracy     of 4 answers a row: all labels of an input are right\n");
  EXPECT_HAS(table, "bins of the confidence,\n             of every label's yes or no\n");
}

TEST_F(EvaluateQualityTest, LabelsOfAMultiLabelModelAreAListOfThoseThatHold) {
  answer_ = YesOrNo;
  EXPECT_HAS(Run({"--model=toy"}, "{\"text\": \"a\", \"label\": 1}\n").err,
             "label is there, and the model is multi-label; give \"labels\", a list of those that hold");
  EXPECT_HAS(Run({"--model=toy"}, "{\"text\": \"a\", \"labels\": [1, null]}\n").err,
             "labels[1] is null, and the model is multi-label; give the labels that hold, and leave out the others");
  EXPECT_HAS(Run({"--model=toy"}, "{\"text\": \"a\", \"labels\": [2]}\n").err,
             "labels[0] is 2; the model has the labels 0 to 1");
}

// The embedding of a text is at an angle of its length, in tenths of a radian.
Response Embed(const v1::PredictRequest& request) {
  v1::PredictResponse response = edgewise::testing::PlausibleAnswer(request);
  for (int i = 0; i < request.inputs_size(); ++i) {
    v1::Prediction& prediction = *response.mutable_predictions(i);
    prediction.clear_probabilities();
    const double angle = 0.1 * static_cast<double>(request.inputs(i).sequence().text().size());
    prediction.add_embedding(static_cast<float>(3 * std::cos(angle)));
    prediction.add_embedding(static_cast<float>(3 * std::sin(angle)));
    prediction.mutable_edges()->set_max_sample_edges(i == 1 && request.budget().max_density() > 0 ? 161 : 40);
    prediction.mutable_edges()->set_pairs(160 + 160 * i);
  }
  return response;
}

constexpr char kPairData[] =
    "{\"text\": \"a\", \"second_text\": \"b\", \"value\": 5}\n"
    "{\"text\": \"aaaa\", \"second_text\": \"b\", \"value\": 2}\n"
    "{\"text\": \"aa\", \"second_text\": \"b\", \"value\": 3}\n"
    "{\"text\": \"aaaaaaaa\", \"second_text\": \"b\", \"value\": 2.5}\n";

TEST_F(EvaluateQualityTest, PairsOfTextsAreRankedByTheCosineOfTheirEmbeddings) {
  answer_ = Embed;
  const nlohmann::json json = RunJson({"--model=encoder"}, kExitOk, kPairData);
  EXPECT_EQ(json["measure"], "rank_correlation");
  const nlohmann::json& row = json["settings"][0];
  EXPECT_DOUBLE_EQ(row["quality"], 0.8) << "the last two values change places";
  EXPECT_EQ(row["measures"].size(), 1u);
  EXPECT_EQ(row["edges"], 80) << "of both texts";
  EXPECT_DOUBLE_EQ(row["density"], 80.0 / 480);
  for (const v1::PredictRequest& call : calls_) {
    ASSERT_EQ(call.inputs_size(), 2);
    EXPECT_FALSE(call.inputs(0).has_second());
    EXPECT_EQ(call.inputs(1).sequence().text(), "b");
  }
  EXPECT_HAS(Run({"--model=encoder"}, kPairData).out, "rank correlation");
}

TEST_F(EvaluateQualityTest, CapOfAPairHoldsForEachText) {
  answer_ = Embed;
  const EvaluateOutcome run = Run({"--model=encoder", "--caps=50%"}, kPairData);
  EXPECT_EQ(run.status, kExitServer);
  EXPECT_HAS(run.err, "4 answers above \"cap 50 %\"; first input 1: a sample has 161 edges of 320 pairs");
}

TEST_F(EvaluateQualityTest, SameValueEverywhereHasNoRanks) {
  answer_ = Embed;
  const std::string flat = "{\"text\": \"a\", \"second_text\": \"b\", \"value\": 5}\n";
  EXPECT_EQ(RunJson({"--model=encoder"}, kExitOk, flat)["settings"][0]["quality"], nullptr);
  EXPECT_HAS(Run({"--model=encoder"}, flat).out, "\n  1  dense         1         1                 -");
  EXPECT_EQ(RunJson({"--model=encoder"}, kExitOk, "{\"text\": \"a\"}\n")["measure"], "") << "nothing to compare with";
}

TEST_F(EvaluateQualityTest, RegressionHasErrorAndRanks) {
  answer_ = [](const v1::PredictRequest& request) {
    Response response = Answer(request);
    const auto length = static_cast<float>(request.inputs(0).sequence().text().size());
    response->mutable_predictions(0)->add_values(length * length);
    return response;
  };
  const std::string data =
      "{\"text\": \"a\", \"value\": 1}\n{\"text\": \"bb\", \"value\": 2}\n{\"text\": \"ccc\", \"value\": 3}\n";
  const nlohmann::json json = RunJson({"--model=toy"}, kExitOk, data);
  EXPECT_EQ(json["measure"], "error");
  EXPECT_DOUBLE_EQ(json["settings"][0]["quality"], 8.0 / 3);
  EXPECT_EQ(json["settings"][0]["measures"]["rank_correlation"], 1.0);
}

TEST_F(EvaluateQualityTest, LanguageModelHasLossAndPerplexity) {
  answer_ = [](const v1::PredictRequest& request) {
    Response response = Answer(request);
    response->mutable_predictions(0)->set_log_likelihood(-3.0);
    response->mutable_predictions(0)->set_scored_tokens(2);
    return response;
  };
  const nlohmann::json row = RunJson({"--model=toy"}, kExitOk, "{\"text\": \"a\"}\n")["settings"][0];
  EXPECT_EQ(row["quality"], 1.5);
  EXPECT_DOUBLE_EQ(row["measures"]["perplexity"], std::exp(1.5));
  EXPECT_HAS(Run({"--model=toy"}, "{\"text\": \"a\"}\n").out, "4.4817");
}

TEST_F(EvaluateQualityTest, LabelThatTheModelDoesNotHaveIsNamedWithItsPlace) {
  const std::pair<const char*, const char*> kCases[] = {
      {"\"label\": 2", "label is 2; the model has the labels 0 to 1"},
      {"\"label\": -1", "label is -1; the model has the labels 0 to 1"},
      {"\"labels\": [1]", "labels is there, and the model has one label for an input; give \"label\""},
      {"\"value\": 1", "value is there, and the model answers with labels; give \"label\""},
  };
  for (const auto& [label, message] : kCases) {
    calls_.clear();
    const EvaluateOutcome run = Run({"--model=toy"}, absl::StrCat(kLabelled, "\n{\"text\": \"a\", ", label, "}\n"));
    EXPECT_EQ(run.status, kExitUsage);
    EXPECT_HAS(run.err, absl::StrCat(".jsonl:6: ", message));
    EXPECT_EQ(run.out, "");
    EXPECT_EQ(calls_.size(), 2u * 2) << "to warm up, and the first input";
  }
  answer_ = Embed;
  EXPECT_HAS(Run({"--model=encoder"}, "{\"text\": \"a\", \"label\": 1}\n").err,
             ".jsonl:1: label is there, and the model answers with embeddings; give \"value\"");
  EXPECT_HAS(Run({"--model=encoder"}, "{\"text\": \"a\", \"value\": 1}\n").err,
             ".jsonl:1: value is there without a second text");
}

TEST_F(EvaluateQualityTest, LabelsOfAnotherNumberOfTokensAreNamedWithTheirPlace) {
  answer_ = [](const v1::PredictRequest& request) {
    Response response = Answer(request);
    for (size_t t = 0; t < request.inputs(0).sequence().text().size(); ++t) {
      response->mutable_predictions(0)->add_tokens()->add_probabilities(1.0f);
    }
    return response;
  };
  const std::string data = "{\"text\": \"a\", \"labels\": [0]}\n{\"text\": \"bb\", \"labels\": [0]}\n";
  EXPECT_HAS(Run({"--model=toy"}, data).err, ".jsonl:2: labels has 1 entries; the answer has 2");
  EXPECT_HAS(Run({"--model=toy"}, "{\"text\": \"a\", \"labels\": [1]}\n").err,
             ".jsonl:1: labels[0] is 1; the model has the labels 0 to 0");
  EXPECT_HAS(Run({"--model=toy"}, "{\"text\": \"a\", \"label\": 0}\n").err, "give \"labels\"");
}

}  // namespace
}  // namespace edgewise::cli
