// Density as the authors of SBM-Transformer report it: sampled pairs over all pairs of the padded length, pads drawing
// and being drawn like tokens, exploration included. It takes a forward pass of its own, over max_position_embeddings
// tokens.
#ifndef EDGEWISE_MODEL_PADDED_COUNT_H_
#define EDGEWISE_MODEL_PADDED_COUNT_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "model/activations.h"
#include "model/input.h"
#include "model/model.h"

namespace edgewise {

// Counts over all samples of one input. Pads are queries that attend to valid keys, so their residual stream is what
// the authors' code computes; edges to pads are counted and attended to by nobody. No budget holds here.
//
// One thread at a time; the model's backend is used only inside Step().
class PaddedCount {
 public:
  // Whether a model has what is counted: sbm in some layer, and token ids.
  static bool Applies(const ModelConfig& config);

  // All must outlive the count; Applies(model.config()). Once `drop`, which may be null, is raised, the density may be
  // anything.
  PaddedCount(const Model& model, const ModelInput& input, uint32_t samples, const DropFlag* drop);

  bool done() const { return sample_ == samples_; }
  // Runs the next layer. Errors as Backend gives them.
  absl::Status Step();
  // Mean over samples, sides, layers and heads; valid when done().
  double density() const;

 private:
  absl::Status Start();
  absl::Status Attend(bool draws);

  const Model& model_;
  const ModelInput& input_;
  const uint32_t samples_;
  const DropFlag* const drop_;
  std::vector<ModelSequence> padded_;     // every position a token
  std::vector<std::vector<bool>> valid_;  // [sides][length]
  Activations rows_;
  uint32_t sample_ = 0;
  int32_t layer_ = 0;
  uint64_t edges_ = 0;  // of the current sample
  uint64_t pairs_ = 0;
  double sum_ = 0.0;  // of the samples' densities, each a multiple of 2^-40: parts of an ensemble merge to the whole
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_PADDED_COUNT_H_
