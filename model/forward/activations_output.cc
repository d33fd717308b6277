// What follows the encoder: final norm, then pooling and classifier, or the logits of next tokens.
#include <algorithm>
#include <cmath>

#include "model/forward/activations.h"
#include "model/forward/softmax.h"

namespace edgewise {
namespace {

constexpr int64_t kMaxLogits = 1 << 22;  // floats

}  // namespace

int64_t LogitsAtOnce(const ModelConfig& config, int64_t rows) {
  return std::min(rows, std::max<int64_t>(1, kMaxLogits / config.vocab_size));
}

absl::Status Activations::NextTokenLogits(const ModelConfig& config, const ModelWeights& weights,
                                          std::span<const int64_t> rows, Phase phase,
                                          const std::function<void(size_t, const float*)>& visit) {
  const int64_t vocabulary = config.vocab_size;
  const int64_t wanted = static_cast<int64_t>(rows.size());
  const int64_t most = LogitsAtOnce(config, wanted);
  absl::Status status = Grow(last_, most * hidden_size_);
  if (status.ok()) status = Grow(logits_, most * vocabulary);
  if (!status.ok()) return status;
  std::vector<float> host(most * vocabulary);
  for (int64_t first = 0; first < wanted; first += most) {
    const int64_t chunk = std::min(most, wanted - first);
    const Matrix last = last_.AsMatrix(chunk, hidden_size_);
    const Matrix logits = logits_.AsMatrix(chunk, vocabulary);
    status = backend_.GatherRows(hidden(), rows.subspan(first, chunk), last);
    if (status.ok() && config.norm_position == NormPosition::kPre) {
      status = backend_.LayerNorm(last, weights.final_norm.weight.data(), weights.final_norm.bias.data(),
                                  config.layer_norm_eps, last);
    }
    if (status.ok()) status = backend_.Linear(*weights.lm_head, last, logits, false, phase);
    if (status.ok()) status = backend_.Download(logits.data, std::span(host).first(chunk * vocabulary));
    if (!status.ok()) return status;
    for (int64_t r = 0; r < chunk; ++r) visit(first + r, host.data() + r * vocabulary);
  }
  return absl::OkStatus();
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
  if (config.task != ModelTask::kTokenClassification) {
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
  if (status.ok() && config.task == ModelTask::kPairClassification) {
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
    if (AllFinite(checked.data() + r * width, width)) continue;
    std::fill_n(logits.begin() + static_cast<int64_t>(r * labels), labels, std::nanf(""));
  }
  return status;
}

}  // namespace edgewise
