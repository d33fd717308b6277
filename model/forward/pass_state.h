// The inside of a Pass: pass.cc decides what runs next, pass_layer.cc runs it. Included by these two only.
#ifndef EDGEWISE_MODEL_FORWARD_PASS_STATE_H_
#define EDGEWISE_MODEL_FORWARD_PASS_STATE_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "model/forward/activations.h"
#include "model/forward/attention_call.h"
#include "model/forward/cancel_on_stop.h"
#include "model/forward/pass.h"

namespace edgewise {

// One forward pass of one input: a member of the wave. Or what its samples share: the layers before the first drawn
// one.
struct PassMember {
  int64_t input = 0;
  uint32_t sample = 0;                        // index within the ensemble, first_sample included
  int64_t row = 0;                            // first row of its first sequence among the wave's
  std::unique_ptr<EdgeLedger> ledger;         // null: no budget binds
  SampleResult result;                        // of its own layers, until the wave is finished
  std::vector<std::vector<HeadEdges>> graph;  // [sides * layers][heads], when asked for
};
using PassMembers = std::vector<std::shared_ptr<PassMember>>;

// A layer whose reports may still be on their way. It keeps its members, with their ledgers, also when they have left
// the wave.
struct PassLayer {
  int32_t layer = 0;
  PassMembers members;
  AttentionCall call;  // of the same members
};

// What is known of one input across waves.
struct PassInput {
  InputResult result;
  bool complete = false;
  uint32_t wanted = 0;                        // forward passes to run
  int64_t shared_row = 0;                     // first row of its first sequence among the shared rows
  size_t first_sequence = 0;                  // those that run now: from here
  size_t end_sequence = 0;                    // to before here; a long text runs in parts, the last of them first
  uint32_t ran = 0;                           // samples of these
  int64_t tokens = 0;                         // valid, over these
  std::vector<std::vector<HeadEdges>> given;  // over valid tokens; empty: none
  std::vector<uint64_t> least_later;          // [layers] edges that no cap drops in later layers; made when needed
  std::shared_ptr<PassMember> prefix;         // the layers that the samples share
  std::shared_ptr<CancelOnStop> stop;         // while its group runs; null: nobody can stop it
};

struct Pass::State {
  State(const Model& model, const std::vector<ModelInput>& inputs, Options options);

  const Model& model;
  const ModelConfig& config;
  const std::vector<ModelInput>& inputs;
  const Options options;
  const int32_t first_drawn;  // layers before it are shared by an input's samples

  std::vector<PassInput> states;
  size_t group_begin = 0;            // inputs that run together: from here
  size_t group_end = 0;              // to before here
  Activations shared;                // rows of the group's inputs, once each
  PassMembers prefixes;              // one per input
  bool prefix_done = false;          // the shared layers have run
  bool shared_scores_ready = false;  // query, key, value and memberships of the first drawn layer
  PassMembers wave;
  Activations active;  // rows of the wave
  int32_t layer = 0;   // next
  std::deque<PassLayer> unrecorded;

  absl::Status Step();
  void Cancel(int64_t input, absl::Status reason);
  void CancelWhereCallersAsked();
  // The sequences of an input that run now.
  std::span<const ModelSequence> Sequences(int64_t input) const {
    const PassInput& state = states[input];
    return std::span(inputs[input].sequences).subspan(state.first_sequence, state.end_sequence - state.first_sequence);
  }
  bool RunsInParts(int64_t input) const;
  void SelectSequences(int64_t input, size_t end);
  void AddSample(PassMember& member);
  absl::Status StartGroup();
  absl::Status MakeCancelOnStop(size_t input);
  absl::Status StartWave();
  std::shared_ptr<PassMember> MakeMember(int64_t input, int64_t row) const;
  absl::Status RunLayer(const PassMembers& members, Activations& rows, bool from_shared);
  absl::Status Attend(const PassMembers& members, const Activations& source, Activations& rows, bool from_shared);
  BudgetShare Share(int64_t input, std::span<const QueryRange> ranges);
  bool NeedsMemberships() const;
  AttentionSpec Choose(int64_t input, int32_t of_layer) const;
  absl::Status RecordLayers();
  void Record(PassMember& member, int32_t of_layer, uint32_t side, const AttentionReport& report) const;
  void AddPrefix(PassMember& member) const;
  absl::Status RemoveCancelledMembers();
  absl::Status FinishWave();
  absl::Status Classify(Activations& rows, const PassMembers& members);
  absl::Status Score(Activations& rows, const PassMembers& members);
  void CheckFinite(PassMember& member, const float* row);
  void FinishInput(int64_t input);
  bool GroupDone() const { return Complete(group_begin, group_end); }
  bool Done() const { return Complete(0, states.size()); }
  bool Complete(size_t begin, size_t end) const {
    return std::all_of(states.begin() + static_cast<int64_t>(begin), states.begin() + static_cast<int64_t>(end),
                       [](const PassInput& state) { return state.complete; });
  }
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_PASS_STATE_H_
