// One layer of a pass: members, their budgets, attention, and what it reports.
#include <cmath>
#include <utility>

#include "model/layer_attention.h"
#include "model/pass_state.h"
#include "model/weights.h"

namespace edgewise {

// Whether an input of the group draws from memberships in this layer.
bool Pass::State::NeedsMemberships() const {
  for (size_t i = group_begin; i < group_end; ++i) {
    const LayerChoice choice = model.Choose(inputs[i], layer);
    if (choice.given == nullptr && choice.attention != nullptr && choice.attention->kind == AttentionKind::kSbm) {
      return true;
    }
  }
  return false;
}

// One layer of all members. `from_shared`: query, key, value and memberships come from the shared rows.
absl::Status Pass::State::RunLayer(std::vector<PassMember>& members, Activations& rows, bool from_shared) {
  const LayerWeights& weights = model.weights().layer(layer);
  const bool pre = config.norm_position == NormPosition::kPre;
  Activations& source = from_shared ? shared : rows;
  absl::Status status;
  if (!from_shared || !shared_scores_ready) {
    status = source.ProjectAttention(weights, config, pre, NeedsMemberships());
    if (!status.ok()) return status;
    shared_scores_ready |= from_shared;
  }
  status = rows.ReserveAttended();
  if (status.ok()) status = Attend(members, source, rows, from_shared);
  if (!status.ok()) return status;
  return rows.FinishLayer(weights, config, pre);
}

absl::Status Pass::State::Attend(std::vector<PassMember>& members, const Activations& source, Activations& rows,
                                 bool from_shared) {
  std::vector<LayerMember> layer_members;
  layer_members.reserve(members.size());
  for (const PassMember& member : members) {
    const ModelInput& input = inputs[member.input];
    PassInput& state = states[member.input];
    LayerMember& attending = layer_members.emplace_back();
    for (const ModelSequence& sequence : Sequences(member.input)) attending.ranges.push_back({&sequence});
    attending.choice = Choose(member.input, layer);
    attending.choice.sample = member.sample;
    attending.first_row = from_shared ? state.shared_row : member.row;
    attending.query_shift = 0;
    attending.out_row = member.row;
    attending.want_expected = input.want_expected;
    attending.want_key_degrees = input.want_key_degrees;
    attending.want_graph = input.want_graph;
    if (member.remaining == kNoCap) continue;
    if (state.least_later.empty()) {
      std::vector<LayerChoice> choices;
      for (int32_t l = 0; l < config.num_hidden_layers; ++l) choices.push_back(Choose(member.input, l));
      state.least_later = LeastEdgesLater(choices, attending.ranges);
    }
    attending.allowance = LayerAllowance(member.remaining, config.budget_shares, layer,
                                         LeastEdges(attending.choice, attending.ranges), state.least_later[layer]);
  }
  const absl::Status status =
      AttendLayer(model, source.AttentionView(config, model.weights()), layer_members, rows.attended());
  if (!status.ok()) return status;
  for (size_t m = 0; m < members.size(); ++m) {
    members[m].result.capped |= layer_members[m].capped;
    for (uint32_t side = 0; side < layer_members[m].reports.size(); ++side) {
      Record(members[m], side, layer_members[m].reports[side]);
    }
  }
  return absl::OkStatus();
}

LayerChoice Pass::State::Choose(int64_t input, int32_t of_layer) const {
  LayerChoice choice = model.Choose(inputs[input], of_layer);
  if (choice.given != nullptr) choice.given = &states[input].given;
  return choice;
}

// Adds what one layer reports of one sequence to its member.
void Pass::State::Record(PassMember& member, uint32_t side, const AttentionReport& report) {
  const size_t place = states[member.input].first_sequence + side;
  const ModelSequence& sequence = inputs[member.input].sequences[place];
  const size_t index = place * config.num_hidden_layers + layer;
  std::vector<HeadCounts>& heads = member.result.layers[index];
  heads.clear();
  for (const HeadReport& head : report.heads) {
    HeadCounts& counts = heads.emplace_back();
    counts.edges = head.edges;
    counts.isolated = head.isolated;
    // A multiple of 2^-20, so that sums over samples are exact and parts of an ensemble merge to the whole.
    counts.expected = std::round(head.expected * 1048576.0) / 1048576.0;
    member.result.edges += head.edges;
    member.result.isolated += head.isolated;
    if (member.remaining != kNoCap) member.remaining -= head.edges;
    if (!head.key_degrees.empty()) {
      counts.key_degrees.assign(sequence.length(), 0);
      for (size_t i = 0; i < head.key_degrees.size(); ++i) {
        counts.key_degrees[sequence.positions[i]] = head.key_degrees[i];
      }
    }
    if (report.want_graph) member.graph[index].push_back(ToPositions(head.graph, sequence));
  }
}

}  // namespace edgewise
