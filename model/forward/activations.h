// The activations of a set of rows (valid tokens, packed), and what a layer does to them.
#ifndef EDGEWISE_MODEL_FORWARD_ACTIVATIONS_H_
#define EDGEWISE_MODEL_FORWARD_ACTIVATIONS_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "model/checkpoint/config.h"
#include "model/checkpoint/weights.h"
#include "model/input/input.h"

namespace edgewise {

// So many of `rows` rows have logits over the vocabulary at a time, in NextTokenLogits.
int64_t LogitsAtOnce(const ModelConfig& config, int64_t rows);

// The input of rows, before they are embedded.
struct PackedRows {
  std::vector<int32_t> token_ids;  // [rows]; empty: features
  std::vector<float> features;     // [rows, feature_size]; empty: tokens
  std::vector<int32_t> positions;  // [rows]

  int64_t rows() const { return static_cast<int64_t>(positions.size()); }
  // Adds the valid tokens of a sequence, from the packed token `first` on.
  void Add(const ModelSequence& sequence, int32_t first);
};

// Rows of one sequence at the end of the encoder.
struct PooledSequence {
  int64_t first_row;
  int64_t rows;
};

// Owns one buffer per activation on the backend, all [rows, .]; each is made when it is first needed, grows and is
// reused. One thread at a time.
class Activations {
 public:
  explicit Activations(Backend& backend) : backend_(backend) {}

  // Resizes to the packed rows and fills hidden() with their embeddings.
  absl::Status Embed(const ModelConfig& config, const ModelWeights& weights, const PackedRows& packed,
                     Phase phase = Phase::kPrefill);
  // Sets the number of rows; contents are undefined afterwards. Where they need more memory than the last ones, it
  // gives back all before: growing one by one, buffers would be in each other's way.
  absl::Status Resize(const ModelConfig& config, int64_t rows);
  // Gives all memory back; there are no rows.
  void Clear();
  bool empty() const { return hidden_.data() == nullptr; }
  // Makes room for attended(), which ProjectAttention and others leave alone.
  absl::Status ReserveAttended();
  // Keeps the given rows of the residual stream, in this order.
  absl::Status Compact(const std::vector<int64_t>& rows);

  int64_t rows() const { return rows_; }
  Matrix hidden() const { return hidden_.AsMatrix(rows_, hidden_size_); }  // residual stream
  Matrix attended() const { return attended_.AsMatrix(rows_, width_); }    // heads side by side
  Matrix keys_and_values() const { return query_key_value_.AsMatrix(rows_, 3 * width_).Columns(width_, 2 * width_); }
  AttentionInputs AttentionView(const ModelConfig& config, const ModelWeights& weights) const;

  // Query, key and value of every row, and memberships where the layer draws.
  absl::Status ProjectAttention(const LayerWeights& weights, const ModelConfig& config, bool pre_norm, bool memberships,
                                Phase phase = Phase::kPrefill);
  // What follows attention: output projection, residual, feed-forward, norms.
  absl::Status FinishLayer(const LayerWeights& weights, const ModelConfig& config, bool pre_norm,
                           Phase phase = Phase::kPrefill);
  // Final norm, pooling and classifier: logits [sequences or pairs, labels], or [rows of all sequences, labels] for
  // token-classification, on the host. Logits are NaN where the encoder's output was not finite.
  absl::Status Classify(const ModelConfig& config, const ModelWeights& weights,
                        const std::vector<PooledSequence>& sequences, std::vector<float>& logits);

  // causal-lm: calls visit(i, logits of the token after row rows[i] [vocab_size], host) for every i in order. Runs a
  // few rows at a time: memory does not grow with rows x vocabulary.
  absl::Status NextTokenLogits(const ModelConfig& config, const ModelWeights& weights, std::span<const int64_t> rows,
                               Phase phase, const std::function<void(size_t, const float*)>& visit);

 private:
  absl::Status Grow(Buffer& buffer, int64_t floats) const;
  // Room for rows() rows of so many columns.
  absl::Status Reserve(std::initializer_list<std::pair<Buffer*, int64_t>> buffers) const;

  Backend& backend_;
  int64_t rows_ = 0, hidden_size_ = 0, width_ = 0, heads_ = 0, rank_ = 0;
  Buffer hidden_, normed_, query_key_value_, attended_;
  Buffer x_, y_, query_bound_, key_bound_;  // memberships
  Buffer features_;                         // [rows, feature_size]
  Buffer last_, logits_;                    // of NextTokenLogits
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_ACTIVATIONS_H_
