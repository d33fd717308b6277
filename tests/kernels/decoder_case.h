// A decoder on a backend, and texts that run through it.
#ifndef EDGEWISE_TESTS_KERNELS_DECODER_CASE_H_
#define EDGEWISE_TESTS_KERNELS_DECODER_CASE_H_

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/kernels/devices.h"
#include "tests/kernels/random_floats.h"

namespace edgewise::testing {

inline constexpr int32_t kVocabulary = 61, kPositions = 320;

struct DecoderShape {
  std::string name;
  int32_t heads, key_value_heads, head_dim, hidden, wide;
  bool llama;  // RMS norms, rotary positions, a gate; no biases
  int32_t reach = AllPairs::kFar;
  int32_t layers = 2;
};

// Weights of a decoder on a backend.
class PlacedDecoder {
 public:
  PlacedDecoder(Backend& backend, const DecoderShape& shape) : backend_(backend), shape_(shape) {
    const int64_t hidden = shape.hidden, width = int64_t{shape.heads} * shape.head_dim,
                  key_width = int64_t{shape.key_value_heads} * shape.head_dim;
    decoder.words = Put(kVocabulary * hidden, 1.0f).AsMatrix(kVocabulary, hidden);
    if (!shape.llama) decoder.positions = Put(kPositions * hidden, 0.5f).AsMatrix(kPositions, hidden);
    decoder.heads = shape.heads;
    decoder.key_value_heads = shape.key_value_heads;
    decoder.head_dim = shape.head_dim;
    decoder.score_scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    decoder.norm_epsilon = 1e-5f;
    decoder.gated = shape.llama;
    decoder.activation = Activation::kSilu;
    decoder.most_tokens = kPositions;
    std::vector<float> angles(static_cast<size_t>(kPositions) * shape.head_dim);
    for (int32_t p = 0; p < kPositions; ++p) {
      for (int32_t c = 0; c < shape.head_dim / 2; ++c) {
        const float angle = static_cast<float>(p) / static_cast<float>(1 << c % 8);
        angles[p * shape.head_dim + c] = std::cos(angle);
        angles[p * shape.head_dim + shape.head_dim / 2 + c] = std::sin(angle);
      }
    }
    const float* const rotary = buffers_.emplace_back(Place(backend, angles)).data();
    for (int32_t l = 0; l < shape.layers; ++l) {
      DecoderLayer& layer = decoder.layers.emplace_back();
      PutNorm(layer.norm_weight, layer.norm_bias);
      layer.query_key_value = PutLinear(width + 2 * key_width, hidden, Activation::kNone);
      if (shape.llama) layer.rotary = rotary;
      layer.reach = l == 0 ? shape.reach : AllPairs::kFar;
      layer.output = PutLinear(hidden, width, Activation::kNone);
      PutNorm(layer.mlp_norm_weight, layer.mlp_norm_bias);
      layer.up = PutLinear(shape.llama ? 2 * shape.wide : shape.wide, hidden,
                           shape.llama ? Activation::kNone : Activation::kGeluTanh);
      layer.down = PutLinear(hidden, shape.wide, Activation::kNone);
    }
    PutNorm(decoder.norm_weight, decoder.norm_bias);
    decoder.head = PutLinear(kVocabulary, hidden, Activation::kNone);
  }

