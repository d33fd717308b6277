// Attention on the user's own device, side by side with other ways to compute it.
#ifndef EDGEWISE_SELFCHECK_ATTENTION_CHECK_H_
#define EDGEWISE_SELFCHECK_ATTENTION_CHECK_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "selfcheck/cusparse.h"

namespace edgewise::selfcheck {

struct AttentionCheckOptions {
  int64_t tokens = 1024;
  int32_t heads = 4;
  int32_t head_dim = 64;
  int repeats = 5;                     // of every timed call; medians are reported
  double tolerance = 1e-4;             // of outputs, relative to the largest one
  int cuda_ordinal = 0;                // for cuSPARSE
  CusparseAttend* cusparse = nullptr;  // null: none
};

// Differences are the largest ones, relative to the largest output of the float64 reference; NaN: not a number
// somewhere; -1: not computed.
struct AttentionRow {
  std::string name;
  uint64_t edges = 0;
  bool same_graph = false;  // as the reference has it, edge by edge
  double device_error = -1.0, cpu_error = -1.0, cusparse_error = -1.0;
  double device_ms = -1.0, cpu_ms = -1.0, cusparse_ms = -1.0;  // cuSPARSE: over all heads, the graph given
  std::string cusparse_failure;                                // why it has no numbers
  bool passed = false;                                         // of the device; cuSPARSE is not judged
};

// Runs every pattern on `device` and on `cpu`; calls `visit` after each. Errors are those of the backends.
absl::Status CheckAttention(const AttentionCheckOptions& options, Backend& device, Backend& cpu,
                            const std::function<void(const AttentionRow&)>& visit);

}  // namespace edgewise::selfcheck

#endif  // EDGEWISE_SELFCHECK_ATTENTION_CHECK_H_
