#include "client/metrics/calibration.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

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

}  // namespace edgewise