  // The logits of all tokens of a text, by the operations one by one; a token is at its place.
  std::vector<float> Pass(const std::vector<int32_t>& text) {
    const auto check = [](const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; };
    const auto n = static_cast<int64_t>(text.size());
    std::vector<int32_t> places(text.size());
    for (int32_t i = 0; i < n; ++i) places[i] = i;
    const int64_t width = int64_t{shape_.heads} * shape_.head_dim,
                  key_width = int64_t{shape_.key_value_heads} * shape_.head_dim;
    const auto take = [&](int64_t columns) { return *backend_.Allocate(n * columns); };
    const Buffer x_rows = take(shape_.hidden), normed_rows = take(shape_.hidden),
                 all_rows = take(width + 2 * key_width), attended_rows = take(width), logit_rows = take(kVocabulary);
    const Matrix x = x_rows.AsMatrix(n, shape_.hidden), normed = normed_rows.AsMatrix(n, shape_.hidden),
                 all = all_rows.AsMatrix(n, width + 2 * key_width), attended = attended_rows.AsMatrix(n, width),
                 logits = logit_rows.AsMatrix(n, kVocabulary);
    const auto norm = [&](const float* weight, const float* bias) {
      check(bias == nullptr ? backend_.RmsNorm(x, weight, decoder.norm_epsilon, x.columns, normed)
                            : backend_.LayerNorm(x, weight, bias, decoder.norm_epsilon, normed));
    };
    check(backend_.Embed(decoder.words, decoder.positions, text, places, x));
    for (const DecoderLayer& layer : decoder.layers) {
      norm(layer.norm_weight, layer.norm_bias);
      check(backend_.Linear(*layer.query_key_value, normed, all, false));
      if (layer.rotary != nullptr) {
        const ConstMatrix table(layer.rotary, kPositions, shape_.head_dim);
        check(backend_.Rotate(all.Columns(0, width + key_width), table, places));
      }
      AttentionInputs inputs;
      inputs.q = all.Columns(0, width);
      inputs.k = all.Columns(width, key_width);
      inputs.v = all.Columns(width + key_width, key_width);
      inputs.num_heads = shape_.heads;
      inputs.num_key_value_heads = shape_.key_value_heads;
      inputs.head_dim = shape_.head_dim;
      inputs.scale = decoder.score_scale;
      AttentionReport report;
      std::vector<AttentionProblem> problems(1);
      problems[0].tokens = static_cast<int32_t>(n);
      problems[0].pattern = AllPairs{true, layer.reach};
      problems[0].report = &report;
      check(backend_.Attend(inputs, problems, {}, attended));
      check(backend_.Linear(*layer.output, attended, x, true));
      norm(layer.mlp_norm_weight, layer.mlp_norm_bias);
      check(decoder.gated ? backend_.GatedFeedForward(*layer.up, *layer.down, decoder.activation, normed, x)
                          : backend_.FeedForward(*layer.up, *layer.down, normed, x));
    }
    norm(decoder.norm_weight, decoder.norm_bias);
    check(backend_.Linear(*decoder.head, normed, logits, false));
    return Fetch(backend_, logit_rows);
  }

  Decoder decoder;

 private:
  Buffer& Put(int64_t count, float scale, float shift = 0.0f) {
    std::vector<float> values = Random(count, ++seed_, scale);
    for (float& value : values) value += shift;
    return buffers_.emplace_back(Place(backend_, values));
  }
  void PutNorm(const float*& weight, const float*& bias) {
    weight = Put(shape_.hidden, 0.3f, 1.0f).data();
    bias = shape_.llama ? nullptr : Put(shape_.hidden, 0.3f).data();
  }
  const LinearWeights* PutLinear(int64_t out, int64_t in, Activation activation) {
    const std::vector<float> weight = Random(out * in, ++seed_, 1.5f / std::sqrt(static_cast<float>(in)));
    const std::vector<float> bias = Random(shape_.llama ? 0 : out, ++seed_, 0.3f);
    linears_.push_back(*backend_.PrepareLinear(weight, bias, out, in, activation));
    return linears_.back().get();
  }

  Backend& backend_;
  const DecoderShape shape_;
  uint32_t seed_ = 0;
  std::vector<Buffer> buffers_;
  std::vector<std::unique_ptr<LinearWeights>> linears_;
};

// A text whose keys and values are in pages. `stale`: what these hold at first.
class DecodedText {
 public:
  DecodedText(Backend& backend, const DecoderShape& shape, int32_t tokens, int32_t seed, float stale = NAN) {
    for (int32_t i = 0; i < tokens; ++i) text.push_back((seed + i * 7 + i * i) % kVocabulary);
    const int64_t page = backend.CacheFloats(KvPage{shape.key_value_heads, shape.head_dim}.floats());
    const std::vector<float> nothing(static_cast<size_t>(shape.layers * page), stale);
    for (int32_t first = 0; first < tokens; first += KvPage::kTokens) {
      pages_.push_back(memory_.emplace_back(Place(backend, nothing)).data());
    }
  }
  DecodedRow Row(int32_t token, bool predicts) const {
    return {text[token], token, token + 1, predicts, pages_.data()};
  }

  std::vector<int32_t> text;

 private:
  std::vector<Buffer> memory_;
  std::vector<const float*> pages_;
};

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_KERNELS_DECODER_CASE_H_
