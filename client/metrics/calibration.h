// Whether a classifier is right as often as it says.
#ifndef EDGEWISE_CLIENT_METRICS_CALIBRATION_H_
#define EDGEWISE_CLIENT_METRICS_CALIBRATION_H_

#include <cstdint>
#include <optional>
#include <span>

namespace edgewise {

inline constexpr int kCalibrationBins = 15;

// Expected calibration error: answers are binned by their confidence, the probability of the label that was given, into
// kCalibrationBins bins of equal width, each with its upper end. The error of a bin is |share of right answers - mean
// confidence|; the result is their mean, weighted by answers. In [0, 1]. `right` has 1 for a right answer, else 0.
// Absent without an answer.
std::optional<double> CalibrationError(std::span<const double> confidences, std::span<const uint8_t> right);

}  // namespace edgewise

#endif  // EDGEWISE_CLIENT_METRICS_CALIBRATION_H_
