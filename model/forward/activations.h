// The activations of a set of rows (valid tokens, packed), and the operations of a layer around its attention.
#ifndef EDGEWISE_MODEL_FORWARD_ACTIVATIONS_H_
#define EDGEWISE_MODEL_FORWARD_ACTIVATIONS_H_

#include <cstdint>
#include <initializer_list>
#include <memory_resource>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/input/input.h"
#include "model/kinds/patterns.h"
#include "model/model.h"

namespace edgewise {

struct LayerWeights;
struct Norm;

// A norm as the model norms its layers: LayerNorm or RmsNorm.
RowNorm NormOf(const Model& model, const Norm& norm);
// y = the norm of x, by rows. y may be x.
absl::Status ApplyNorm(const Model& model, const Norm& norm, ConstMatrix x, Matrix y);

// Owns one buffer for each activation on the backend, all [rows, .]. Each buffer is allocated when it is first needed,
// grows and is reused. One thread at a time. Errors of all methods: those of the backend.
class Activations {
 public:
  // Both must outlive the activations. `scratch` is used during calls only.
  Activations(const Model& model, std::pmr::memory_resource* scratch);

  // The floats that one row takes in all buffers together.
  static int64_t FloatsPerRow(const Model& model);

  // Resizes to the queries of these ranges, end to end, and fills hidden() with their embeddings.
  absl::Status Embed(std::span<const QueryRange> ranges, Phase phase);
  // Takes these rows of the residual stream of `from`, in this order, for its own.
  absl::Status Take(const Activations& from, std::span<const int64_t> rows);
  // Frees all memory; there are no rows.
  void Clear();
  // Keeps the given rows of the residual stream, in this order; with `attended`, those of attended() too.
  absl::Status Compact(std::span<const int64_t> rows, bool attended);

  int64_t rows() const { return rows_; }
  Matrix hidden() const { return View(kHidden); }  // residual stream [rows, hidden_size]
  // Output of attention [rows, heads * head_dim], in a form of Backend::FormsOfAttention, as keys_and_values are.
  Matrix attended() const { return View(kAttended); }
  ConstMatrix keys_and_values() const;  // [rows, 2 * key/value heads * head_dim]
  // Queries, keys, values and memberships as Project left them.
  AttentionInputs AttentionView() const;

  // Rows first..first + count - 1.
  struct Part {
    int64_t first = 0, count = 0;
  };
  // Queries, keys and values of these rows, and their `memberships` where the layer draws from them. They are float32
  // then, or where a `graph` of their weights is wanted.
  absl::Status Project(const LayerWeights& weights, bool memberships, bool graph, Phase phase, Part part);
  // Allocates attended(), which Project does not.
  absl::Status ReserveAttended(Phase phase);
  // The rest of the layer after attention, for these rows: output projection, residual, feed-forward, norms. `next`:
  // the layer that follows; null: none.
  absl::Status Finish(const LayerWeights& weights, const LayerWeights* next, Phase phase, Part part);
  // The residual stream after the final norm, or as it is where norms follow their sublayers. Valid until the next
  // call.
  absl::StatusOr<Matrix> FinalNorm();

 private:
  // Sets the number of rows; contents are undefined afterwards. Where hidden() must grow, all buffers are freed first:
  // buffers that grow one by one would break up the free memory.
  absl::Status Resize(int64_t rows);

  enum Field {
    kHidden,
    kOperand,  // the norm of kHidden, or what it is itself behind a norm, as products read it
    kNormed,
    kQueryKeyValue,
    kAttended,
    kX,
    kY,
    kQueryBound,
    kKeyBound,
    kFeatures,
    kFields
  };

  static int64_t Columns(const ModelConfig& config, Field field, int64_t rank);
  // Floats of a row.
  static int64_t Width(const Model& model, Field field, int64_t rank, Form form);
  Matrix View(Field field) const;
  // Where norms for products go.
  Field Norms(Phase phase) const {
    return operand_form_ == Form::kFloat32 || phase == Phase::kDecode ? kNormed : kOperand;
  }
  // The residual stream of these rows and its norm: there, and in place where norms follow their sublayers.
  Residual Normed(const RowNorm& norm, Phase phase, Part part) const;
  Memberships MembershipsView() const;
  absl::Status Reserve(Field field, int64_t floats);
  absl::Status Reserve(std::initializer_list<Field> fields);  // of all rows
  // Norms queries and keys of these rows, and rotates them.
  absl::Status TurnHeads(const LayerWeights& weights, Matrix heads, Part part);
  absl::Status ProjectFeatures(std::span<const QueryRange> ranges, Phase phase);  // into kNormed

  const Model& model_;
  Backend& backend_;
  std::pmr::memory_resource* const scratch_;
  const bool pre_norm_;
  const Form operand_form_;
  int64_t rows_ = 0;
  int64_t rank_ = 0;                // of the last layer that had memberships
  bool operand_here_ = false;       // kOperand is what the next layer's first product reads
  Form forms_[kFields] = {};        // of the buffers' rows
  std::vector<int32_t> positions_;  // [rows] where queries and keys are rotated; else empty
  Buffer buffers_[kFields];
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_ACTIVATIONS_H_
