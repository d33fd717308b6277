// The inside of a Pass: pass.cc decides what runs next, pass_layer.cc runs it. Included by these two only.
#ifndef EDGEWISE_MODEL_PASS_STATE_H_
#define EDGEWISE_MODEL_PASS_STATE_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "model/activations.h"
#include "model/padded_count.h"
#include "model/pass.h"

namespace edgewise {

// One forward pass of one input: a member of the wave.
struct PassMember {
  int64_t input = 0;
  uint32_t sample = 0;  // index within the ensemble, first_sample included
  int64_t row = 0;      // first row of its first sequence among the wave's
  uint64_t remaining = kNoCap;
  SampleResult result;
  std::vector<std::vector<HeadEdges>> graph;  // [sides * layers][heads], when asked for
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
  PassMember prefix;                          // counts of the layers that the samples share
  std::optional<PaddedCount> padded;          // while it runs, after the samples
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
  std::vector<PassMember> prefixes;  // one per input while the shared layers run
  bool prefix_done = false;          // the shared layers have run
  bool shared_scores_ready = false;  // query, key, value and memberships of the first drawn layer
  std::vector<PassMember> wave;
  Activations active;  // rows of the wave
  int32_t layer = 0;   // next

  absl::Status Step();
  // The sequences of an input that run now.
  std::span<const ModelSequence> Sequences(int64_t input) const {
    const PassInput& state = states[input];
    return std::span(inputs[input].sequences).subspan(state.first_sequence, state.end_sequence - state.first_sequence);
  }
  bool RunsInParts(int64_t input) const;
  void SelectSequences(int64_t input, size_t end);
  void AddSample(PassMember& member);
  absl::Status StartGroup();
  absl::Status StartWave();
  absl::Status RunLayer(std::vector<PassMember>& members, Activations& rows, bool from_shared);
  absl::Status Attend(std::vector<PassMember>& members, const Activations& source, Activations& rows, bool from_shared);
  bool NeedsMemberships() const;
  LayerChoice Choose(int64_t input, int32_t of_layer) const;
  void Record(PassMember& member, uint32_t side, const AttentionReport& report);
  absl::Status DropDeadMembers();
  absl::Status FinishWave();
  absl::Status Classify(Activations& rows, std::vector<PassMember>& members);
  absl::Status Score(Activations& rows, std::vector<PassMember>& members);
  void CheckFinite(PassMember& member, const float* row);
  absl::Status CountPadded(int64_t input);
  void FinishInput(int64_t input);
  bool GroupDone() const { return Complete(group_begin, group_end); }
  bool Done() const { return Complete(0, states.size()); }
  bool Complete(size_t begin, size_t end) const {
    return std::all_of(states.begin() + static_cast<int64_t>(begin), states.begin() + static_cast<int64_t>(end),
                       [](const PassInput& state) { return state.complete; });
  }
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_PASS_STATE_H_
