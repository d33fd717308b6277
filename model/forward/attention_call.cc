#include "model/forward/attention_call.h"

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "model/checkpoint/weights.h"

namespace edgewise {
namespace {

// Waits for the layers before where the host drops.
absl::StatusOr<MemberPatterns> PatternsOf(const Model& model, const Member& member, int32_t layer,
                                          std::pmr::memory_resource* scratch) {
  AttentionSpec choice = member.input->Choose(model, layer);
  choice.sample = member.sample;
  choice.memory = scratch;
  uint64_t allowance = kNoCap;
  if (member.ledger != nullptr && HostDrops(choice)) {
    ASSIGN_OR_RETURN(const uint64_t remaining, model.backend().Remaining(*member.ledger));
    allowance = LayerAllowance(remaining, member.input->shares[layer]);
  }
  return MakePatterns(choice, member.input->ranges, allowance);
}

PairwiseBias BiasOf(const Model& model, const ModelSequence& sequence) {
  PairwiseBias bias;
  bias.length = sequence.length();
  bias.values = sequence.bias_values.empty() ? nullptr : sequence.bias_values.data();
  bias.buckets = sequence.bias_buckets.empty() ? nullptr : sequence.bias_buckets.data();
  bias.table = model.weights().pairwise_table.data();
  return bias;
}

size_t SequencesOf(const Members& members) {
  size_t sequences = 0;
  for (const Member* member : members) sequences += member->input->ranges.size();
  return sequences;
}

}  // namespace

int64_t RunningInput::rows() const {
  int64_t rows = 0;
  for (const QueryRange& range : ranges) rows += range.queries();
  return rows;
}

AttentionSpec RunningInput::Choose(const Model& model, int32_t layer) const {
  AttentionSpec choice = model.Choose(*draw, given, layer);
  choice.sources = sources;
  return choice;
}

absl::Status AttentionCall::Attend(const Model& model, int32_t layer, const Members& members,
                                   const AttentionInputs& inputs, bool shared, double share,
                                   std::pmr::memory_resource* scratch, Matrix out) {
  layer_ = layer;
  members_ = members;
  caps_.clear();
  sequences_ = SequencesOf(members_);
  caps_.reserve(members_.size());  // the backend keeps pointers
  if (reports_.size() < sequences_) reports_.resize(sequences_);
  AttentionReport* reports = reports_.data();
  auto& [problems, biases] = problems_.emplace(scratch);
  biases.reserve(sequences_);
  const ModelConfig& config = model.config();
  const bool first_rows = config.pooling == Pooling::kCls && layer_ + 1 == config.num_hidden_layers;
  for (Member* member : members_) {
    const RunningInput& input = *member->input;
    ASSIGN_OR_RETURN(MemberPatterns made, PatternsOf(model, *member, layer_, scratch));
    member->result->capped |= made.capped;
    const int32_t cap = member->ledger == nullptr ? -1 : static_cast<int32_t>(caps_.size());
    if (cap >= 0)
      caps_.push_back({.ledger = member->ledger.get(), .share = input.shares[layer_], .keep = input.draw->keep});
    const int64_t query_row = shared ? input.prefix->row : member->row;
    const uint32_t copy = member->sample - input.draw->first_sample;
    const float* const* const pages = input.cache == nullptr ? nullptr : input.cache->Pages(layer_, copy);
    int64_t key_row = pages == nullptr ? query_row : 0;
    int64_t queries = 0;  // of the sequences before
    for (size_t side = 0; side < input.ranges.size(); ++side) {
      const QueryRange& range = input.ranges[side];
      const ModelSequence& sequence = *range.sequence;
      AttentionReport& report = *reports++;
      report.wanted = input.wanted;
      AttentionProblem& problem = problems.emplace_back();
      problem = {.first_row = key_row,
                 .tokens = sequence.valid(),
                 .first_query = range.first_query,
                 .query_shift = query_row + queries - key_row - range.first_query,
                 .out_row = member->row + queries,
                 .pages = pages,
                 .pattern = std::move(made.patterns[side]),
                 .cap = cap,
                 .report = &report};
      if (first_rows) problem.read_queries = 1;
      if (sequence.valid() < sequence.length()) problem.positions = sequence.positions.data();
      if (sequence.has_bias()) problem.bias = &biases.emplace_back(BiasOf(model, sequence));
      if (input.cancel != nullptr) problem.cancel = input.cancel->flag();
      key_row += sequence.valid();
      queries += range.queries();
    }
  }
  if (share < 1.0) {
    ASSIGN_OR_RETURN(parts_, model.backend().AttendInParts(inputs, problems, caps_, out));
    return absl::OkStatus();
  }
  const absl::Status status = model.backend().Attend(inputs, problems, caps_, out);
  problems_.reset();
  return status;
}

absl::StatusOr<bool> AttentionCall::Continue(double share) {
  bool done = parts_ == nullptr;
  if (!done) {
    ASSIGN_OR_RETURN(done, parts_->Next(share));
  }
  if (done) {
    parts_.reset();
    problems_.reset();
  }
  return done;
}

void AttentionCall::Clear() {
  parts_.reset();
  problems_.reset();
  for (size_t r = 0; r < sequences_; ++r) reports_[r].heads.clear();
  sequences_ = 0;
}

void AttentionCall::Record(const ModelConfig& config) {
  auto cap = caps_.begin();
  auto report = reports_.begin();
  for (const Member* member : members_) {
    const bool capped = member->ledger != nullptr && (cap++)->capped;
    const bool gone = member->input->Gone();
    SampleResult& result = *member->result;
    if (!gone) result.capped |= capped;
    for (size_t side = 0; side < member->input->ranges.size(); ++side, ++report) {
      if (gone) continue;
      const ModelSequence& sequence = *member->input->ranges[side].sequence;
      const size_t index = member->input->first_layer + side * config.num_hidden_layers + layer_;
      HeadCounts* counts = result.layers[index].data();
      for (HeadReport& head : report->heads) {
        // A multiple of 2^-20, so that sums over samples are exact and parts of an ensemble merge to the whole.
        head.expected = std::round(head.expected * 1048576.0) / 1048576.0;
        std::vector<uint32_t> degrees(head.key_degrees.empty() ? 0 : sequence.length(), 0);
        for (size_t i = 0; i < head.key_degrees.size(); ++i) degrees[sequence.positions[i]] = head.key_degrees[i];
        head.key_degrees = std::move(degrees);
        if (report->wanted.graph) result.graph[index].push_back(ToPositions(head.graph, sequence));
        *counts++ = std::move(static_cast<HeadCounts&>(head));
      }
    }
  }
}

}  // namespace edgewise
