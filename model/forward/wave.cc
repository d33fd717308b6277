#include "model/forward/wave.h"

#include <algorithm>
#include <memory_resource>
#include <utility>

#include "base/status_macros.h"
#include "model/checkpoint/weights.h"
#include "model/forward/edge_budget.h"

namespace edgewise {
namespace {

constexpr size_t kMostUnrecorded = 1 << 17;  // reports of heads, which are larger than their counts

}  // namespace

std::unique_ptr<Wave, Wave::Return> Wave::Take(const Model& model) {
  std::unique_ptr<WaveCache> kept = model.TakeWaveCache();
  return std::unique_ptr<Wave, Return>(kept == nullptr ? new Wave(model) : static_cast<Wave*>(kept.release()));
}

void Wave::Return::operator()(Wave* wave) const {
  wave->Clear();
  wave->model_.ReturnWaveCache(std::unique_ptr<WaveCache>(wave));
}

void Wave::Clear() {
  // Until then the backend may write to reports and ledgers.
  if (unrecorded_ > 0) model_.backend().Synchronize().IgnoreError();
  unrecorded_ = 0;
  for (AttentionCall& call : calls_) call.Clear();
  EndLayer();
  layer_ = 0;
  projected_ = false;
  samples_.clear();
  prefixes_.clear();
  all_samples_.clear();
  all_prefixes_.clear();
  own_.Clear();
  shared_.Clear();
  scratch_.Reset();
}

absl::Status Wave::MakeLedger(RunningInput& input) const {
  std::vector<AttentionSpec> choices;
  for (int32_t l = 0; l < num_layers_; ++l) choices.push_back(input.Choose(model_, l));
  input.shares = SharesOf(model_.config().budget_shares, choices, input.ranges);
  ASSIGN_OR_RETURN(input.prefix->ledger, model_.backend().MakeLedger(input.max_edges));
  return absl::OkStatus();
}

absl::Status Wave::Start(std::span<RunningInput* const> inputs, const Options& options) {
  Clear();
  options_ = options;
  // Where the last layer does not attend, its draws make no difference.
  const bool attends = std::any_of(inputs.begin(), inputs.end(), [](auto* input) { return !input->fills_cache; });
  first_drawn_ = !attends && options.first_drawn + 1 == num_layers_ ? num_layers_ : options.first_drawn;
  all_prefixes_.resize(inputs.size());
  std::pmr::vector<QueryRange> ranges(&scratch_);
  int64_t rows = 0;
  for (RunningInput* input : inputs) {
    input->prefix = prefixes_.emplace_back(&all_prefixes_[prefixes_.size()]);
    *input->prefix = {input, input->draw->first_sample, rows, nullptr, &input->shared};
    ranges.insert(ranges.end(), input->ranges.begin(), input->ranges.end());
    rows += input->rows();
    if (input->max_edges != kNoCap) RETURN_IF_ERROR(MakeLedger(*input));
  }
  return shared_.Embed(ranges, options.phase);
}

absl::Status Wave::StartSamples(std::span<const Sample> samples) {
  samples_.clear();
  all_samples_.clear();
  all_samples_.resize(samples.size());
  layer_ = first_drawn_;
  std::pmr::vector<int64_t> rows(&scratch_);
  for (const auto& [input, sample, result] : samples) {
    if (input->fills_cache && layer_ + 1 >= num_layers_) continue;  // it attends nowhere any more
    const Member& prefix = *input->prefix;
    Member& member = *samples_.emplace_back(&all_samples_[samples_.size()]);
    member = {input, sample, static_cast<int64_t>(rows.size()), nullptr, result};
    if (prefix.ledger != nullptr) {
      ASSIGN_OR_RETURN(member.ledger, model_.backend().CopyLedger(*prefix.ledger));
    }
    for (int64_t r = 0; r < RowsOf(*input); ++r) rows.push_back(prefix.row + r);
  }
  return own_.Take(shared_, rows);
}

absl::Status Wave::RemoveComplete() {
  if (amid_layer_) return absl::OkStatus();
  RETURN_IF_ERROR(RemoveComplete(prefixes_, shared() ? &shared_ : nullptr));
  return RemoveComplete(samples_, &own_);
}

absl::Status Wave::RemoveComplete(Members& members, Activations* rows) {
  if (std::erase_if(members, [](const Member* member) { return member->input->complete; }) == 0 || rows == nullptr) {
    return absl::OkStatus();
  }
  std::pmr::vector<int64_t> kept(&scratch_);
  for (Member* member : members) {
    const int64_t first = std::exchange(member->row, static_cast<int64_t>(kept.size()));
    for (int64_t r = 0; r < RowsOf(*member->input); ++r) kept.push_back(first + r);
  }
  return rows->Compact(kept, false);
}

Wave::ReadRows Wave::ReadByHead(const QueryRange& range) const {
  const ModelConfig& config = model_.config();
  const int64_t first = range.sequence->pooled_from, rows = range.queries();
  if (config.pooling == Pooling::kLast) return {rows - 1, 1};
  return {first, ReadsOneRow(config) ? 1 : rows - first};
}

Wave::ReadRows Wave::Left(const RunningInput& input, const QueryRange& range) const {
  return input.token_rows ? ReadRows{0, range.queries()} : ReadByHead(range);
}

int64_t Wave::RowsOf(const RunningInput& input) const {
  if (!done()) return input.rows();
  int64_t rows = 0;
  for (const QueryRange& range : input.ranges) rows += Left(input, range).count;
  return rows;
}

absl::Status Wave::Step() {
  Activations& source = layer_ <= first_drawn_ ? shared_ : own_;
  Activations& rows = shared() ? shared_ : own_;
  if (!amid_layer_) {
    scratch_.Reset();
    amid_layer_ = true;
    share_ = std::min(1.0, static_cast<double>(options_.step_rows) / static_cast<double>(rows.rows()));
  }
  do {
    switch (stage_) {
      case Stage::kProject:
        RETURN_IF_ERROR(StepProject(source));
        break;
      case Stage::kAttend:
        RETURN_IF_ERROR(StepAttend(source, rows));
        break;
      case Stage::kFinish:
        RETURN_IF_ERROR(StepFinish(rows));
        break;
    }
  } while (amid_layer_ && share_ == 1.0);
  return absl::OkStatus();
}

Activations::Part Wave::TakeRows(int64_t rows) {
  const int64_t first = row_;
  row_ = share_ == 1.0 ? rows : std::min(rows, row_ + options_.step_rows);
  return {first, row_ - first};
}

void Wave::EndLayer() {
  ++layer_;
  stage_ = Stage::kProject;
  row_ = 0;
  amid_layer_ = false;
}

absl::Status Wave::StepProject(Activations& source) {
  if (layer_ != first_drawn_ || !projected_) {
    const bool memberships = std::any_of(prefixes_.begin(), prefixes_.end(), [&](const Member* prefix) {
      return NeedsMemberships(prefix->input->Choose(model_, layer_));
    });
    const bool graph = std::any_of(prefixes_.begin(), prefixes_.end(),
                                   [](const Member* prefix) { return prefix->input->wanted.graph; });
    const LayerWeights& weights = model_.weights().layer(layer_);
    RETURN_IF_ERROR(source.Project(weights, memberships, graph, options_.phase, TakeRows(source.rows())));
    if (row_ < source.rows()) return absl::OkStatus();
    RETURN_IF_ERROR(StoreKeys(source));
    projected_ |= layer_ == first_drawn_;
  }
  stage_ = Stage::kAttend;
  row_ = 0;
  if (layer_ + 1 == num_layers_) {
    std::erase_if(running(), [](const Member* member) { return member->input->fills_cache; });
    if (running().empty()) EndLayer();
  }
  return absl::OkStatus();
}

absl::Status Wave::StoreKeys(const Activations& rows) {
  std::pmr::vector<PagePlace> places(&scratch_);
  const KvCache* cache = nullptr;
  for (const Member* member : layer_ <= first_drawn_ ? prefixes_ : samples_) {
    const RunningInput& input = *member->input;
    if (input.cache == nullptr) continue;
    cache = input.cache;
    for (int64_t r = 0; r < input.rows(); ++r) {
      const auto token = static_cast<int32_t>(input.ranges[0].first_query + r);
      places.push_back(cache->PlaceOf(layer_, member->sample - input.draw->first_sample, token));
      places.back().row = static_cast<int32_t>(member->row + r);
    }
  }
  if (cache == nullptr) return absl::OkStatus();
  return model_.backend().StoreInPages(rows.keys_and_values(), cache->shape(), places);
}

absl::Status Wave::StepAttend(const Activations& source, Activations& rows) {
  if (row_ == 0) {
    row_ = 1;  // it has begun
    RETURN_IF_ERROR(rows.ReserveAttended(options_.phase));
    if (unrecorded_ == calls_.size()) calls_.emplace_back();
    AttentionCall& call = calls_[unrecorded_++];
    AttentionInputs inputs = source.AttentionView();
    inputs.phase = options_.phase;
    RETURN_IF_ERROR(
        call.Attend(model_, layer_, running(), inputs, &source == &shared_, share_, &scratch_, rows.attended()));
  }
  AttentionCall& call = calls_[unrecorded_ - 1];
  ASSIGN_OR_RETURN(const bool done, call.Continue(share_));
  if (!done) return absl::OkStatus();
  const size_t heads = call.sequences() * model_.config().num_attention_heads * unrecorded_;
  if (heads > kMostUnrecorded) RETURN_IF_ERROR(Record());
  if (layer_ + 1 == num_layers_) RETURN_IF_ERROR(SelectRows(rows, running()));
  stage_ = Stage::kFinish;
  row_ = 0;
  return absl::OkStatus();
}

absl::Status Wave::StepFinish(Activations& rows) {
  const ModelWeights& weights = model_.weights();
  const LayerWeights* next = layer_ + 1 < num_layers_ ? &weights.layer(layer_ + 1) : nullptr;
  RETURN_IF_ERROR(rows.Finish(weights.layer(layer_), next, options_.phase, TakeRows(rows.rows())));
  if (row_ == rows.rows()) EndLayer();
  return absl::OkStatus();
}

// Once the last layer has attended.
absl::Status Wave::SelectRows(Activations& rows, const Members& members) {
  std::pmr::vector<int64_t> kept(&scratch_);
  for (Member* member : members) {
    int64_t row = std::exchange(member->row, static_cast<int64_t>(kept.size()));
    for (const QueryRange& range : member->input->ranges) {
      const auto [first, count] = Left(*member->input, range);
      for (int64_t r = 0; r < count; ++r) kept.push_back(row + first + r);
      row += range.queries();
    }
  }
  return std::ssize(kept) == rows.rows() ? absl::OkStatus() : rows.Compact(kept, true);
}

absl::Status Wave::KeepHeadRows() {
  std::pmr::vector<int64_t> kept(&scratch_);
  for (Member* member : samples_) {
    int64_t row = std::exchange(member->row, static_cast<int64_t>(kept.size()));
    for (const QueryRange& range : member->input->ranges) {
      const ReadRows left = Left(*member->input, range), read = ReadByHead(range);
      for (int64_t r = 0; r < read.count; ++r) kept.push_back(row + read.first - left.first + r);
      row += left.count;
    }
  }
  return std::ssize(kept) == own_.rows() ? absl::OkStatus() : own_.Compact(kept, false);
}

absl::Status Wave::Record() {
  RETURN_IF_ERROR(model_.backend().Synchronize());
  for (size_t c = 0; c < unrecorded_; ++c) calls_[c].Record(model_.config());
  unrecorded_ = 0;
  return absl::OkStatus();
}

absl::Status Wave::Finish() {
  RETURN_IF_ERROR(Record());
  for (const Member* member : samples_) {
    const RunningInput& input = *member->input;
    SampleResult& result = *member->result;
    result.capped |= input.shared.capped;
    const size_t end = input.first_layer + input.ranges.size() * num_layers_;
    for (size_t l = input.first_layer; l < end; ++l) {
      if (l % num_layers_ < static_cast<size_t>(first_drawn_)) {
        result.layers[l] = input.shared.layers[l];
        if (input.wanted.graph) result.graph[l] = input.shared.graph[l];
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
