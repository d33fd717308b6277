// The attention of one layer for any mix of inputs and samples: patterns, budgets, biases and reports around
// Backend::Attend.
#ifndef EDGEWISE_MODEL_FORWARD_ATTENTION_CALL_H_
#define EDGEWISE_MODEL_FORWARD_ATTENTION_CALL_H_

#include <cstdint>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
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
  // The earlier tokens of the one sequence: the rows attend to them and to each other, and are added as they run. Null:
  // the rows are the whole sequences.
  KvCache* cache = nullptr;
  bool fills_cache = false;  // nobody reads its rows: of the last layer it needs the keys and values alone
  bool next_token = true;    // causal-lm: the text ends with the last sequence, and the token that follows is predicted
  uint32_t alternatives = 0;  // ModelInput
  bool token_rows = false;    // likewise
  bool complete = false;      // its result is decided: nobody reads more of it
  size_t first_layer = 0;     // that of the first sequence that runs, in results; and
  size_t first_scored = 0;    // its first scored token, likewise
  SampleResult shared;        // the layers that the samples share

  // Set by Wave::Start.
  std::vector<BudgetShare> shares;  // [layers] of a sample's ledger; empty: no budget binds
  Member* prefix = nullptr;         // the rows that the samples share

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
  SampleResult* result = nullptr;      // of its own layers
  bool finite = true;                  // false: the model gave a number that is not finite
};
using Members = std::vector<Member*>;

// Owns the reports that the backend writes to until it is waited for. Keeps its memory for the next call.
class AttentionCall {
 public:
  // Attends all members, which live until Record. `shared`: `inputs` are of the shared rows, else of the members' own.
  // `out`: rows of the members. `scratch` keeps what it gives until the attention is done. With `share` < 1 it is not
  // until Continue has returned true. Errors: those of the backend.
  absl::Status Attend(const Model& model, int32_t layer, const Members& members, const AttentionInputs& inputs,
                      bool shared, double share, std::pmr::memory_resource* scratch, Matrix out);
  // Attends about this share of the queries; true: all is done.
  absl::StatusOr<bool> Continue(double share);
  size_t sequences() const { return sequences_; }
  // Adds the reports to the members' results, but not to those of inputs that are gone. Once; Backend::Synchronize or
  // Download has returned since Attend.
  void Record(const ModelConfig& config);
  // Drops attention that is not done, and frees what reports contain, graphs among it.
  void Clear();

 private:
  int32_t layer_ = 0;
  Members members_;
  size_t sequences_ = 0;                  // of all members
  std::vector<AttentionReport> reports_;  // of each sequence; older ones beyond
  std::vector<EdgeCap> caps_;             // of the members that have a ledger
  // Of the attention that is not done.
  struct Problems {
    explicit Problems(std::pmr::memory_resource* scratch) : all(scratch), biases(scratch) {}
    std::pmr::vector<AttentionProblem> all;
    std::pmr::vector<PairwiseBias> biases;  // the problems point to them
  };
  std::optional<Problems> problems_;
  std::unique_ptr<AttentionParts> parts_;  // refers to problems_ and caps_
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_ATTENTION_CALL_H_
