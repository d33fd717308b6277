// The attention of one layer for any mix of inputs and samples: patterns, budgets, biases and reports around
// Backend::Attend. The forward pass and generation both run their layers through it.
#ifndef EDGEWISE_MODEL_LAYER_ATTENTION_H_
#define EDGEWISE_MODEL_LAYER_ATTENTION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "model/model.h"
#include "model/patterns.h"

namespace edgewise {

// One sample of one input in one layer. Its sequences lie one behind the other in k and v, and their queries in the
// output.
struct LayerMember {
  LayerChoice choice;
  std::vector<QueryRange> ranges;  // one per sequence
  int64_t first_row = 0;           // of the first sequence in k, v and the memberships
  int64_t query_shift = 0;         // as AttentionProblem::query_shift
  int64_t out_row = 0;             // of the first query of the first sequence
  uint64_t allowance = kNoCap;     // edges that the layer may use; >= LeastEdges
  bool want_expected = false;
  bool want_key_degrees = false;
  bool want_graph = false;

  bool capped = false;                   // out: edges were dropped
  std::vector<AttentionReport> reports;  // out: one per sequence
};

// What a layer may use of the edges that are left (DESIGN promise 2): floor(remaining * w_layer / sum of w from layer
// on), but at least what is forced here and at most what leaves enough for what is forced later.
uint64_t LayerAllowance(uint64_t remaining, const std::vector<double>& shares, int32_t layer, uint64_t forced_here,
                        uint64_t forced_later);

// For every layer, what the layers behind it cannot do without. `choices` [layers].
std::vector<uint64_t> LeastEdgesLater(std::span<const LayerChoice> choices, std::span<const QueryRange> ranges);

// floor(density * pairs) with the density as it was written: the most edges whose share of the pairs, as a double, is
// at most `density`. (0.29 of 100 is 29, though 0.29 * 100 is 28.999... in doubles.)
uint64_t EdgesOfDensity(double density, uint64_t pairs);

// Attends all members of one layer: `inputs` are its queries, keys and values.
absl::Status AttendLayer(const Model& model, const AttentionInputs& inputs, std::span<LayerMember> members, Matrix out);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_LAYER_ATTENTION_H_
