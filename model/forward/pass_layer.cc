// One layer of a pass: members, their budgets, attention, and what it reports.
#include <cmath>

#include "model/checkpoint/weights.h"
#include "model/forward/pass_state.h"

namespace edgewise {
namespace {

constexpr size_t kMostUnrecorded = 1 << 17;  // reports of a head, about 150 bytes each

}  // namespace

// Rows of dropped inputs leave the wave.
absl::Status Pass::State::RemoveCancelledMembers() {
  const auto dead = [&](const auto& member) { return states[member->input].complete; };
  if (std::none_of(wave.begin(), wave.end(), dead)) return absl::OkStatus();
  std::erase_if(wave, dead);
  std::vector<int64_t> rows;
  for (const auto& member : wave) {
    const int64_t first = member->row;
    member->row = static_cast<int64_t>(rows.size());
    for (int64_t r = 0; r < states[member->input].tokens; ++r) rows.push_back(first + r);
  }
  return active.Compact(rows);
}

// Whether an input of the group draws from memberships in this layer.
bool Pass::State::NeedsMemberships() const {
  for (size_t i = group_begin; i < group_end; ++i) {
    if (edgewise::NeedsMemberships(model.Choose(inputs[i], layer))) return true;
  }
  return false;
}

// One layer of all members. `from_shared`: query, key, value and memberships come from the shared rows.
absl::Status Pass::State::RunLayer(const PassMembers& members, Activations& rows, bool from_shared) {
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

absl::Status Pass::State::Attend(const PassMembers& members, const Activations& source, Activations& rows,
                                 bool from_shared) {
  PassLayer& next = unrecorded.emplace_back();
  next.layer = layer;
  next.members = members;
  next.call.members.reserve(members.size());
  bool graphs = false;
  size_t sequences = 0;
  for (const auto& member : members) {
    const ModelInput& input = inputs[member->input];
    AttentionMember& attending = next.call.members.emplace_back();
    for (const ModelSequence& sequence : Sequences(member->input)) attending.ranges.push_back({&sequence});
    attending.choice = Choose(member->input, layer);
    attending.choice.sample = member->sample;
    attending.first_row = from_shared ? states[member->input].shared_row : member->row;
    attending.query_shift = 0;
    attending.out_row = member->row;
    attending.cancel = states[member->input].stop ? states[member->input].stop->flag() : nullptr;
    attending.want_expected = input.want_expected;
    attending.want_key_degrees = input.want_key_degrees;
    attending.want_graph = input.want_graph;
    graphs |= input.want_graph;
    sequences += attending.ranges.size();
    attending.ledger = member->ledger.get();
    if (attending.ledger != nullptr) attending.share = Share(member->input, attending.ranges);
  }
  const absl::Status status = next.call.Attend(model, source.AttentionView(config, model.weights()), rows.attended());
  // A graph made the call wait, and is large: it is not kept twice. Nor are the reports of very many short texts.
  const bool record = graphs || sequences * config.num_attention_heads * unrecorded.size() > kMostUnrecorded;
  return status.ok() && record ? RecordLayers() : status;
}

// What the next layer may use of the budget of a sample.
BudgetShare Pass::State::Share(int64_t input, std::span<const QueryRange> ranges) {
  std::vector<uint64_t>& least_later = states[input].least_later;
  if (least_later.empty()) {
    std::vector<AttentionSpec> choices;
    for (int32_t l = 0; l < config.num_hidden_layers; ++l) choices.push_back(Choose(input, l));
    least_later = LeastEdgesLater(choices, ranges);
  }
  return ShareOf(config.budget_shares, layer, LeastEdges(Choose(input, layer), ranges), least_later[layer]);
}

AttentionSpec Pass::State::Choose(int64_t input, int32_t of_layer) const {
  AttentionSpec choice = model.Choose(inputs[input], of_layer);
  if (choice.given != nullptr) choice.given = &states[input].given;
  return choice;
}

// Adds what the layers since the last time report to their members, but for inputs that are dropped.
absl::Status Pass::State::RecordLayers() {
  const absl::Status status = model.backend().Synchronize();
  if (!status.ok()) return status;
  CancelWhereCallersAsked();  // after the wait: what is left is whole
  for (; !unrecorded.empty(); unrecorded.pop_front()) {
    PassLayer& of = unrecorded.front();
    of.call.Collect();
    for (size_t m = 0; m < of.call.members.size(); ++m) {
      if (states[of.members[m]->input].complete) continue;
      const AttentionMember& attended = of.call.members[m];
      of.members[m]->result.capped |= attended.capped;
      for (uint32_t side = 0; side < attended.reports.size(); ++side) {
        Record(*of.members[m], of.layer, side, attended.reports[side]);
      }
    }
  }
  return absl::OkStatus();
}

// Adds what one layer reports of one sequence to its member.
void Pass::State::Record(PassMember& member, int32_t of_layer, uint32_t side, const AttentionReport& report) const {
  const size_t place = states[member.input].first_sequence + side;
  const ModelSequence& sequence = inputs[member.input].sequences[place];
  const size_t index = place * config.num_hidden_layers + of_layer;
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
