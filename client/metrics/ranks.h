// Measures that look at the order of numbers alone.
#ifndef EDGEWISE_CLIENT_METRICS_RANKS_H_
#define EDGEWISE_CLIENT_METRICS_RANKS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace edgewise {

// The rank of each value, from 1; equal values all have the mean of their ranks. No value is NaN.
std::vector<double> AverageRanks(std::span<const double> values);

// Spearman's rank correlation: Pearson's correlation of the average ranks, in [-1, 1]. Absent where one side has fewer
// than two different values.
std::optional<double> RankCorrelation(std::span<const double> a, std::span<const double> b);

// The area under the ROC curve of detecting the entries with `positive` 1 (the others have 0) by a high score: the
// probability that a positive one scores above another, where equal scores count half. Absent where all are of one
// sort.
std::optional<double> Auroc(std::span<const double> scores, std::span<const uint8_t> positive);

}  // namespace edgewise

#endif  // EDGEWISE_CLIENT_METRICS_RANKS_H_
