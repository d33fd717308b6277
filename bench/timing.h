// Clocks, the median, and the end of a benchmark that fails.
#ifndef EDGEWISE_BENCH_TIMING_H_
#define EDGEWISE_BENCH_TIMING_H_

#include <vector>

#include "absl/status/status.h"

namespace edgewise::bench {

// Ends the program with the message unless OK.
void Check(const absl::Status& status);

double Median(std::vector<double> values);
double Now();         // seconds
double CpuSeconds();  // of all threads of this process

}  // namespace edgewise::bench

#endif  // EDGEWISE_BENCH_TIMING_H_
