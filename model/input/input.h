// One input of a request as a model takes it, checked and ready to run.
#ifndef EDGEWISE_MODEL_INPUT_INPUT_H_
#define EDGEWISE_MODEL_INPUT_INPUT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <vector>

#include "kernels/attention.h"
#include "model/config/config.h"
#include "model/tokenizers/aligned_text.h"

namespace edgewise {

// Tokens as the model sees them: the CLS token first where there is one, pads included. Or rows of features, all valid.
struct ModelSequence {
  std::vector<int32_t> token_ids;    // [length], every position; empty: features
  std::vector<int32_t> token_types;  // [length], below ModelConfig::token_types; empty: all 0
  // token-classification of a text: [length], the bytes of the text that a token is, [0, 0) of the template's tokens;
  // or empty.
  std::vector<tokenizers::Span> offsets;
  std::vector<float> features;        // [length, feature_size]; empty: tokens
  int32_t feature_rows = 0;           // length of a sequence of features
  std::vector<int32_t> positions;     // [valid], ascending: the places of the tokens that are not pads; at least one
  std::vector<float> bias_values;     // pairwise bias [length, length], or
  std::vector<uint8_t> bias_buckets;  // [length, length], or both empty
  // causal-lm: tokens (packed) first_scored.. are predicted from those before them; those before were scored by an
  // earlier window of the text, or have nothing before them. >= 1
  int32_t first_scored = 1;
  int32_t pooled_from = 0;  // embedding: valid tokens before it, those of a prompt, are left out of the pooling
  uint32_t truncated_tokens = 0;

  int32_t length() const { return token_ids.empty() ? feature_rows : static_cast<int32_t>(token_ids.size()); }
  int32_t valid() const { return static_cast<int32_t>(positions.size()); }
  bool has_bias() const { return !bias_values.empty() || !bias_buckets.empty(); }
};

// Attended pairs by position, [layers][heads]; the layers of a pair's second sequence follow the first's.
struct Graph {
  std::vector<std::vector<HeadEdges>> layers;
};

// The draws of one input or generation: which of its samples run, over which pairs, and until when.
struct Draw {
  uint64_t seed = 0;
  uint32_t first_sample = 0;
  uint32_t samples = 1;             // >= 1
  bool dense = false;               // every allowed pair, whatever the model's kind
  CapRule keep = CapRule::kRandom;  // which drawn edges a cap keeps, where edges are drawn by their rates
  // [layers] attention to use instead of the model's (SSA on a model trained densely); null: the model's.
  std::shared_ptr<const std::vector<AttentionConfig>> attention;

  // Any thread may request a stop. Work on the input then ends early, also inside a layer, and its result is CANCELLED
  // unless it was complete.
  std::stop_token stopping;
};

// Model::Prepare and Model::CheckGraph make the parts; the caller fills in the rest.
struct ModelInput : Draw {
  std::vector<ModelSequence> sequences;  // 1, 2 for pair-classification, or the windows of a text for causal-lm
  std::optional<Graph> graph;            // used instead of the model's edges
  double tolerance = 0.0;                // > 0: stop at the first k >= 4 samples whose standard error is below it
  uint64_t max_edges = kNoCap;           // per sample; >= Model::LeastEdges
  Wanted wanted;                         // wanted.graph: samples must be 1
  uint32_t alternatives = 0;             // causal-lm: SampleResult::alternatives of each scored token
  bool token_rows = false;               // embedding: SampleResult::token_rows
};

// An input, with the samples and the cap that a pass runs it with: those that it asks for, or fewer. The input outlives
// the pass.
struct InputRun {
  InputRun(const ModelInput& asked) : InputRun(asked, asked.samples, asked.max_edges) {}  // NOLINT: as it asks for
  InputRun(const ModelInput& asked, uint32_t samples, uint64_t max_edges)
      : input(&asked), samples(samples), max_edges(max_edges) {}

  const ModelInput* input;
  uint32_t samples;
  uint64_t max_edges;
};

// The rows of the output: 1, every position (token-classification), or every mask token (fill-mask).
int32_t OutputRows(const ModelConfig& config, const ModelInput& input);

// The attention of every layer that these draws use where they are not dense.
inline const std::vector<AttentionConfig>& AttentionOf(const ModelConfig& config, const Draw& draw) {
  return draw.attention != nullptr ? *draw.attention : config.attention;
}

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_INPUT_INPUT_H_
