// A decoder whose layers are all alike but for their weights, as a backend may run it: for single tokens, all layers in
// one call.
#ifndef EDGEWISE_KERNELS_DECODER_H_
#define EDGEWISE_KERNELS_DECODER_H_

#include <cstdint>
#include <vector>

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/tensor.h"

namespace edgewise {

class LinearWeights;  // kernels/backend.h

// x = x + output(attention(norm(x))); x = x + down(activation(up(mlp_norm(x)))), or with `gated` as
// Backend::GatedFeedForward. All weights outlive the decoder.
struct DecoderLayer {
  const float* norm_weight = nullptr;  // [hidden]
  const float* norm_bias = nullptr;    // null: RMS norm
  const LinearWeights* query_key_value = nullptr;
  const float* rotary = nullptr;   // as Backend::Rotate's table; null: none
  int32_t reach = AllPairs::kFar;  // AllPairs::reach, of positions without gaps
  const LinearWeights* output = nullptr;
  const float* mlp_norm_weight = nullptr;
  const float* mlp_norm_bias = nullptr;
  const LinearWeights* up = nullptr;
  const LinearWeights* down = nullptr;
};

struct Decoder {
  ConstMatrix words, positions;  // positions.data null: none are added
  int32_t heads = 0, key_value_heads = 0, head_dim = 0;
  float score_scale = 0.0f;
  float norm_epsilon = 0.0f;
  bool gated = false;
  Activation activation = Activation::kNone;  // gated
  int32_t most_tokens = 0;                    // of a text
  std::vector<DecoderLayer> layers;
  const float* norm_weight = nullptr;  // the last norm
  const float* norm_bias = nullptr;
  const LinearWeights* head = nullptr;  // logits
};

// Made by Backend::PrepareDecoder; immutable to its caller.
class PreparedDecoder {
 public:
  virtual ~PreparedDecoder() = default;
};

inline constexpr int32_t kMostDecodedRows = 64;

// A token that runs through all layers: the last of `keys` tokens of its text, all in pages but those that the same
// call stores.
struct DecodedRow {
  int32_t token = 0, position = 0;
  int32_t keys = 0;
  bool predicts = false;  // its logits are wanted
  // [keys / KvPage::kTokens, rounded up] Memory of the tokens' pages, in the backend's memory: those of layer l begin
  // at l * CacheFloats(KvPage::floats()). Host memory that is read during the call only.
  const float* const* pages = nullptr;
};

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_DECODER_H_
