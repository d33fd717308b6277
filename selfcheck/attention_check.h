// Attention on the user's own device, side by side with other ways to compute it.
#ifndef EDGEWISE_SELFCHECK_ATTENTION_CHECK_H_
#define EDGEWISE_SELFCHECK_ATTENTION_CHECK_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace edgewise::selfcheck {

struct AttentionCheckOptions {
  int64_t tokens = 1024;
  int32_t heads = 4;
  int32_t head_dim = 64;
  int repeats = 5;          // of every timed call; medians are reported
  double tolerance = 1e-4;  // of outputs, relative to the largest one
};

// Differences are the largest ones, relative to the largest output of the float64 reference; NaN: not a number
// somewhere.
struct AttentionRow {
  std::string name;
  uint64_t edges = 0;
  bool same_graph = false;  // as the reference has it, edge by edge
  double device_error = 0.0, cpu_error = 0.0;
  double device_ms = 0.0, cpu_ms = 0.0;
  bool passed = false;  // of the device
};

// Runs every pattern on `device` and on `cpu`; calls `visit` after each. Errors are those of the backends.
absl::Status CheckAttention(const AttentionCheckOptions& options, Backend& device, Backend& cpu,
                            const std::function<void(const AttentionRow&)>& visit);

}  // namespace edgewise::selfcheck

#endif  // EDGEWISE_SELFCHECK_ATTENTION_CHECK_H_
