#include "model/padded_count.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "model/patterns.h"
#include "model/weights.h"

namespace edgewise {
namespace {

constexpr double kUnits = 1099511627776.0;  // 2^40

// The edges of `drawn` whose key is a token.
HeadEdges WithoutPads(const HeadEdges& drawn, const std::vector<bool>& valid) {
  HeadEdges kept;
  kept.row_offsets.push_back(0);
  for (size_t i = 0; i + 1 < drawn.row_offsets.size(); ++i) {
    for (int64_t e = drawn.row_offsets[i]; e < drawn.row_offsets[i + 1]; ++e) {
      if (!valid[drawn.keys[e]]) continue;
      kept.keys.push_back(drawn.keys[e]);
      if (!drawn.multiplicity.empty()) kept.multiplicity.push_back(drawn.multiplicity[e]);
    }
    kept.row_offsets.push_back(static_cast<int64_t>(kept.keys.size()));
  }
  return kept;
}

}  // namespace

bool PaddedCount::Applies(const ModelConfig& config) {
  return config.feature_size == 0 && FirstDrawnLayer(config.attention) < config.num_hidden_layers &&
         std::none_of(config.attention.begin(), config.attention.end(), [](const AttentionConfig& attention) {
           return attention.kind != AttentionKind::kSbm && attention.kind != AttentionKind::kDense;
         });
}

PaddedCount::PaddedCount(const Model& model, const ModelInput& input, uint32_t samples, const DropFlag* drop)
    : model_(model), input_(input), samples_(samples), drop_(drop), rows_(model.backend()) {
  const ModelConfig& config = model.config();
  // Without a pad token nothing can be padded: the count is over the sequence as it is.
  const int32_t length = config.max_position_embeddings;
  for (const ModelSequence& sequence : input.sequences) {
    ModelSequence& padded = padded_.emplace_back(sequence);
    if (config.pad_token_id >= 0) padded.token_ids.resize(length, config.pad_token_id);
    padded.positions.resize(padded.token_ids.size());
    std::iota(padded.positions.begin(), padded.positions.end(), 0);
    std::vector<bool>& valid = valid_.emplace_back(padded.token_ids.size(), false);
    for (int32_t position : sequence.positions) valid[position] = true;
  }
}

absl::Status PaddedCount::Start() {
  PackedRows packed;
  for (const ModelSequence& sequence : padded_) packed.Add(sequence, 0);
  return rows_.Embed(model_.config(), model_.weights(), packed);
}

absl::Status PaddedCount::Step() {
  const ModelConfig& config = model_.config();
  const bool draws = config.attention[static_cast<size_t>(layer_)].kind == AttentionKind::kSbm;
  const bool pre = config.norm_position == NormPosition::kPre;
  const LayerWeights& weights = model_.weights().layer(static_cast<size_t>(layer_));
  absl::Status status;
  if (layer_ == 0) status = Start();
  if (status.ok()) status = rows_.ProjectAttention(weights, config, pre, draws);
  if (status.ok()) status = rows_.ReserveAttended();
  if (status.ok()) status = Attend(draws);
  if (status.ok()) status = rows_.FinishLayer(weights, config, pre);
  if (!status.ok()) return status;
  if (++layer_ == config.num_hidden_layers) {
    sum_ += std::round(static_cast<double>(edges_) / static_cast<double>(pairs_) * kUnits) / kUnits;
    layer_ = 0;
    edges_ = pairs_ = 0;
    ++sample_;
  }
  return absl::OkStatus();
}

// Draws over all positions and counts; then attends over what was drawn to valid keys.
absl::Status PaddedCount::Attend(bool draws) {
  const ModelConfig& config = model_.config();
  std::vector<AttentionReport> reports(padded_.size());
  std::vector<AttentionProblem> problems(padded_.size());
  LayerChoice choice = model_.Choose(input_, layer_);
  choice.attention = &config.attention[static_cast<size_t>(layer_)];
  choice.given = nullptr;
  choice.sample = input_.first_sample + sample_;
  std::vector<QueryRange> ranges;
  for (const ModelSequence& sequence : padded_) ranges.push_back({&sequence});
  LayerPatterns made = MakePatterns(choice, ranges, kNoCap);
  int64_t row = 0;
  for (size_t side = 0; side < padded_.size(); ++side) {
    AttentionProblem& problem = problems[side];
    problem.first_row = problem.out_row = row;
    problem.tokens = padded_[side].valid();
    problem.pattern = std::move(made.patterns[side]);
    problem.drop = drop_;
    problem.report = &reports[side];
    reports[side].want_graph = draws;
    row += problem.tokens;
  }
  const AttentionInputs view = rows_.AttentionView(config, model_.weights());
  std::vector<std::vector<HeadEdges>> kept(padded_.size());
  const auto attend = [&] {  // and waits: the reports are here
    const absl::Status status = model_.backend().Attend(view, problems, {}, rows_.attended());
    const absl::Status finished = model_.backend().Synchronize();
    return status.ok() ? finished : status;
  };
  if (draws) {
    const absl::Status status = attend();
    if (!status.ok()) return status;
  }
  for (size_t side = 0; side < padded_.size(); ++side) {
    const uint64_t tokens = padded_[side].valid();
    pairs_ += tokens * tokens * config.num_attention_heads;
    for (const HeadReport& head : reports[side].heads) {
      edges_ += head.edges;
      kept[side].push_back(WithoutPads(head.graph, valid_[side]));
    }
    reports[side] = AttentionReport();
    if (draws) {
      problems[side].pattern = ExplicitEdges{&kept[side]};
    } else {
      edges_ += tokens * tokens * config.num_attention_heads;
      const std::vector<int32_t>& keys = input_.sequences[side].positions;
      problems[side].pattern =
          GroupedKeys{{0, problems[side].tokens}, {0, static_cast<int64_t>(keys.size())}, keys, false};
    }
  }
  return attend();
}

double PaddedCount::density() const { return sum_ / samples_; }

}  // namespace edgewise
