// A prediction of how much of the device a request takes, and how much less its client agrees to (schedule/degrade.h).
#ifndef EDGEWISE_SERVER_REQUEST_FORECAST_H_
#define EDGEWISE_SERVER_REQUEST_FORECAST_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "model/forward/edge_budget.h"
#include "server/request/cost_model.h"

namespace edgewise::server {

// Why an answer has less than was asked for: its own deadline, or requests that wait behind it.
enum class DegradedBy { kNothing, kDeadline, kLoad };

// The caps that an answer may get, lower than the one that was asked for. A cap is one number for all inputs.
struct CapRange {
  struct Input {
    uint64_t pairs = 0;
    double edges = 0.0;  // of one sample, as expected with the cap that was asked for
  };
  bool by_density = true;          // a cap is a share of an input's pairs (Budget.max_density), else a number of edges
  double most = 0.0, least = 0.0;  // at `most` no input is expected to have fewer edges
  std::vector<Input> inputs;       // empty: the cap stays as it is

  // The edges that a cap allows an input of this many pairs.
  uint64_t EdgesAt(double cap, uint64_t pairs) const {
    return by_density ? EdgesOfDensity(cap, pairs) : static_cast<uint64_t>(cap);
  }
};

// Made once, when the request is admitted; replaced where it is degraded.
struct Forecast {
  Demand demand;         // of Predict, as expected
  double seconds = 0.0;  // alone on the device; 0: nothing is known of the model yet

  // The answer gets at most this: at first as much as was asked for.
  uint32_t samples = std::numeric_limits<uint32_t>::max();  // of each input
  double cap = 0.0;                                         // of `caps`; 0: the one that was asked for
  DegradedBy reason = DegradedBy::kNothing;

  // Of a request that may be degraded (Work::may_degrade).
  Demand one;                  // of one sample with the cap so far, as expected
  double one_seconds = 0.0;    // predicted for it
  double least_seconds = 0.0;  // and for one with the lowest cap
  CapRange caps;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_REQUEST_FORECAST_H_
