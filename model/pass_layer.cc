// One layer of a pass: patterns and caps for every member, attention, what it reports, and the classifier at the end.
#include <cmath>
#include <utility>

#include "model/pass_state.h"
#include "model/patterns.h"
#include "model/weights.h"

namespace edgewise {
namespace {

// floor(remaining * w_layer / sum of w from layer on), but at least what is forced here and at most what leaves enough
// for what is forced later (DESIGN promise 2).
uint64_t Allowance(uint64_t remaining, const std::vector<double>& shares, int32_t layer, uint64_t forced_here,
                   uint64_t forced_later) {
  long double sum = 0.0L;
  for (size_t l = layer; l < shares.size(); ++l) sum += shares[l];
  const long double share = std::floor(static_cast<long double>(remaining) * (shares[layer] / sum));
  const uint64_t wanted = std::min(remaining, static_cast<uint64_t>(share));
  return std::min(std::max(wanted, forced_here), remaining - forced_later);
}

}  // namespace

// One layer of all members. `from_shared`: query, key, value and memberships come from the shared rows.
absl::Status Pass::State::RunLayer(std::vector<PassMember>& members, Activations& rows, bool from_shared) {
  const LayerWeights& weights = model.weights().layer(layer);
  const bool pre = config.norm_position == NormPosition::kPre;
  const bool draws = config.attention[layer].kind == AttentionKind::kSbm;
  Activations& source = from_shared ? shared : rows;
  absl::Status status;
  if (!from_shared || !shared_scores_ready) {
    status = source.ProjectAttention(weights, config, pre, draws);
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
  std::vector<AttentionProblem> problems;
  std::vector<EdgeCap> caps;
  std::vector<double> expected;  // of each problem; 0: as reported
  size_t sides = 0;
  for (const PassMember& member : members) sides += inputs[member.input].sequences.size();
  std::vector<AttentionReport> reports(sides);
  for (PassMember& member : members) {
    const ModelInput& input = inputs[member.input];
    const PassInput& state = states[member.input];
    std::vector<QueryRange> ranges;
    for (const ModelSequence& sequence : input.sequences) ranges.push_back({&sequence});
    LayerChoice choice = model.Choose(input, layer);
    if (choice.given != nullptr) choice.given = &state.given;
    choice.sample = member.sample;
    int32_t cap = -1;
    uint64_t allowance = kNoCap;
    if (member.remaining != kNoCap) {
      uint64_t least_later = 0;
      for (int32_t l = layer + 1; l < config.num_hidden_layers; ++l) {
        least_later += LeastEdges(model.Choose(input, l), ranges);
      }
      allowance = Allowance(member.remaining, config.budget_shares, layer, LeastEdges(choice, ranges), least_later);
      cap = static_cast<int32_t>(caps.size());
      caps.push_back({allowance});
    }
    LayerPatterns made = MakePatterns(choice, ranges, allowance);
    member.result.capped |= made.capped;
    int64_t offset = 0;
    for (uint32_t side = 0; side < input.sequences.size(); ++side) {
      const ModelSequence& sequence = input.sequences[side];
      AttentionReport& report = reports[problems.size()];
      report.want_expected = input.want_expected;
      report.want_key_degrees = input.want_key_degrees;
      report.want_graph = input.want_graph;
      AttentionProblem& problem = problems.emplace_back();
      problem.first_row = (from_shared ? state.shared_row : member.row) + offset;
      problem.tokens = sequence.valid();
      problem.out_row = member.row + offset;
      problem.positions = sequence.valid() == sequence.length() ? nullptr : sequence.positions.data();
      problem.pattern = std::move(made.patterns[side]);
      problem.cap = cap;
      problem.report = &report;
      expected.push_back(made.expected[side]);
      offset += sequence.valid();
    }
  }
  const absl::Status status = model.backend().Attend(source.AttentionView(config), problems, caps, rows.attended());
  if (!status.ok()) return status;

  size_t problem = 0;
  for (PassMember& member : members) {
    const bool budgeted = member.remaining != kNoCap;
    if (budgeted) member.result.capped |= caps[problems[problem].cap].capped;
    for (uint32_t side = 0; side < inputs[member.input].sequences.size(); ++side, ++problem) {
      for (HeadReport& head : reports[problem].heads) {
        if (reports[problem].want_expected && expected[problem] > 0.0) head.expected = expected[problem];
      }
      Record(member, side, reports[problem]);
    }
  }
  return absl::OkStatus();
}

// Adds what one layer reports of one sequence to its member.
void Pass::State::Record(PassMember& member, uint32_t side, const AttentionReport& report) {
  const ModelSequence& sequence = inputs[member.input].sequences[side];
  const size_t index = side * config.num_hidden_layers + layer;
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

absl::Status Pass::State::Classify(Activations& rows, std::vector<PassMember>& members) {
  std::vector<PooledSequence> sequences;
  for (const PassMember& member : members) {
    int64_t row = member.row;
    for (const ModelSequence& sequence : inputs[member.input].sequences) {
      sequences.push_back({row, sequence.valid()});
      row += sequence.valid();
    }
  }
  std::vector<float> logits;
  const absl::Status status = rows.Classify(config, model.weights(), sequences, logits);
  if (!status.ok()) return status;

  const int32_t labels = config.num_labels;
  const bool per_token = config.task == Task::kTokenClassification;
  int64_t next = 0;  // row of `logits`
  for (PassMember& member : members) {
    const ModelSequence& sequence = inputs[member.input].sequences[0];
    PassInput& state = states[member.input];
    const size_t size = static_cast<size_t>(state.result.rows) * labels;
    member.result.logits.assign(size, 0.0f);
    member.result.probabilities.assign(size, 0.0f);
    for (int32_t i = 0; i < (per_token ? sequence.valid() : 1); ++i, ++next) {
      const float* row = logits.data() + next * labels;
      const size_t out = static_cast<size_t>(per_token ? sequence.positions[i] : 0) * labels;
      double total = 0.0;
      const double largest = *std::max_element(row, row + labels);
      for (int32_t c = 0; c < labels; ++c) total += std::exp(row[c] - largest);
      for (int32_t c = 0; c < labels; ++c) {
        member.result.logits[out + c] = row[c];
        member.result.probabilities[out + c] = static_cast<float>(std::exp(row[c] - largest) / total);
      }
      const bool finite = std::all_of(row, row + labels, [](float logit) { return std::isfinite(logit); });
      if (!finite && state.result.status.ok()) {
        state.result.status = absl::InternalError("the model gave a number that is not finite (NON_FINITE_OUTPUT)");
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace edgewise
