#include "model/forward/attention_call.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "model/checkpoint/weights.h"

namespace edgewise {

namespace {

// Waits for the layers before where the host drops.
absl::StatusOr<MemberPatterns> PatternsOf(Backend& backend, const AttentionMember& member) {
  if (member.ledger == nullptr || !HostDrops(member.choice)) return MakePatterns(member.choice, member.ranges, kNoCap);
  const absl::StatusOr<uint64_t> remaining = backend.Remaining(*member.ledger);
  if (!remaining.ok()) return remaining.status();
  return MakePatterns(member.choice, member.ranges, LayerAllowance(*remaining, member.share));
}

}  // namespace

// Long division, every step of it exact: the rest stays below the sum, and twice the rest minus the sum has no
// rounding. Rounded up, an exact share of a whole number stays one.
BudgetShare ShareOf(const std::vector<double>& shares, int32_t layer, uint64_t forced_here, uint64_t forced_later) {
  long double sum = 0.0L;
  for (size_t l = layer; l < shares.size(); ++l) sum += shares[l];
  BudgetShare share{kWholeShare, forced_here, forced_later};
  long double rest = shares[layer];
  if (rest >= sum) return share;
  share.fraction = 0;
  for (uint64_t bit = kWholeShare >> 1; bit > 0; bit >>= 1) {
    rest *= 2.0L;
    if (rest < sum) continue;
    rest -= sum;
    share.fraction |= bit;
  }
  if (rest > 0.0L) ++share.fraction;
  return share;
}

std::vector<uint64_t> LeastEdgesLater(std::span<const AttentionSpec> choices, std::span<const QueryRange> ranges) {
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

AttentionCall::~AttentionCall() {
  if (pending_ != nullptr) pending_->Synchronize().IgnoreError();
}

absl::Status AttentionCall::Attend(const Model& model, const AttentionInputs& inputs, Matrix out) {
  std::vector<AttentionProblem> problems;
  size_t sides = 0;
  for (const AttentionMember& member : members) sides += member.ranges.size();
  std::vector<PairwiseBias> biases;  // the problems point to them
  biases.reserve(sides);
  for (AttentionMember& member : members) {
    absl::StatusOr<MemberPatterns> made = PatternsOf(model.backend(), member);
    if (!made.ok()) return made.status();
    member.capped = made->capped;
    member.reports.assign(member.ranges.size(), {});
    const int32_t cap = member.ledger == nullptr ? -1 : static_cast<int32_t>(caps_.size());
    if (cap >= 0) caps_.push_back({kNoCap, member.ledger, member.share});
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
      problem.pattern = std::move(made->patterns[side]);
      problem.cap = cap;
      problem.cancel = member.cancel;
      problem.report = &report;
      row += sequence.valid();
      out_row += sequence.valid() - problem.first_query;
    }
  }
  pending_ = &model.backend();  // from here on: a call that fails may have begun
  return model.backend().Attend(inputs, problems, caps_, out);
}

void AttentionCall::Collect() {
  if (std::exchange(pending_, nullptr) == nullptr) return;  // it never began
  size_t cap = 0;
  for (AttentionMember& member : members) {
    if (member.ledger != nullptr) member.capped |= caps_[cap++].capped;
  }
}

}  // namespace edgewise
