// A load generator: calls a function many times, closed or open loop, and measures.
//
// Closed loop: `concurrency` callers, each of which calls again as soon as it is answered. Latency counts from the
// start of the call. Open loop (rate > 0): calls are due at the points of a Poisson process, however long answers take;
// at most `concurrency` run at a time. A call that has to wait for another's end is late, and its latency counts from
// the time when it was due, so a slow server cannot hide behind a client that waits for it. Calls that cannot be begun
// before the duration is over are counted and never made.
#ifndef EDGEWISE_CLIENT_CLI_LOAD_H_
#define EDGEWISE_CLIENT_CLI_LOAD_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace edgewise::cli {

struct LoadOptions {
  uint32_t concurrency = 4;
  uint64_t requests = 0;                               // calls after which to stop; 0: no such limit
  absl::Duration duration = absl::InfiniteDuration();  // start none after this; calls under way are awaited
  double rate = 0;                                     // calls per second; 0: closed loop
  uint64_t arrival_seed = 1;                           // of the Poisson process
  bool keep_calls = false;                             // fill LoadResult::calls
};

// The server's report of a call that succeeded.
struct LoadAnswer {
  uint64_t outputs = 0;  // predictions, or tokens of a generation
  double density = 0;    // sums over these outputs
  double edges = 0;
  double queue_us = 0;
  double compute_us = 0;
  uint32_t batch_inputs = 0;  // computed together
  uint64_t samples = 0;       // of the first output
};

// One call. Times are seconds since the load began.
struct CallRecord {
  double due = 0;  // closed loop: as `begun`
  double begun = 0;
  double end = 0;
  absl::StatusCode code = absl::StatusCode::kOk;
  LoadAnswer answer;
};

struct LoadResult {
  std::vector<double> latency_ms;               // of the calls that succeeded, ascending
  std::map<absl::StatusCode, uint64_t> errors;  // by code
  absl::Status first_error;
  double seconds = 0;             // from the first call due to the last answer
  uint64_t late = 0;              // open loop: calls begun more than 1 ms after they were due
  uint64_t unsent = 0;            // open loop: calls that were due and never made
  LoadAnswer sum;                 // over the calls that succeeded
  std::vector<CallRecord> calls;  // all that were made, in the order in which they ended
};

// The clock of a load. Any thread may call both functions.
struct LoadClock {
  using Time = std::chrono::steady_clock::time_point;
  std::function<Time()> now = std::chrono::steady_clock::now;
  std::function<void(Time)> sleep_until = [](Time time) { std::this_thread::sleep_until(time); };
};

using LoadDone = std::function<void(const absl::StatusOr<LoadAnswer>& answer)>;
// Begins a call. `done` must be called once, in any thread; in a closed loop before the return.
using LoadCall = std::function<void(uint64_t index, LoadDone done)>;
// Called about twice a second, in the calling thread, with what is done so far.
using LoadProgress = std::function<void(uint64_t ok, uint64_t failed, double seconds)>;

// Calls `call` with indexes 0, 1, ..., from `concurrency` threads in a closed loop, else from one; returns when all
// have ended. Either limit must be set.
LoadResult RunLoad(const LoadOptions& options, const LoadCall& call, const LoadProgress& progress,
                   const LoadClock& clock = {});

// The smallest value that at least `share` (0 to 1) of the values do not exceed (nearest rank). 0 for none.
double Percentile(std::span<const double> ascending, double share);

double Mean(std::span<const double> values);

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_LOAD_H_
