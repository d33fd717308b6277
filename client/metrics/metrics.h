// Measures of a set of answers.
#ifndef EDGEWISE_CLIENT_METRICS_METRICS_H_
#define EDGEWISE_CLIENT_METRICS_METRICS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace edgewise {

inline constexpr int kCalibrationBins = 15;

// Expected calibration error: answers are binned by their confidence, the probability of the label that was given, into
// kCalibrationBins bins of equal width, each with its upper end. The error of a bin is |share of right answers - mean
// confidence|; the result is their mean, weighted by answers. In [0, 1]. `right` has 1 for a right answer, else 0.
// Absent without an answer.
std::optional<double> CalibrationError(std::span<const double> confidences, std::span<const uint8_t> right);

// The mean over classes of F1 = 2 · hits / (labels of the class + answers of the class): all classes count alike,
// however rare. The classes are those that occur among `labels` or `answers`, which have one entry for each input: its
// classes, each once, one of them or, of a multi-label model, any number. Absent where no class occurs.
std::optional<double> MacroF1(std::span<const std::vector<int32_t>> labels,
                              std::span<const std::vector<int32_t>> answers);

// The rank of each value, from 1; equal values all have the mean of their ranks. No value is NaN.
std::vector<double> AverageRanks(std::span<const double> values);

// Spearman's rank correlation: Pearson's correlation of the average ranks, in [-1, 1]. Absent where one side has fewer
// than two different values.
std::optional<double> RankCorrelation(std::span<const double> a, std::span<const double> b);

// The area under the ROC curve of detecting the entries with `positive` 1 (the others have 0) by a high score: the
// probability that a positive one scores above another, where equal scores count half. Absent where all are of one
// sort.
std::optional<double> Auroc(std::span<const double> scores, std::span<const uint8_t> positive);

// The cosine of the angle between two vectors of one length, in [-1, 1]; 0 where one of them is all zeros.
double Cosine(std::span<const float> a, std::span<const float> b);

}  // namespace edgewise

#endif  // EDGEWISE_CLIENT_METRICS_METRICS_H_
