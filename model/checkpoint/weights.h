// The weights of a model on its backend, read from a checkpoint.
#ifndef EDGEWISE_MODEL_CHECKPOINT_WEIGHTS_H_
#define EDGEWISE_MODEL_CHECKPOINT_WEIGHTS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/checkpoint/safetensors.h"
#include "model/checkpoint/tensor_checks.h"
#include "model/config/config.h"

namespace edgewise {

struct Norm {
  Buffer weight, bias;  // [hidden]; no bias: RmsNorm. A LayerNorm without one has zeros
};

struct LayerWeights {
  Norm attention_norm, mlp_norm;  // attention_norm empty: none (ModelConfig::first_norm)
  // [(heads + 2 * key/value heads) * head_dim, hidden]: query rows, then key, then value
  std::unique_ptr<LinearWeights> query_key_value;
  Buffer query_norm, key_norm;                      // weights [head_dim] of RmsNorm with head_norm_eps; empty: none
  const float* rotary = nullptr;                    // the layer's table, one of ModelWeights; null: none
  std::unique_ptr<LinearWeights> output, up, down;  // ModelConfig::gated: `up` has the rows of the gate, then its own
  std::unique_ptr<MembershipWeights> memberships;   // sbm; else null
  std::vector<float> block_scores;                  // learned block patterns, host [blocks, blocks]; else empty
};

// Immutable; any thread may read it. It must not outlive its backend.
struct ModelWeights {
  Buffer word;                              // [vocab_size, hidden]; empty: rows of features
  std::unique_ptr<LinearWeights> features;  // [hidden, feature_size]; null: tokens. For patches without bias
  // Row t * max_position_embeddings + p: position p plus token type t. [max(token_types, 1) * max_position_embeddings,
  // hidden]; empty: none. For patches row 0 has the CLS row, and the others the bias of the features.
  Buffer position;
  Norm embedding_norm;  // empty: none
  float head_norm_eps = 0.0f;
  // [max_position_embeddings, head_dim], as Backend::Rotate takes it: of ModelConfig::rotary and window_rotary. Empty:
  // none.
  Buffer rotary, window_rotary;
  // [heads, 2 * max_position_embeddings - 1]: relative positions, their buckets or ALiBi, as
  // AttentionInputs::distance_bias; empty: none.
  Buffer distance_bias;
  std::vector<float> pairwise_table;                  // host [heads, 256], as PairwiseTable makes it; empty: none
  std::vector<LayerWeights> layers;                   // [num_hidden_layers]; one where layers are tied
  Norm final_norm;                                    // norm_position pre; else empty
  std::unique_ptr<LinearWeights> lm_head;             // causal-lm [vocab_size, hidden], no bias; null: a classifier
  std::unique_ptr<LinearWeights> classifier_hidden;   // null: none
  Norm classifier_norm;                               // of its rows; empty: none
  std::unique_ptr<LinearWeights> classifier_output;   // null: causal-lm, embedding
  std::vector<std::unique_ptr<LinearWeights>> dense;  // ModelConfig::dense
  // Of all of the above, for plain generations (GenerationStep); null: none.
  std::unique_ptr<PreparedDecoder> decoder;

  // The weights of layer `application`, which may be those of all layers.
  const LayerWeights& layer(size_t application) const { return layers.size() == 1 ? layers[0] : layers[application]; }
};

// Runs `work`, on the thread where it may run, and returns its status after it.
using RunWork = std::function<absl::Status(const std::function<absl::Status()>& work)>;
inline absl::Status RunHere(const std::function<absl::Status()>& work) { return work(); }

// config.head_dim, with the zeros that the backend aligns heads by.
int32_t AlignedHeadDim(const ModelConfig& config, const Backend& backend);

// Brings the weights to the backend, in heads of AlignedHeadDim columns. `tensors` are those of ExpectedTensors, of
// their shapes; they are read during the call only. Nothing but `use_backend` uses the backend, for one weight after
// the other. INVALID_ARGUMENT: a number is not finite, or not allowed where it stands; the message names the tensor.
absl::StatusOr<std::unique_ptr<ModelWeights>> PlaceWeights(const ModelConfig& config, const NamedTensors& tensors,
                                                           Backend& backend, const RunWork& use_backend);

// Reads the data of a file in our own format, and places it. INVALID_ARGUMENT: as PlaceWeights; or a tensor is missing,
// superfluous or of the wrong dtype or shape.
absl::StatusOr<std::unique_ptr<ModelWeights>> LoadWeights(const ModelConfig& config, SafetensorsFile& file,
                                                          Backend& backend, const RunWork& use_backend = RunHere);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_CHECKPOINT_WEIGHTS_H_
