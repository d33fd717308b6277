// A model on the user's device against the same model on the CPU.
#ifndef EDGEWISE_SELFCHECK_MODEL_CHECK_H_
#define EDGEWISE_SELFCHECK_MODEL_CHECK_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/model.h"

namespace edgewise::selfcheck {

inline constexpr double kDensityTolerance = 0.05;  // relative

struct ModelRow {
  std::string name;
  double error = 0.0;  // largest difference of a logit, relative to the largest logit on the CPU; NaN: not a number
  double device_ms = 0.0, cpu_ms = 0.0;  // of one pass, the second of two
  double device_density = 0.0, cpu_density = 0.0;
  bool judged_by_density = false;  // and not by the error
  bool passed = false;
};

// Runs one random input of up to `tokens` tokens over all pairs, over the edges that the CPU drew, and over edges that
// the device draws itself. The last is held to the CPU's density only: where memberships round differently, a few edges
// differ. Both models are the same files. Errors are those of running.
absl::StatusOr<std::vector<ModelRow>> CheckModel(const Model& on_device, const Model& on_cpu, int32_t tokens,
                                                 double tolerance);

}  // namespace edgewise::selfcheck

#endif  // EDGEWISE_SELFCHECK_MODEL_CHECK_H_
