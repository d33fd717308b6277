#include "client/metrics/metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <map>
#include <numeric>

namespace edgewise {

std::optional<double> CalibrationError(std::span<const double> confidences, std::span<const uint8_t> right) {
  if (confidences.empty()) return std::nullopt;
  std::array<double, kCalibrationBins> excess = {};  // of confidence over right answers, summed over the bin
  for (size_t i = 0; i < confidences.size(); ++i) {
    const double bin = std::clamp(std::ceil(confidences[i] * kCalibrationBins) - 1.0, 0.0, kCalibrationBins - 1.0);
    excess[static_cast<size_t>(bin)] += confidences[i] - right[i];
  }
  double sum = 0;
  for (const double one : excess) sum += std::abs(one);
  return sum / static_cast<double>(confidences.size());
}

std::optional<double> MacroF1(std::span<const std::vector<int32_t>> labels,
                              std::span<const std::vector<int32_t>> answers) {
  struct Counts {
    double hits = 0;
    double entries = 0;  // among labels and answers together
  };
  std::map<int32_t, Counts> classes;
  for (size_t i = 0; i < labels.size(); ++i) {
    for (const int32_t label : labels[i]) ++classes[label].entries;
    for (const int32_t answer : answers[i]) {
      ++classes[answer].entries;
      if (std::find(labels[i].begin(), labels[i].end(), answer) != labels[i].end()) ++classes[answer].hits;
    }
  }
  if (classes.empty()) return std::nullopt;
  double sum = 0;
  for (const auto& [label, counts] : classes) sum += 2 * counts.hits / counts.entries;
  return sum / static_cast<double>(classes.size());
}

std::vector<double> AverageRanks(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t first = 0; first < order.size();) {
    size_t end = first + 1;
    while (end < order.size() && values[order[end]] == values[order[first]]) ++end;
    const double mean = static_cast<double>(first + 1 + end) / 2;  // of the ranks first + 1 to end
    for (size_t i = first; i < end; ++i) ranks[order[i]] = mean;
    first = end;
  }
  return ranks;
}

std::optional<double> RankCorrelation(std::span<const double> a, std::span<const double> b) {
  const std::vector<double> x = AverageRanks(a), y = AverageRanks(b);
  const double mean = (static_cast<double>(x.size()) + 1) / 2;  // of all ranks, equal or not
  double xx = 0, yy = 0, xy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - mean) * (x[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
    xy += (x[i] - mean) * (y[i] - mean);
  }
  if (xx == 0 || yy == 0) return std::nullopt;
  return std::clamp(xy / std::sqrt(xx * yy), -1.0, 1.0);
}

std::optional<double> Auroc(std::span<const double> scores, std::span<const uint8_t> positive) {
  const std::vector<double> ranks = AverageRanks(scores);
  double found = 0, sum = 0;
  for (size_t i = 0; i < ranks.size(); ++i) {
    found += positive[i];
    sum += positive[i] * ranks[i];
  }
  const double others = static_cast<double>(ranks.size()) - found;
  if (found == 0 || others == 0) return std::nullopt;
  return (sum - found * (found + 1) / 2) / (found * others);  // Mann and Whitney's U over all pairs
}

double Cosine(std::span<const float> a, std::span<const float> b) {
  double aa = 0, bb = 0, ab = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    aa += static_cast<double>(a[i]) * a[i];
    bb += static_cast<double>(b[i]) * b[i];
    ab += static_cast<double>(a[i]) * b[i];
  }
  return aa == 0 || bb == 0 ? 0.0 : std::clamp(ab / std::sqrt(aa * bb), -1.0, 1.0);
}

}  // namespace edgewise
