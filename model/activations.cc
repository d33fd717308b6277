#include "model/activations.h"

#include <algorithm>
#include <cmath>
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

absl::Status Activations::Resize(const ModelConfig& config, int64_t rows) {
  rows_ = rows;
  hidden_size_ = config.hidden_size;
  heads_ = config.num_attention_heads;
  width_ = heads_ * config.head_dim;
  intermediate_ = config.intermediate_size;
  return Reserve({{&hidden_, hidden_size_}});
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

AttentionInputs Activations::AttentionView(const ModelConfig& config) const {
  const ConstMatrix all = query_key_value_.AsMatrix(rows_, 3 * width_);
  AttentionInputs inputs;
  inputs.q = all.Columns(0, width_);
  inputs.k = all.Columns(width_, width_);
  inputs.v = all.Columns(2 * width_, width_);
  inputs.memberships = {x_.data(),         y_.data(), query_bound_.data(),
                        key_bound_.data(), rows_,     static_cast<int32_t>(rank_)};
  inputs.num_heads = static_cast<int32_t>(heads_);
  inputs.head_dim = config.head_dim;
  inputs.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  return inputs;
}

absl::Status Activations::ProjectAttention(const LayerWeights& weights, const ModelConfig& config, bool pre_norm,
                                           bool memberships) {
  absl::Status status = Reserve({{&normed_, hidden_size_}, {&query_key_value_, 3 * width_}});
  if (!status.ok()) return status;
  Matrix source = hidden();
  if (pre_norm) {
    source = normed_.AsMatrix(rows_, hidden_size_);
    status = backend_.LayerNorm(hidden(), weights.attention_norm.weight.data(), weights.attention_norm.bias.data(),
                                config.layer_norm_eps, source);
    if (!status.ok()) return status;
  }
  status = backend_.Linear(*weights.query_key_value, source, query_key_value_.AsMatrix(rows_, 3 * width_), false);
  if (!status.ok() || !memberships) return status;
  rank_ = weights.memberships->rank();
  status = Reserve({{&x_, heads_ * rank_}, {&y_, heads_ * rank_}, {&query_bound_, heads_}, {&key_bound_, heads_}});
  if (!status.ok()) return status;
  const AttentionInputs view = AttentionView(config);
  return backend_.ComputeMemberships(*weights.memberships, view.q, view.k, view.memberships);
}

absl::Status Activations::FinishLayer(const LayerWeights& weights, const ModelConfig& config, bool pre_norm) {
  absl::Status status = Reserve({{&normed_, hidden_size_}, {&feed_forward_, intermediate_}});
  if (!status.ok()) return status;
  const Matrix normed = normed_.AsMatrix(rows_, hidden_size_);
  const Matrix wide = feed_forward_.AsMatrix(rows_, intermediate_);
  const auto norm = [&](const Norm& parameters, Matrix out) {
    return backend_.LayerNorm(hidden(), parameters.weight.data(), parameters.bias.data(), config.layer_norm_eps, out);
  };
  status = backend_.Linear(*weights.output, attended(), hidden(), true);
  if (status.ok()) status = pre_norm ? norm(weights.mlp_norm, normed) : norm(weights.attention_norm, hidden());
  if (status.ok()) status = backend_.Linear(*weights.up, pre_norm ? normed : hidden(), wide, false);
  if (status.ok()) status = backend_.Linear(*weights.down, wide, hidden(), true);
  if (status.ok() && !pre_norm) status = norm(weights.mlp_norm, hidden());
  return status;
}

absl::Status Activations::Classify(const ModelConfig& config, const ModelWeights& weights,
                                   const std::vector<PooledSequence>& sequences, std::vector<float>& logits) {
  Matrix features = hidden();
  absl::Status status = Reserve({{&normed_, hidden_size_}});
  if (!status.ok()) return status;
  if (config.norm_position == NormPosition::kPre) {
    features = normed_.AsMatrix(rows_, hidden_size_);
    status = backend_.LayerNorm(hidden(), weights.final_norm.weight.data(), weights.final_norm.bias.data(),
                                config.layer_norm_eps, features);
    if (!status.ok()) return status;
  }
  Buffer pooled, paired, hidden_layer, output;
  const int64_t count = static_cast<int64_t>(sequences.size());
  if (config.task != Task::kTokenClassification) {
    status = Grow(pooled, count * hidden_size_);
    if (!status.ok()) return status;
    const Matrix out = pooled.AsMatrix(count, hidden_size_);
    std::vector<int64_t> offsets;
    std::vector<float> divisors;
    for (const PooledSequence& sequence : sequences) {
      offsets.push_back(sequence.first_row);
      divisors.push_back(static_cast<float>(config.pooling == Pooling::kMeanMaxLength ? config.max_position_embeddings
                                                                                      : sequence.rows));
    }
    if (config.pooling == Pooling::kCls) {
      status = backend_.GatherRows(features, offsets, out);
    } else {
      offsets.push_back(sequences.back().first_row + sequences.back().rows);
      status = backend_.PoolMean(features, offsets, divisors, out);
    }
    features = out;
  }
  if (status.ok() && config.task == Task::kPairClassification) {
    status = Grow(paired, count / 2 * 4 * hidden_size_);
    if (!status.ok()) return status;
    // Sequences alternate: first and second of each pair.
    const ConstMatrix first(features.data, count / 2, hidden_size_, 2 * hidden_size_);
    const ConstMatrix second(features.data + hidden_size_, count / 2, hidden_size_, 2 * hidden_size_);
    const Matrix out = paired.AsMatrix(count / 2, 4 * hidden_size_);
    status = backend_.PairFeatures(first, second, out);
    features = out;
  }
  // A ReLU turns NaN into 0, so numbers that are not finite are looked for before the classifier.
  std::vector<float> checked(static_cast<size_t>(features.rows * features.columns));
  if (status.ok()) status = backend_.Download(features.data, checked);
  if (status.ok() && weights.classifier_hidden != nullptr) {
    status = Grow(hidden_layer, features.rows * config.classifier_hidden_size);
    if (!status.ok()) return status;
    const Matrix out = hidden_layer.AsMatrix(features.rows, config.classifier_hidden_size);
    status = backend_.Linear(*weights.classifier_hidden, features, out, false);
    features = out;
  }
  if (status.ok()) status = Grow(output, features.rows * config.num_labels);
  if (!status.ok()) return status;
  const Matrix out = output.AsMatrix(features.rows, config.num_labels);
  status = backend_.Linear(*weights.classifier_output, features, out, false);
  if (!status.ok()) return status;
  const size_t labels = config.num_labels;
  const size_t width = checked.size() / features.rows;
  logits.resize(features.rows * labels);
  status = backend_.Download(out.data, logits);
  for (size_t r = 0; r * width < checked.size(); ++r) {
    const auto row = checked.begin() + static_cast<int64_t>(r * width);
    if (std::all_of(row, row + static_cast<int64_t>(width), [](float x) { return std::isfinite(x); })) continue;
    std::fill_n(logits.begin() + static_cast<int64_t>(r * labels), labels, std::nanf(""));
  }
  return status;
}

}  // namespace edgewise
