#include "model/layer_attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/weights.h"

namespace edgewise {

uint64_t LayerAllowance(uint64_t remaining, const std::vector<double>& shares, int32_t layer, uint64_t forced_here,
                        uint64_t forced_later) {
  long double sum = 0.0L;
  for (size_t l = layer; l < shares.size(); ++l) sum += shares[l];
  const long double share = std::floor(static_cast<long double>(remaining) * (shares[layer] / sum));
  const uint64_t wanted = std::min(remaining, static_cast<uint64_t>(share));
  return std::min(std::max(wanted, forced_here), remaining - forced_later);
}

std::vector<uint64_t> LeastEdgesLater(std::span<const LayerChoice> choices, std::span<const QueryRange> ranges) {
  std::vector<uint64_t> later(choices.size(), 0);
  for (size_t l = choices.size(); l-- > 1;) later[l - 1] = later[l] + LeastEdges(choices[l], ranges);
  return later;
}

uint64_t EdgesOfDensity(double density, uint64_t pairs) {
  constexpr uint64_t kExact = uint64_t{1} << 53;  // whole numbers up to here are doubles
  uint64_t edges = std::min(pairs, static_cast<uint64_t>(density * static_cast<double>(pairs)));
  if (pairs > kExact) return edges;
  const double all = static_cast<double>(pairs);
  while (edges < pairs && static_cast<double>(edges + 1) / all <= density) ++edges;
  while (edges > 0 && static_cast<double>(edges) / all > density) --edges;
  return edges;
}

absl::Status AttendLayer(const Model& model, const AttentionInputs& inputs, std::span<LayerMember> members,
                         Matrix out) {
  std::vector<AttentionProblem> problems;
  std::vector<EdgeCap> caps;
  std::vector<double> expected;  // of each problem; 0: as reported
  size_t sides = 0;
  for (const LayerMember& member : members) sides += member.ranges.size();
  std::vector<PairwiseBias> biases;  // the problems point to them
  biases.reserve(sides);
  for (LayerMember& member : members) {
    LayerPatterns made = MakePatterns(member.choice, member.ranges, member.allowance);
    member.capped = made.capped;
    member.reports.assign(member.ranges.size(), {});
    const int32_t cap = member.allowance == kNoCap ? -1 : static_cast<int32_t>(caps.size());
    if (cap >= 0) caps.push_back({member.allowance});
    int64_t row = member.first_row, out_row = member.out_row;
    for (size_t side = 0; side < member.ranges.size(); ++side) {
      const ModelSequence& sequence = *member.ranges[side].sequence;
      AttentionReport& report = member.reports[side];
      report.want_expected = member.want_expected;
      report.want_key_degrees = member.want_key_degrees;
      report.want_graph = member.want_graph;
      AttentionProblem& problem = problems.emplace_back();
      problem.first_row = row;
      problem.tokens = sequence.valid();
      problem.first_query = member.ranges[side].first_query;
      problem.query_shift = member.query_shift;
      problem.out_row = out_row;
      problem.positions = sequence.valid() == sequence.length() ? nullptr : sequence.positions.data();
      if (!sequence.bias_values.empty() || !sequence.bias_buckets.empty()) {
        PairwiseBias& bias = biases.emplace_back();
        bias.length = sequence.length();
        bias.values = sequence.bias_values.empty() ? nullptr : sequence.bias_values.data();
        bias.buckets = sequence.bias_buckets.empty() ? nullptr : sequence.bias_buckets.data();
        bias.table = model.weights().pairwise_table.data();
        problem.bias = &bias;
      }
      problem.pattern = std::move(made.patterns[side]);
      problem.cap = cap;
      problem.report = &report;
      expected.push_back(made.expected[side]);
      row += sequence.valid();
      out_row += sequence.valid() - problem.first_query;
    }
  }
  const absl::Status status = model.backend().Attend(inputs, problems, caps, out);
  if (!status.ok()) return status;

  size_t problem = 0;
  for (LayerMember& member : members) {
    if (member.allowance != kNoCap) member.capped |= caps[problems[problem].cap].capped;
    for (AttentionReport& report : member.reports) {
      const double before = expected[problem++];
      if (!member.want_expected || !(before > 0.0)) continue;
      for (HeadReport& head : report.heads) head.expected = before;
    }
  }
  return absl::OkStatus();
}

}  // namespace edgewise
