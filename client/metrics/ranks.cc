#include "client/metrics/ranks.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

namespace edgewise {

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

}  // namespace edgewise
