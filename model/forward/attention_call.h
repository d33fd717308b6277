// The attention of one layer for any mix of inputs and samples: patterns, budgets, biases and reports around
// Backend::Attend.
#ifndef EDGEWISE_MODEL_FORWARD_ATTENTION_CALL_H_
#define EDGEWISE_MODEL_FORWARD_ATTENTION_CALL_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "model/forward/cancel_on_stop.h"
#include "model/forward/kv_cache.h"
#include "model/forward/result.h"
#include "model/kinds/patterns.h"
#include "model/model.h"

namespace edgewise {

struct Member;

// One input while its rows run: all that its samples have in common. Outlives the calls that name it.
struct RunningInput {
  const Draw* draw = nullptr;
  Wanted wanted;
  std::vector<QueryRange> ranges;                              // the sequences that run, end to end
  const std::vector<std::vector<HeadEdges>>* given = nullptr;  // AttentionSpec::given
  SourceCache* sources = nullptr;                              // AttentionSpec::sources
  uint64_t max_edges = kNoCap;                                 // of one sample; kNoCap: no budget binds
  std::shared_ptr<const CancelOnStop> cancel;                  // null: nobody can stop it
  bool next_token = true;  // causal-lm: the text ends with the last sequence, and the token that follows is predicted
  bool complete = false;   // its result is decided: nobody reads more of it

  // Set by Wave::Start.
  std::vector<BudgetShare> shares;  // [layers] of a sample's ledger; empty: no budget binds
  std::shared_ptr<Member> prefix;   // the layers that the samples share

  int64_t rows() const;                                           // queries of one sample
  AttentionSpec Choose(const Model& model, int32_t layer) const;  // of sample 0
  // Nobody reads its results: they may be anything where a kernel saw the stop. Looked at after a wait for the backend,
  // false says that they are whole.
  bool Gone() const { return complete || draw->stopping.stop_requested(); }
};

// One sample of one input; or the layers that all its samples share.
struct Member {
  RunningInput* input = nullptr;
  uint32_t sample = 0;                 // index within the ensemble, first_sample included
  int64_t row = 0;                     // of its first query among the samples' rows; of a prefix, the shared rows
  std::unique_ptr<EdgeLedger> ledger;  // null: no budget binds
  SampleResult result;                 // of its own layers, over the sequences that run
  bool finite = true;                  // false: the model gave a number that is not finite
};
using Members = std::vector<std::shared_ptr<Member>>;

// Owns the memory that the backend writes to, the members and their ledgers among it, until the reports are there: the
// destructor waits for the backend.
class AttentionCall {
 public:
  AttentionCall(int32_t layer, Members members) : layer_(layer), members_(std::move(members)) {}
  AttentionCall(const AttentionCall&) = delete;
  AttentionCall& operator=(const AttentionCall&) = delete;
  ~AttentionCall();

  // Attends all members. Once. `shared`: `inputs` are of the shared rows, else of the members' own. `cache`: holds the
  // keys and values in place of `inputs`; null: none. `out`: rows of the members. Errors: those of the backend.
  absl::Status Attend(const Model& model, AttentionInputs inputs, bool shared, const KvCache* cache, Matrix out);
  size_t sequences() const { return reports_.size(); }
  // Adds the reports to the members' results, but not to those of inputs that are gone. Once; Backend::Synchronize or
  // Download has returned since Attend.
  void Record(const ModelConfig& config);

 private:
  const int32_t layer_;
  const Members members_;
  Backend* pending_ = nullptr;            // may still write; null: none
  std::vector<AttentionReport> reports_;  // of each sequence of each member
  std::vector<EdgeCap> caps_;             // of the members that have a ledger
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_ATTENTION_CALL_H_
