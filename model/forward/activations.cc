#include "model/forward/activations.h"

#include <numeric>
#include <utility>

namespace edgewise {

absl::Status Activations::Grow(Buffer& buffer, int64_t floats) const {
  if (buffer.size() >= floats) return absl::OkStatus();
  buffer = Buffer();  // give back before asking for more
  absl::StatusOr<Buffer> larger = backend_.Allocate(floats);
  if (!larger.ok()) return larger.status();
  buffer = *std::move(larger);
  return absl::OkStatus();
}

absl::Status Activations::Reserve(std::initializer_list<std::pair<Buffer*, int64_t>> buffers) const {
  for (const auto& [buffer, columns] : buffers) {
    const absl::Status status = Grow(*buffer, rows_ * columns);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void PackedRows::Add(const ModelSequence& sequence, int32_t first) {
  for (int32_t i = first; i < sequence.valid(); ++i) {
    const int32_t position = sequence.positions[i];
    positions.push_back(position);
    if (!sequence.token_ids.empty()) {
      token_ids.push_back(sequence.token_ids[position]);
      continue;
    }
    const size_t columns = sequence.features.size() / sequence.feature_rows;
    const auto row = sequence.features.begin() + static_cast<int64_t>(position * columns);
    features.insert(features.end(), row, row + static_cast<int64_t>(columns));
  }
}

absl::Status Activations::Embed(const ModelConfig& config, const ModelWeights& weights, const PackedRows& packed,
                                Phase phase) {
  absl::Status status = Resize(config, packed.rows());
  if (!status.ok()) return status;
  const ConstMatrix position = weights.position.data() == nullptr
                                   ? ConstMatrix()
                                   : weights.position.AsMatrix(config.max_position_embeddings, config.hidden_size);
  if (weights.features == nullptr) {
    const ConstMatrix word = weights.word.AsMatrix(config.vocab_size, config.hidden_size);
    return backend_.Embed(word, position, packed.token_ids, packed.positions, hidden());
  }
  status = Reserve({{&features_, config.feature_size}, {&normed_, hidden_size_}});
  if (status.ok()) status = backend_.Upload(packed.features, features_.data());
  const Matrix projected = normed_.AsMatrix(rows_, hidden_size_);
  if (status.ok()) {
    status =
        backend_.Linear(*weights.features, features_.AsMatrix(rows_, config.feature_size), projected, false, phase);
  }
  if (!status.ok()) return status;
  // The projected rows are the words of this input.
  std::vector<int32_t> each(rows_);
  std::iota(each.begin(), each.end(), 0);
  return backend_.Embed(projected, position, each, packed.positions, hidden());
}

absl::Status Activations::Resize(const ModelConfig& config, int64_t rows) {
  hidden_size_ = config.hidden_size;
  heads_ = config.num_attention_heads;
  width_ = heads_ * config.head_dim;
  if (hidden_.size() < rows * hidden_size_) Clear();
  rows_ = rows;
  return Reserve({{&hidden_, hidden_size_}});
}

void Activations::Clear() {
  rows_ = 0;
  for (Buffer* buffer : {&hidden_, &normed_, &query_key_value_, &attended_, &x_, &y_, &query_bound_, &key_bound_,
                         &features_, &last_, &logits_}) {
    *buffer = Buffer();
  }
}

absl::Status Activations::ReserveAttended() { return Reserve({{&attended_, width_}}); }

absl::Status Activations::Compact(const std::vector<int64_t>& rows) {
  const absl::Status reserved = Reserve({{&normed_, hidden_size_}});
  if (!reserved.ok()) return reserved;
  const Matrix kept = normed_.AsMatrix(static_cast<int64_t>(rows.size()), hidden_size_);
  const absl::Status status = backend_.GatherRows(hidden(), rows, kept);
  std::swap(hidden_, normed_);
  rows_ = static_cast<int64_t>(rows.size());
  return status;
}

AttentionInputs Activations::AttentionView(const ModelConfig& config, const ModelWeights& weights) const {
  const ConstMatrix all = query_key_value_.AsMatrix(rows_, 3 * width_);
  AttentionInputs inputs;
  inputs.q = all.Columns(0, width_);
  inputs.k = all.Columns(width_, width_);
  inputs.v = all.Columns(2 * width_, width_);
  inputs.memberships = {x_.data(),         y_.data(), query_bound_.data(),
                        key_bound_.data(), rows_,     static_cast<int32_t>(rank_)};
  inputs.num_heads = static_cast<int32_t>(heads_);
  inputs.head_dim = config.head_dim;
  inputs.scale = config.score_scale;
  inputs.distance_bias = weights.distance_bias.data();
  inputs.distance_span = config.max_position_embeddings;
  return inputs;
}

absl::Status Activations::ProjectAttention(const LayerWeights& weights, const ModelConfig& config, bool pre_norm,
                                           bool memberships, Phase phase) {
  absl::Status status = Reserve({{&normed_, hidden_size_}, {&query_key_value_, 3 * width_}});
  if (!status.ok()) return status;
  Matrix source = hidden();
  if (pre_norm) {
    source = normed_.AsMatrix(rows_, hidden_size_);
    status = backend_.LayerNorm(hidden(), weights.attention_norm.weight.data(), weights.attention_norm.bias.data(),
                                config.layer_norm_eps, source);
    if (!status.ok()) return status;
  }
  status =
      backend_.Linear(*weights.query_key_value, source, query_key_value_.AsMatrix(rows_, 3 * width_), false, phase);
  if (!status.ok() || !memberships) return status;
  rank_ = weights.memberships->rank();
  status = Reserve({{&x_, heads_ * rank_}, {&y_, heads_ * rank_}, {&query_bound_, heads_}, {&key_bound_, heads_}});
  if (!status.ok()) return status;
  const ConstMatrix all = query_key_value_.AsMatrix(rows_, 3 * width_);
  return backend_.ComputeMemberships(
      *weights.memberships, all.Columns(0, width_), all.Columns(width_, width_),
      {x_.data(), y_.data(), query_bound_.data(), key_bound_.data(), rows_, static_cast<int32_t>(rank_)});
}

absl::Status Activations::FinishLayer(const LayerWeights& weights, const ModelConfig& config, bool pre_norm,
                                      Phase phase) {
  absl::Status status = Reserve({{&normed_, hidden_size_}});
  if (!status.ok()) return status;
  const Matrix normed = normed_.AsMatrix(rows_, hidden_size_);
  const auto norm = [&](const Norm& parameters, Matrix out) {
    return backend_.LayerNorm(hidden(), parameters.weight.data(), parameters.bias.data(), config.layer_norm_eps, out);
  };
  status = backend_.Linear(*weights.output, attended(), hidden(), true, phase);
  if (status.ok()) status = pre_norm ? norm(weights.mlp_norm, normed) : norm(weights.attention_norm, hidden());
  if (status.ok()) {
    status = backend_.FeedForward(*weights.up, *weights.down, pre_norm ? normed : hidden(), hidden(), phase);
  }
  if (status.ok() && !pre_norm) status = norm(weights.mlp_norm, hidden());
  return status;
}

}  // namespace edgewise
