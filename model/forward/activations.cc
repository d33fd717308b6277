#include "model/forward/activations.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "model/checkpoint/weights.h"

namespace edgewise {

void PackedRows::Add(const QueryRange& range) {
  const ModelSequence& sequence = *range.sequence;
  for (int32_t i = range.first_query; i < sequence.valid(); ++i) {
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

Activations::Activations(const Model& model, Workspace workspace)
    : model_(model),
      backend_(model.backend()),
      pre_norm_(model.config().norm_position == NormPosition::kPre),
      workspace_(workspace) {}

int64_t Activations::Columns(const ModelConfig& config, Field field, int64_t rank) {
  const int64_t hidden = config.hidden_size, heads = config.num_attention_heads, width = heads * config.head_dim;
  const int64_t columns[kFields] = {hidden, hidden, 3 * width,          width, heads * rank, heads * rank,
                                    heads,  heads,  config.feature_size};
  return columns[field];
}

int64_t Activations::FloatsPerRow(const Model& model) {
  int64_t rank = -1;  // no layer has memberships: rank and bounds together take nothing
  for (const LayerWeights& layer : model.weights().layers) {
    if (layer.memberships != nullptr) rank = std::max<int64_t>(rank, layer.memberships->rank());
  }
  int64_t floats = 0;
  for (int field = 0; field < kFields; ++field) floats += Columns(model.config(), static_cast<Field>(field), rank);
  return floats;
}

absl::Status Activations::Reserve(std::initializer_list<Field> fields) {
  for (const Field field : fields) {
    Buffer& buffer = buffers_[field];
    const int64_t floats = rows_ * Columns(model_.config(), field, rank_);
    if (buffer.size() >= floats) continue;
    buffer = Buffer();  // freed before more is asked for
    absl::StatusOr<Buffer> larger = backend_.AllocateIn(workspace_, floats);
    if (!larger.ok()) return larger.status();
    buffer = *std::move(larger);
  }
  return absl::OkStatus();
}

absl::Status Activations::Resize(int64_t rows) {
  if (buffers_[kHidden].size() < rows * model_.config().hidden_size) Clear();
  rows_ = rows;
  return Reserve({kHidden});
}

void Activations::Clear() {
  rows_ = 0;
  for (Buffer& buffer : buffers_) buffer = Buffer();
}

absl::Status Activations::Embed(const PackedRows& packed, Phase phase) {
  const ModelConfig& config = model_.config();
  const ModelWeights& weights = model_.weights();
  absl::Status status = Resize(packed.rows());
  if (!status.ok()) return status;
  const ConstMatrix position = weights.position.data() == nullptr
                                   ? ConstMatrix()
                                   : weights.position.AsMatrix(config.max_position_embeddings, config.hidden_size);
  if (weights.features == nullptr) {
    const ConstMatrix word = weights.word.AsMatrix(config.vocab_size, config.hidden_size);
    return backend_.Embed(word, position, packed.token_ids, packed.positions, hidden());
  }
  status = Reserve({kFeatures, kNormed});
  if (status.ok()) status = backend_.Upload(packed.features, buffers_[kFeatures].data());
  if (status.ok()) status = backend_.Linear(*weights.features, View(kFeatures), View(kNormed), false, phase);
  if (!status.ok()) return status;
  // The projected rows are the words of this input.
  std::vector<int32_t> each(rows_);
  std::iota(each.begin(), each.end(), 0);
  return backend_.Embed(View(kNormed), position, each, packed.positions, hidden());
}

absl::Status Activations::Compact(const std::vector<int64_t>& rows) {
  absl::Status status = Reserve({kNormed});
  if (!status.ok()) return status;
  const int64_t count = static_cast<int64_t>(rows.size());
  status = backend_.GatherRows(hidden(), rows, View(kNormed).Rows(0, count));
  std::swap(buffers_[kHidden], buffers_[kNormed]);
  rows_ = count;
  return status;
}

ConstMatrix Activations::keys_and_values() const {
  const int64_t width = Columns(model_.config(), kAttended, 0);
  return View(kQueryKeyValue).Columns(width, 2 * width);
}

Memberships Activations::MembershipsView() const {
  return {
      buffers_[kX].data(),        buffers_[kY].data(), buffers_[kQueryBound].data(), buffers_[kKeyBound].data(), rows_,
      static_cast<int32_t>(rank_)};
}

AttentionInputs Activations::AttentionView() const {
  const ModelConfig& config = model_.config();
  const int64_t width = Columns(config, kAttended, 0);
  const ConstMatrix all = View(kQueryKeyValue);
  AttentionInputs inputs;
  inputs.q = all.Columns(0, width);
  inputs.k = all.Columns(width, width);
  inputs.v = all.Columns(2 * width, width);
  inputs.memberships = MembershipsView();
  inputs.num_heads = config.num_attention_heads;
  inputs.head_dim = config.head_dim;
  inputs.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  inputs.distance_bias = model_.weights().distance_bias.data();
  inputs.distance_span = config.max_position_embeddings;
  return inputs;
}

absl::Status Activations::LayerNorm(const Norm& norm, Matrix out) const {
  return backend_.LayerNorm(hidden(), norm.weight.data(), norm.bias.data(), model_.config().layer_norm_eps, out);
}

absl::StatusOr<Matrix> Activations::FinalNorm() {
  if (!pre_norm_) return hidden();
  absl::Status status = Reserve({kNormed});
  if (status.ok()) status = LayerNorm(model_.weights().final_norm, View(kNormed));
  if (!status.ok()) return status;
  return View(kNormed);
}

absl::Status Activations::Project(const LayerWeights& weights, bool memberships, Phase phase) {
  absl::Status status = Reserve({kNormed, kQueryKeyValue});
  if (status.ok() && pre_norm_) status = LayerNorm(weights.attention_norm, View(kNormed));
  if (!status.ok()) return status;
  const Matrix all = View(kQueryKeyValue);
  status = backend_.Linear(*weights.query_key_value, pre_norm_ ? View(kNormed) : hidden(), all, false, phase);
  if (!status.ok() || !memberships) return status;
  rank_ = weights.memberships->rank();
  status = Reserve({kX, kY, kQueryBound, kKeyBound});
  if (!status.ok()) return status;
  const int64_t width = all.columns / 3;
  return backend_.ComputeMemberships(*weights.memberships, all.Columns(0, width), all.Columns(width, width),
                                     MembershipsView());
}

absl::Status Activations::Finish(const LayerWeights& weights, Phase phase) {
  absl::Status status = Reserve({kNormed});
  if (!status.ok()) return status;
  const Matrix normed = pre_norm_ ? View(kNormed) : hidden();
  status = backend_.Linear(*weights.output, attended(), hidden(), true, phase);
  if (status.ok()) status = LayerNorm(pre_norm_ ? weights.mlp_norm : weights.attention_norm, normed);
  if (status.ok()) status = backend_.FeedForward(*weights.up, *weights.down, normed, hidden(), phase);
  if (status.ok() && !pre_norm_) status = LayerNorm(weights.mlp_norm, hidden());
  return status;
}

}  // namespace edgewise
