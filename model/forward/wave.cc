#include "model/forward/wave.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "model/checkpoint/weights.h"
#include "model/forward/edge_budget.h"
#include "text/status_macros.h"

namespace edgewise {
namespace {

constexpr size_t kMostUnrecorded = 1 << 17;  // reports of heads, which are larger than their counts

}  // namespace

Wave::Wave(const Model& model, int32_t first_drawn, Phase phase, KvCache* cache)
    : model_(model),
      phase_(phase),
      cache_(cache),
      num_layers_(model.config().num_hidden_layers),
      // Where the last layer does not attend, its draws make no difference.
      first_drawn_(FillsCache() && first_drawn + 1 == num_layers_ ? num_layers_ : first_drawn),
      shared_(model),
      own_(model) {}

void Wave::Clear() {
  layer_ = 0;
  projected_ = false;
  samples_.clear();
  own_.Clear();
  shared_.Clear();
  prefixes_.clear();
  unrecorded_.clear();  // waits
}

std::shared_ptr<Member> Wave::MakeMember(RunningInput* input, uint32_t sample, int64_t row) const {
  auto member = std::make_shared<Member>();
  member->input = input;
  member->sample = sample;
  member->row = row;
  member->result.layers.resize(input->ranges.size() * num_layers_);
  member->result.graph.resize(input->wanted.graph ? member->result.layers.size() : 0);
  return member;
}

absl::Status Wave::MakeLedger(RunningInput& input) const {
  std::vector<AttentionSpec> choices;
  for (int32_t l = 0; l < num_layers_; ++l) choices.push_back(input.Choose(model_, l));
  input.shares = SharesOf(model_.config().budget_shares, choices, input.ranges);
  ASSIGN_OR_RETURN(input.prefix->ledger, model_.backend().MakeLedger(input.max_edges));
  return absl::OkStatus();
}

absl::Status Wave::Start(std::span<RunningInput* const> inputs) {
  Clear();
  std::vector<QueryRange> ranges;
  int64_t rows = 0;
  for (RunningInput* input : inputs) {
    input->prefix = prefixes_.emplace_back(MakeMember(input, input->draw->first_sample, rows));
    ranges.insert(ranges.end(), input->ranges.begin(), input->ranges.end());
    rows += input->rows();
    if (input->max_edges == kNoCap) continue;
    RETURN_IF_ERROR(MakeLedger(*input));
  }
  return shared_.Embed(ranges, phase_);
}

absl::Status Wave::StartSamples(std::span<const Sample> samples) {
  samples_.clear();
  layer_ = first_drawn_;
  std::vector<int64_t> rows;
  for (const auto& [input, sample] : samples) {
    const Member& prefix = *input->prefix;
    Member& member = *samples_.emplace_back(MakeMember(input, sample, static_cast<int64_t>(rows.size())));
    if (prefix.ledger != nullptr) {
      ASSIGN_OR_RETURN(member.ledger, model_.backend().CopyLedger(*prefix.ledger));
    }
    for (int64_t r = 0; r < RowsOf(*input); ++r) rows.push_back(prefix.row + r);
  }
  RETURN_IF_ERROR(own_.Resize(static_cast<int64_t>(rows.size())));
  return model_.backend().GatherRows(shared_.hidden(), rows, own_.hidden());
}

absl::Status Wave::RemoveComplete() {
  const auto complete = [](const auto& member) { return member->input->complete; };
  if (std::none_of(samples_.begin(), samples_.end(), complete)) return absl::OkStatus();
  std::erase_if(samples_, complete);
  std::vector<int64_t> rows;
  for (const auto& member : samples_) {
    const int64_t first = std::exchange(member->row, static_cast<int64_t>(rows.size()));
    for (int64_t r = 0; r < RowsOf(*member->input); ++r) rows.push_back(first + r);
  }
  return own_.Compact(rows, false);
}

int64_t Wave::RowsOf(const RunningInput& input) const {
  return done() && model_.config().pooling == Pooling::kCls ? static_cast<int64_t>(input.ranges.size()) : input.rows();
}

// Once attention has run for the last time.
absl::Status Wave::KeepFirstRows(Activations& rows, Members& members) {
  std::vector<int64_t> kept;
  for (const auto& member : members) {
    int64_t row = std::exchange(member->row, static_cast<int64_t>(kept.size()));
    for (const QueryRange& range : member->input->ranges) kept.push_back(std::exchange(row, row + range.queries()));
  }
  return rows.Compact(kept, true);
}

absl::Status Wave::RunLayer() {
  Activations& source = layer_ <= first_drawn_ ? shared_ : own_;
  Activations& rows = shared() ? shared_ : own_;
  if (layer_ != first_drawn_ || !projected_) RETURN_IF_ERROR(Project(source));
  projected_ |= layer_ == first_drawn_;
  if (!(FillsCache() && layer_ + 1 == num_layers_)) {
    RETURN_IF_ERROR(Attend(source, rows));
    if (layer_ + 1 == num_layers_ && model_.config().pooling == Pooling::kCls) {
      RETURN_IF_ERROR(KeepFirstRows(rows, shared() ? prefixes_ : samples_));
    }
    RETURN_IF_ERROR(rows.Finish(model_.weights().layer(layer_), phase_));
  }
  ++layer_;
  return absl::OkStatus();
}

absl::Status Wave::Project(Activations& rows) {
  const bool memberships = std::any_of(prefixes_.begin(), prefixes_.end(), [&](const auto& prefix) {
    return NeedsMemberships(prefix->input->Choose(model_, layer_));
  });
  RETURN_IF_ERROR(rows.Project(model_.weights().layer(layer_), memberships, phase_));
  if (cache_ == nullptr) return absl::OkStatus();
  const RunningInput& input = *prefixes_[0]->input;
  const uint32_t first_copy = layer_ <= first_drawn_ ? 0 : samples_[0]->sample - input.draw->first_sample;
  return cache_->Store(layer_, rows, input.rows(), first_copy, input.ranges[0].first_query);
}

absl::Status Wave::Attend(const Activations& source, Activations& rows) {
  RETURN_IF_ERROR(rows.ReserveAttended());
  AttentionCall& call = unrecorded_.emplace_back(layer_, shared() ? prefixes_ : samples_);
  const KvCache* const cache = phase_ == Phase::kDecode ? cache_ : nullptr;
  RETURN_IF_ERROR(call.Attend(model_, source.AttentionView(), &source == &shared_, cache, rows.attended()));
  const size_t heads = call.sequences() * model_.config().num_attention_heads * unrecorded_.size();
  return heads > kMostUnrecorded ? Record() : absl::OkStatus();
}

absl::Status Wave::Record() {
  RETURN_IF_ERROR(model_.backend().Synchronize());
  for (; !unrecorded_.empty(); unrecorded_.pop_front()) unrecorded_.front().Record(model_.config());
  return absl::OkStatus();
}

absl::Status Wave::Finish() {
  RETURN_IF_ERROR(Record());
  for (const auto& member : samples_) {
    SampleResult& result = member->result;
    const SampleResult& prefix = member->input->prefix->result;
    result.capped |= prefix.capped;
    for (size_t l = 0; l < result.layers.size(); ++l) {
      if (l % num_layers_ < static_cast<size_t>(first_drawn_)) {
        result.layers[l] = prefix.layers[l];
        if (!result.graph.empty()) result.graph[l] = prefix.graph[l];
      }
      for (const HeadCounts& head : result.layers[l]) {
        result.edges += head.edges;
        result.isolated += head.isolated;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace edgewise
