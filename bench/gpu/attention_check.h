// The runs' results against float64.
#ifndef EDGEWISE_BENCH_GPU_ATTENTION_CHECK_H_
#define EDGEWISE_BENCH_GPU_ATTENTION_CHECK_H_

#include "absl/status/status.h"
#include "bench/gpu/attention_runs.h"

namespace edgewise::bench {

// As EdgewiseBenchCheck.
absl::Status Check(AttentionRuns& runs, int kind, const EdgewiseBenchCall& call, double* error);

}  // namespace edgewise::bench

#endif  // EDGEWISE_BENCH_GPU_ATTENTION_CHECK_H_
