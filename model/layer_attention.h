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
  EdgeLedger* ledger = nullptr;    // edges that the sample may still use; outlives the call. Null: no budget
  LayerShare share;                // of the ledger
  const DropFlag* drop = nullptr;  // as AttentionProblem::drop; outlives the call
  bool want_expected = false;
  bool want_key_degrees = false;
  bool want_graph = false;

  bool capped = false;                   // out: edges were dropped
  std::vector<AttentionReport> reports;  // out: one per sequence
};

// What a layer may use of the edges that are left: w_layer / (sum of w from layer on) of them, within what is forced.
LayerShare ShareOf(const std::vector<double>& shares, int32_t layer, uint64_t forced_here, uint64_t forced_later);

// For every layer, what the layers behind it cannot do without. `choices` [layers].
std::vector<uint64_t> LeastEdgesLater(std::span<const LayerChoice> choices, std::span<const QueryRange> ranges);

// floor(density * pairs) with the density as it was written: the most edges whose share of the pairs, as a double, is
// at most `density`. (0.29 of 100 is 29, though 0.29 * 100 is 28.999... in doubles.)
uint64_t EdgesOfDensity(double density, uint64_t pairs);

// The attention of one layer, from its call until what it reports is there. The backend may write to the members until
// then, so one that goes earlier waits for it.
class LayerCall {
 public:
  LayerCall() = default;
  LayerCall(const LayerCall&) = delete;
  LayerCall& operator=(const LayerCall&) = delete;
  ~LayerCall();

  // Attends all members: `inputs` are their queries, keys and values. Once.
  absl::Status Attend(const Model& model, const AttentionInputs& inputs, Matrix out);
  // Makes the members' outputs valid; Backend::Synchronize or Download has returned since Attend.
  void Collect();

  std::vector<LayerMember> members;  // left alone between Attend and Collect

 private:
  Backend* pending_ = nullptr;  // that may still write; null: none
  std::vector<EdgeCap> caps_;   // of the members that have a ledger
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_LAYER_ATTENTION_H_
