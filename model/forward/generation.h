// Text generation with a causal language model, token by token, with a cache of keys and values.
#ifndef EDGEWISE_MODEL_FORWARD_GENERATION_H_
#define EDGEWISE_MODEL_FORWARD_GENERATION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/attention.h"
#include "model/checkpoint/config.h"
#include "model/input/input.h"
#include "model/model.h"

namespace edgewise {

struct GenerationOptions {
  uint32_t max_new_tokens = 0;    // >= 1
  double temperature = 0.0;       // 0: the most probable token, the lower id among equals
  uint32_t top_k = 0;             // 0: off
  double top_p = 0.0;             // 0: off
  std::vector<std::string> stop;  // generation ends before the first of these; needs a tokenizer
  uint64_t seed = 0;
  uint32_t samples = 1;         // the next token is drawn from the mean of their distributions
  uint64_t max_edges = kNoCap;  // of one new token's row, over all layers and heads, in one sample
  // > 0: likewise, floor(max_density * pairs of the row) (EdgesOfDensity), but at least what is never dropped: a row
  // that has one key has nothing to drop.
  double max_density = 0.0;
  bool dense = false;
  std::shared_ptr<const std::vector<AttentionConfig>> attention;  // as ModelInput::attention
  std::stop_token stopping;                                       // as ModelInput::stopping
};

// Edges of the row that predicted a token, per sample.
struct RowEdges {
  double edges = 0.0;             // mean over samples
  uint64_t max_sample_edges = 0;  // the most expensive sample
  uint64_t pairs = 0;             // keys that the row may attend to, over layers and heads
  uint64_t budget = 0;            // 0: none
  bool capped = false;
};

struct GeneratedToken {
  int32_t token_id = 0;
  // What is sure to belong to the generated text and was not given before: stop strings are left out, so text that may
  // be the begin of one is held back.
  std::string text;
  double log_probability = 0.0;  // ln of the mean probability over samples, before temperature, top_k and top_p
  RowEdges edges;
};

enum class FinishReason { kNone, kLength, kStop };

// How far the probabilities of a generated token may be from those of a forward pass over the text so far, relative to
// them: the row of a new token runs with Phase::kDecode and cached keys and values, a pass with Phase::kPrefill. In
// float32; with bf16 operands a hundred times as far (tests/model/generation_test.cc measures both).
inline constexpr double kCachedTolerance = 1e-4;

// One generation. A draw belongs to (seed, sample, layer, window). The samples share what lies before the first sampled
// layer, and its keys and values; above it each has its own cache. The row of the prompt's last token is the first that
// the budget caps. Beyond the context the text is cropped to its last max_position_embeddings tokens, with positions
// from 0, and recomputed for every token.
//
// Pads at the end of a prompt are taken off; a pad is never chosen.
//
// One thread at a time; the model's backend is used only inside Create(), Step() and the destructor, which waits for
// it.
class Generation {
 public:
  // `model` must outlive the generation; `prompt` comes from Model::Prepare and has at least one token. Allocates the
  // caches. INVALID_ARGUMENT: max_edges is below what a row that may come needs (the field is max_edges; the
  // message says the least); RESOURCE_EXHAUSTED: no memory.
  static absl::StatusOr<std::unique_ptr<Generation>> Create(const Model& model, ModelSequence prompt,
                                                            GenerationOptions options);
  ~Generation();

  bool done() const { return finish_reason() != FinishReason::kNone; }
  FinishReason finish_reason() const;

  // Runs one layer of the rows that come before the next new token (the prompt), or all layers of one new token. An
  // error ends the generation: INTERNAL where the model gave a number that is not finite or the device failed,
  // CANCELLED where it was stopped.
  absl::Status Step();
  // Whether the next Step() runs a layer of the rows before a token; and whether rows of the layer before are kept for
  // it. They need as much memory as those of a pass, so it is well not to begin with others before these are done.
  bool prompt_next() const;
  bool holds_rows() const;
  // The token of the last Step(), if that gave one.
  std::optional<GeneratedToken> TakeToken();
  uint32_t generated_tokens() const;

 private:
  struct State;
  explicit Generation(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_GENERATION_H_
