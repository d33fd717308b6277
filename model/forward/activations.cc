#include "model/forward/activations.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "model/checkpoint/weights.h"

namespace edgewise {
namespace {

// The norm, as products read it best.
ConstMatrix NormIn(const Residual& to) { return to.operand.data != nullptr ? to.operand : to.y; }

}  // namespace

RowNorm NormOf(const Model& model, const Norm& norm) {
  return {norm.weight.data(), model.config().rms_norm ? nullptr : norm.bias.data(), model.config().layer_norm_eps};
}

absl::Status ApplyNorm(const Model& model, const Norm& norm, ConstMatrix x, Matrix y) {
  const float eps = model.config().layer_norm_eps;
  if (model.config().rms_norm) return model.backend().RmsNorm(x, norm.weight.data(), eps, x.columns, y);
  return model.backend().LayerNorm(x, norm.weight.data(), norm.bias.data(), eps, y);
}

Activations::Activations(const Model& model, std::pmr::memory_resource* scratch)
    : model_(model),
      backend_(model.backend()),
      scratch_(scratch),
      pre_norm_(model.config().norm_position == NormPosition::kPre),
      operand_form_(backend_.OperandForm(model.config().hidden_size)) {
  forms_[kOperand] = operand_form_;
}

int64_t Activations::Columns(const ModelConfig& config, Field field, int64_t rank) {
  const int64_t hidden = config.hidden_size, heads = config.num_attention_heads, width = heads * config.head_dim;
  const int64_t all = width + int64_t{2} * KeyValueHeads(config) * config.head_dim;
  const int64_t columns[kFields] = {hidden,       hidden,       hidden, all,   width,
                                    heads * rank, heads * rank, heads,  heads, config.feature_size};
  return columns[field];
}

int64_t Activations::Width(const Model& model, Field field, int64_t rank, Form form) {
  return model.backend().RowFloats(form, Columns(model.config(), field, rank));
}

Matrix Activations::View(Field field) const {
  const int64_t columns = Columns(model_.config(), field, rank_);
  return {buffers_[field].data(), rows_, columns, Width(model_, field, rank_, forms_[field]), forms_[field]};
}

Residual Activations::Normed(const RowNorm& norm, Phase phase, Part part) const {
  const Matrix rows = hidden().Rows(part.first, part.count), normed = View(Norms(phase)).Rows(part.first, part.count);
  Residual to = {rows, norm, pre_norm_ ? Matrix() : rows, {}};
  if (Norms(phase) == kOperand) {
    to.operand = normed;
  } else if (pre_norm_) {
    to.y = normed;
  }
  return to;
}

int64_t Activations::FloatsPerRow(const Model& model) {
  int64_t rank = -1;  // no layer has memberships: rank and bounds together take nothing
  for (const LayerWeights& layer : model.weights().layers) {
    if (layer.memberships != nullptr) rank = std::max<int64_t>(rank, layer.memberships->rank());
  }
  const ModelConfig& config = model.config();
  const Form operand = model.backend().OperandForm(config.hidden_size),
             attended = model.backend().FormsOfAttention(Columns(config, kAttended, rank)).out;
  int64_t floats = 0;
  for (int f = 0; f < kFields; ++f) {
    const auto field = static_cast<Field>(f);
    if (field == kOperand && operand == Form::kFloat32) continue;
    const int64_t plain = Columns(config, field, rank);
    const Form form = field == kOperand ? operand : field == kAttended ? attended : Form::kFloat32;
    floats += field == kOperand ? Width(model, field, rank, form) : std::max(plain, Width(model, field, rank, form));
  }
  return floats;
}

absl::Status Activations::Reserve(Field field, int64_t floats) {
  Buffer& buffer = buffers_[field];
  if (buffer.size() >= floats) return absl::OkStatus();
  buffer = Buffer();  // freed before more is asked for
  ASSIGN_OR_RETURN(buffer, backend_.Allocate(floats));
  return absl::OkStatus();
}

absl::Status Activations::Reserve(std::initializer_list<Field> fields) {
  for (const Field field : fields) {
    RETURN_IF_ERROR(Reserve(field, rows_ * Width(model_, field, rank_, forms_[field])));
  }
  return absl::OkStatus();
}

absl::Status Activations::Take(const Activations& from, std::span<const int64_t> rows) {
  RETURN_IF_ERROR(Resize(static_cast<int64_t>(rows.size())));
  positions_.clear();
  for (const int64_t row : rows) {
    if (!from.positions_.empty()) positions_.push_back(from.positions_[row]);
  }
  return backend_.GatherRows(from.hidden(), rows, hidden());
}

absl::Status Activations::Resize(int64_t rows) {
  if (buffers_[kHidden].size() < rows * model_.config().hidden_size) Clear();
  rows_ = rows;
  operand_here_ = false;
  return Reserve({kHidden});
}

void Activations::Clear() {
  rows_ = 0;
  operand_here_ = false;
  positions_.clear();
  for (Buffer& buffer : buffers_) buffer = Buffer();
}

absl::Status Activations::Embed(std::span<const QueryRange> ranges, Phase phase) {
  const ModelConfig& config = model_.config();
  const ModelWeights& weights = model_.weights();
  std::pmr::vector<int32_t> words(scratch_), positions(scratch_);
  for (const QueryRange& range : ranges) {
    for (int32_t i = range.first_query; i < range.sequence->valid(); ++i) {
      const ModelSequence& sequence = *range.sequence;
      const int32_t place = sequence.positions[i];
      const int32_t type = sequence.token_types.empty() ? 0 : sequence.token_types[place];
      positions.push_back(type * config.max_position_embeddings + (config.position_offset > 0 ? i : place));
      // The projected rows of features are the words of this input.
      words.push_back(weights.features != nullptr ? static_cast<int32_t>(words.size()) : sequence.token_ids[place]);
    }
  }
  RETURN_IF_ERROR(Resize(static_cast<int64_t>(positions.size())));
  if (weights.rotary.data() != nullptr) positions_.assign(positions.begin(), positions.end());
  ConstMatrix word = weights.word.AsMatrix(config.vocab_size, config.hidden_size), position;
  if (weights.position.data() != nullptr) {
    position = weights.position.AsMatrix(weights.position.size() / config.hidden_size, config.hidden_size);
  }
  if (weights.features != nullptr) {
    RETURN_IF_ERROR(ProjectFeatures(ranges, phase));
    word = View(kNormed);
  }
  RETURN_IF_ERROR(backend_.Embed(word, position, words, positions, hidden()));
  if (!config.embedding_norm) return absl::OkStatus();
  Residual to = {hidden(), NormOf(model_, weights.embedding_norm), hidden(), {}};
  operand_here_ = !pre_norm_ && Norms(phase) == kOperand;
  if (operand_here_) {
    RETURN_IF_ERROR(Reserve({kOperand}));
    to.operand = View(kOperand);
  }
  return backend_.NormRows(to);
}

absl::Status Activations::ProjectFeatures(std::span<const QueryRange> ranges, Phase phase) {
  std::pmr::vector<float> features(scratch_);
  for (const QueryRange& range : ranges) {
    for (int32_t i = range.first_query; i < range.sequence->valid(); ++i) {
      const int64_t size = model_.config().feature_size;
      const auto row = range.sequence->features.begin() + range.sequence->positions[i] * size;
      features.insert(features.end(), row, row + size);
    }
  }
  RETURN_IF_ERROR(Reserve({kFeatures, kNormed}));
  RETURN_IF_ERROR(backend_.Upload(features, buffers_[kFeatures].data()));
  return backend_.Linear(*model_.weights().features, View(kFeatures), View(kNormed), false, phase);
}

absl::Status Activations::Compact(std::span<const int64_t> rows, bool attended) {
  const int64_t count = static_cast<int64_t>(rows.size());
  for (const Field field : {kHidden, kAttended}) {
    if (field == kAttended && !attended) break;
    const int64_t floats = Width(model_, field, rank_, forms_[field]);  // of any form
    RETURN_IF_ERROR(Reserve(kNormed, count * floats));
    RETURN_IF_ERROR(
        backend_.GatherRows(buffers_[field].AsMatrix(rows_, floats), rows, buffers_[kNormed].AsMatrix(count, floats)));
    std::swap(buffers_[field], buffers_[kNormed]);
  }
  rows_ = count;
  operand_here_ = false;
  if (!positions_.empty()) {
    std::pmr::vector<int32_t> kept(scratch_);
    for (const int64_t row : rows) kept.push_back(positions_[row]);
    positions_.assign(kept.begin(), kept.end());
  }
  return absl::OkStatus();
}

ConstMatrix Activations::keys_and_values() const {
  const ConstMatrix all = View(kQueryKeyValue);
  const int64_t width = Columns(model_.config(), kAttended, 0);
  return all.Columns(width, all.columns - width);
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
  const int64_t key_width = (all.columns - width) / 2;
  AttentionInputs inputs;
  inputs.q = all.Columns(0, width);
  inputs.k = all.Columns(width, key_width);
  inputs.v = all.Columns(width + key_width, key_width);
  inputs.memberships = MembershipsView();
  inputs.num_heads = config.num_attention_heads;
  inputs.num_key_value_heads = config.num_key_value_heads;
  inputs.runs_as_windows = HasWindows(config);
  inputs.head_dim = config.head_dim;
  inputs.scale = config.score_scale;
  inputs.distance_bias = model_.weights().distance_bias.data();
  inputs.distance_span = config.max_position_embeddings;
  return inputs;
}

absl::StatusOr<Matrix> Activations::FinalNorm() {
  if (!pre_norm_) return hidden();
  RETURN_IF_ERROR(Reserve({kNormed}));
  RETURN_IF_ERROR(ApplyNorm(model_, model_.weights().final_norm, hidden(), View(kNormed)));
  return View(kNormed);
}

absl::Status Activations::Project(const LayerWeights& weights, bool memberships, bool graph, Phase phase, Part part) {
  const bool turned = !positions_.empty() || model_.config().head_norm;
  forms_[kQueryKeyValue] =
      memberships || graph || turned || phase == Phase::kDecode ? Form::kFloat32 : backend_.FormsOfAttention(0).inputs;
  RETURN_IF_ERROR(Reserve({Norms(phase), kQueryKeyValue}));
  const Matrix all = View(kQueryKeyValue).Rows(part.first, part.count);
  ConstMatrix source = View(operand_here_ ? kOperand : kHidden).Rows(part.first, part.count);
  if (!operand_here_ && pre_norm_ && weights.attention_norm.weight.data() != nullptr) {
    const Residual to = Normed(NormOf(model_, weights.attention_norm), phase, part);
    RETURN_IF_ERROR(backend_.NormRows(to));
    source = NormIn(to);
  }
  RETURN_IF_ERROR(backend_.Linear(*weights.query_key_value, source, all, false, phase));
  const int64_t width = Columns(model_.config(), kAttended, 0), key_width = (all.columns - width) / 2;
  RETURN_IF_ERROR(TurnHeads(weights, all.Columns(0, width + key_width), part));
  if (!memberships) return absl::OkStatus();
  rank_ = weights.memberships->rank();
  RETURN_IF_ERROR(Reserve({kX, kY, kQueryBound, kKeyBound}));
  Memberships out = MembershipsView();
  out.x += part.first * rank_;
  out.y += part.first * rank_;
  out.query_bound += part.first;
  out.key_bound += part.first;
  return backend_.ComputeMemberships(*weights.memberships, all.Columns(0, width), all.Columns(width, key_width), out);
}

absl::Status Activations::TurnHeads(const LayerWeights& weights, Matrix heads, Part part) {
  const ModelConfig& config = model_.config();
  if (config.head_norm) {
    const int64_t width = Columns(config, kAttended, 0);
    const Matrix queries = heads.Columns(0, width), keys = heads.Columns(width, heads.columns - width);
    const float eps = model_.weights().head_norm_eps;
    RETURN_IF_ERROR(backend_.RmsNorm(queries, weights.query_norm.data(), eps, config.head_dim, queries));
    RETURN_IF_ERROR(backend_.RmsNorm(keys, weights.key_norm.data(), eps, config.head_dim, keys));
  }
  if (positions_.empty()) return absl::OkStatus();
  const ConstMatrix table(weights.rotary, config.max_position_embeddings, config.head_dim);
  const std::span<const int32_t> positions = std::span(positions_).subspan(part.first, part.count);
  return backend_.Rotate(heads, table, positions);
}

absl::Status Activations::ReserveAttended(Phase phase) {
  const int64_t columns = Columns(model_.config(), kAttended, 0);
  forms_[kAttended] = phase == Phase::kDecode ? Form::kFloat32 : backend_.FormsOfAttention(columns).out;
  return Reserve({kAttended});
}

absl::Status Activations::Finish(const LayerWeights& weights, const LayerWeights* next, Phase phase, Part part) {
  RETURN_IF_ERROR(Reserve({Norms(phase)}));
  const Residual attended_to =
      Normed(NormOf(model_, pre_norm_ ? weights.mlp_norm : weights.attention_norm), phase, part);
  RETURN_IF_ERROR(backend_.AddLinear(*weights.output, attended().Rows(part.first, part.count), attended_to, phase));
  RowNorm norm;
  if (!pre_norm_) norm = NormOf(model_, weights.mlp_norm);
  if (pre_norm_ && Norms(phase) == kOperand && next != nullptr) norm = NormOf(model_, next->attention_norm);
  operand_here_ = Norms(phase) == kOperand && norm.weight != nullptr;
  const ModelConfig& config = model_.config();
  const auto gate = config.gated ? std::optional(config.hidden_act) : std::nullopt;
  return backend_.AddFeedForward(*weights.up, *weights.down, gate, NormIn(attended_to), Normed(norm, phase, part),
                                 phase);
}

}  // namespace edgewise
