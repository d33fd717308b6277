// The attention of one layer for any mix of inputs and samples: patterns, budgets, biases and reports around
// Backend::Attend. The forward pass and generation both run their layers through it.
#ifndef EDGEWISE_MODEL_FORWARD_ATTENTION_CALL_H_
#define EDGEWISE_MODEL_FORWARD_ATTENTION_CALL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "model/kinds/patterns.h"
#include "model/model.h"

namespace edgewise {

// One sample of one input in one layer. Its sequences lie one behind the other in k and v, and their queries in the
// output.
struct AttentionMember {
  AttentionSpec choice;
  std::vector<QueryRange> ranges;      // one per sequence
  int64_t first_row = 0;               // of the first sequence in k, v and the memberships
  int64_t query_shift = 0;             // as AttentionProblem::query_shift
  int64_t out_row = 0;                 // of the first query of the first sequence
  EdgeLedger* ledger = nullptr;        // edges that the sample may still use; outlives the call. Null: no budget
  BudgetShare share;                   // of the ledger
  const CancelFlag* cancel = nullptr;  // as AttentionProblem::cancel; outlives the call
  bool want_expected = false;
  bool want_key_degrees = false;
  bool want_graph = false;

  bool capped = false;                   // out: edges were dropped
  std::vector<AttentionReport> reports;  // out: one per sequence
};

// What a layer may use of the edges that are left: w_layer / (sum of w from layer on) of them, within what is forced.
BudgetShare ShareOf(const std::vector<double>& shares, int32_t layer, uint64_t forced_here, uint64_t forced_later);

// For every layer, what the layers behind it cannot do without. `choices` [layers].
std::vector<uint64_t> LeastEdgesLater(std::span<const AttentionSpec> choices, std::span<const QueryRange> ranges);

// floor(density * pairs) with the density as it was written: the most edges whose share of the pairs, as a double, is
// at most `density`. (0.29 of 100 is 29, though 0.29 * 100 is 28.999... in doubles.)
uint64_t EdgesOfDensity(double density, uint64_t pairs);

// The attention of one layer, from its call until what it reports is there. The backend may write to the members until
// then, so one that goes earlier waits for it.
class AttentionCall {
 public:
  AttentionCall() = default;
  AttentionCall(const AttentionCall&) = delete;
  AttentionCall& operator=(const AttentionCall&) = delete;
  ~AttentionCall();

  // Attends all members: `inputs` are their queries, keys and values. Once.
  absl::Status Attend(const Model& model, const AttentionInputs& inputs, Matrix out);
  // Makes the members' outputs valid; Backend::Synchronize or Download has returned since Attend.
  void Collect();

  std::vector<AttentionMember> members;  // left alone between Attend and Collect

 private:
  Backend* pending_ = nullptr;  // that may still write; null: none
  std::vector<EdgeCap> caps_;   // of the members that have a ledger
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_ATTENTION_CALL_H_
