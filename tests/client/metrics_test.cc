// The measures of client/metrics: by hand, at their edges, and against those of tests/reference/make_metrics.py.
#include "client/metrics/metrics.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

namespace edgewise {
namespace {

using Classes = std::vector<std::vector<int32_t>>;

// One class each.
Classes One(const std::vector<int32_t>& classes) {
  Classes sets;
  for (const int32_t one : classes) sets.push_back({one});
  return sets;
}

TEST(MacroF1Test, CountsEveryClassAlike) {
  // Class 0: 3 labels, 4 answers, 3 hits; class 1: 2 labels, 1 answer, 1 hit.
  const std::vector<int32_t> labels = {0, 0, 0, 1, 1}, answers = {0, 0, 0, 0, 1};
  EXPECT_DOUBLE_EQ(*MacroF1(One(labels), One(answers)), (6.0 / 7 + 2.0 / 3) / 2);
}

TEST(MacroF1Test, AnInputMayHaveSeveralClassesOrNone) {
  // Class 0: 2 labels, 3 answers, 2 hits; class 1: 2 labels, 1 answer, 1 hit; class 2: 1 label.
  const Classes labels = {{0, 1}, {}, {0, 2}, {1}}, answers = {{0, 1}, {0}, {0}, {}};
  EXPECT_DOUBLE_EQ(*MacroF1(labels, answers), (4.0 / 5 + 2.0 / 3 + 0) / 3);
  EXPECT_FALSE(MacroF1(Classes{{}}, Classes{{}}).has_value());
}

TEST(MacroF1Test, ClassThatIsOnlyAnsweredCountsAsNothing) {
  const std::vector<int32_t> labels = {0, 0}, answers = {0, 5};
  EXPECT_DOUBLE_EQ(*MacroF1(One(labels), One(answers)), (2.0 / 3 + 0) / 2);
  EXPECT_FALSE(MacroF1({}, {}).has_value());
}

TEST(CalibrationErrorTest, IsTheMeanOfBinsByTheirAnswers) {
  // The first two share a bin: right in half, confident by 0.62. The last is alone: sure and wrong.
  const std::vector<double> confidences = {0.61, 0.63, 0.99};
  const std::vector<uint8_t> right = {1, 0, 0};
  EXPECT_NEAR(*CalibrationError(confidences, right), (2 * 0.12 + 0.99) / 3, 1e-12);
}

TEST(CalibrationErrorTest, BinsHaveTheirUpperEnd) {
  // 0.2 = 3/15 lies in the bin up to it and 0.201 in the next: together they would err by less.
  const std::vector<double> confidences = {0.2, 0.201, 1.0, 0.0};
  const std::vector<uint8_t> right = {1, 0, 1, 0};
  EXPECT_NEAR(*CalibrationError(confidences, right), (0.8 + 0.201 + 0 + 0) / 4, 1e-12);
  EXPECT_FALSE(CalibrationError({}, {}).has_value());
}

TEST(RanksTest, EqualValuesShareTheMeanOfTheirRanks) {
  const std::vector<double> values = {3, 1, 3, 2, 3};
  EXPECT_EQ(AverageRanks(values), (std::vector<double>{4, 1, 4, 2, 4}));
}

TEST(RankCorrelationTest, LooksAtTheOrderAlone) {
  const std::vector<double> a = {1, 2, 3, 4}, same = {-5, 0, 1e-3, 1e9}, turned = {4, 3, 2, 1}, swapped = {1, 2, 4, 3};
  EXPECT_DOUBLE_EQ(*RankCorrelation(a, same), 1.0);
  EXPECT_DOUBLE_EQ(*RankCorrelation(a, turned), -1.0);
  EXPECT_DOUBLE_EQ(*RankCorrelation(a, swapped), 0.8);  // 1 - 6 * 2 / (4 * 15)
  const std::vector<double> ties = {1, 1, 2, 2};
  EXPECT_DOUBLE_EQ(*RankCorrelation(a, ties), 4 / std::sqrt(5.0 * 4.0));
}

TEST(RankCorrelationTest, OfOneValueIsUnknown) {
  const std::vector<double> a = {1, 2, 3}, flat = {7, 7, 7}, one = {1};
  EXPECT_FALSE(RankCorrelation(a, flat).has_value());
  EXPECT_FALSE(RankCorrelation(one, one).has_value());
  EXPECT_FALSE(RankCorrelation({}, {}).has_value());
}

TEST(AurocTest, IsTheShareOfPairsInOrder) {
  const std::vector<double> scores = {0.9, 0.2, 0.5, 0.5};
  const std::vector<uint8_t> positive = {1, 0, 1, 0};  // pairs: 0.9 > 0.2, 0.9 > 0.5, 0.5 > 0.2, 0.5 = 0.5
  EXPECT_DOUBLE_EQ(*Auroc(scores, positive), 3.5 / 4);
}

TEST(AurocTest, WithoutOneSortIsUnknown) {
  const std::vector<double> scores = {0.9, 0.2};
  const std::vector<uint8_t> none = {0, 0}, all = {1, 1};
  EXPECT_FALSE(Auroc(scores, none).has_value());
  EXPECT_FALSE(Auroc(scores, all).has_value());
}

TEST(MetricsTest, AreThoseOfTheReference) {
  std::ifstream file(EDGEWISE_METRICS_GOLDEN);
  const nlohmann::json golden = nlohmann::json::parse(file, nullptr, false);
  ASSERT_TRUE(golden.is_object()) << EDGEWISE_METRICS_GOLDEN;
  const auto labels = golden["labels"].get<std::vector<int32_t>>();
  const auto answers = golden["answers"].get<std::vector<int32_t>>();
  const auto entropies = golden["entropies"].get<std::vector<double>>();
  std::vector<uint8_t> right, wrong;
  for (size_t i = 0; i < labels.size(); ++i) {
    right.push_back(labels[i] == answers[i]);
    wrong.push_back(labels[i] != answers[i]);
  }
  EXPECT_NEAR(*MacroF1(One(labels), One(answers)), golden["macro_f1"].get<double>(), 1e-12);
  EXPECT_NEAR(*MacroF1(golden["label_sets"].get<Classes>(), golden["answer_sets"].get<Classes>()),
              golden["multi_label_macro_f1"].get<double>(), 1e-12);
  EXPECT_NEAR(*CalibrationError(golden["confidences"].get<std::vector<double>>(), right),
              golden["calibration_error"].get<double>(), 1e-12);
  EXPECT_NEAR(*Auroc(entropies, wrong), golden["auroc"].get<double>(), 1e-12);
  EXPECT_NEAR(*RankCorrelation(entropies, golden["values"].get<std::vector<double>>()),
              golden["rank_correlation"].get<double>(), 1e-12);
}

}  // namespace
}  // namespace edgewise
