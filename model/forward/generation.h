// Text generation with a causal language model, token by token, with a cache of keys and values.
#ifndef EDGEWISE_MODEL_FORWARD_GENERATION_H_
#define EDGEWISE_MODEL_FORWARD_GENERATION_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/attention.h"
#include "kernels/token_choice.h"
#include "model/config/config.h"
#include "model/forward/context_window.h"
#include "model/input/input.h"
#include "model/model.h"

namespace edgewise {

// `first_sample` is 0. The next token is chosen from the mean of the samples' distributions.
struct GenerationOptions : Draw {
  uint32_t max_new_tokens = 0;  // >= 1
  double temperature = 0.0;     // 0: the most probable token, the lower id among equals
  uint32_t top_k = 0;           // 0: off
  double top_p = 0.0;           // 0: off
  double min_p = 0.0;           // 0: off
  double presence_penalty = 0.0, frequency_penalty = 0.0, repetition_penalty = 1.0;  // TokenPenalties
  uint32_t alternatives = 0;      // of each token, the most probable tokens that are reported
  std::vector<std::string> stop;  // generation ends before the first of these; needs a tokenizer
  uint64_t max_edges = kNoCap;    // of one new token's row, over all layers and heads, in one sample
  // > 0: the cap is EdgesOfDensity(max_density, pairs of the row), but at least the row's forced edges.
  double max_density = 0.0;
  Overflow overflow = Overflow::kSlide;  // kStop: a full context is the end, as max_new_tokens is
};

// The bytes of a generation's keys and values: held now, held in the next step, and with a page more
// (kernels/kv_page.h) unless the text cannot grow so far; and those of the longest text. Where a row that a budget caps
// could not be computed again (Generation::CanDropCache), all but the first are those of the longest text.
struct CacheBytes {
  uint64_t held = 0, next = 0, ahead = 0, longest = 0;
};
// Those of a generation before it is created.
CacheBytes CacheBytesOf(const Model& model, const ModelSequence& prompt, const GenerationOptions& options);

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
  // Text that became certain with this token (GeneratedText): a possible beginning of a stop string is held back. With
  // a Hugging Face tokenizer all texts together are HfTokenizer::Decode of the new tokens without special ones.
  std::string text;
  double log_probability = 0.0;  // ln of the mean probability over samples, before penalties, temperature, top_k, ...
  double predictive_entropy = 0.0, mutual_information = 0.0;  // of the samples' distributions, as in ChosenToken
  TokenAlternatives alternatives;                             // before these too
  RowEdges edges;
};

// kStop: a stop string, or one of ModelConfig::end_token_ids, whose text is no part of the generated text.
enum class FinishReason { kNone, kLength, kStop };

// On a GPU, the largest relative difference between the probabilities of a decoded token and those of a forward pass
// over the same text, in float32: the two phases round differently there. With bf16 operands it is at most twice what
// rounding them moves the probabilities of a float64 model by (tests/model/rounded_model.h). On the CPU there is none:
// decoded rows are the rows of a pass, byte for byte (tests/model/generation_test.cc).
inline constexpr double kCachedTolerance = 1e-4;

// The most rows that decode in one step: by then the products gain nothing from more.
inline constexpr int64_t kRowsTogether = 64;
// A prompt with this many rows before its last token costs little more than that token, and may run like one, beside
// the tokens of others: the weights are read once for all.
inline constexpr int64_t kShortPromptRows = 32;
// Whatever the model.
inline constexpr int64_t kAllLayers = std::numeric_limits<int64_t>::max();

// One generation. The tokens of its context (its prompt, at first) run part by part and fill a KvCache, and the last of
// them predicts the first new token; then each step decodes the row of one token. A prompt of few tokens may run in
// one step, like a token. The prompt's last token is the first row that the budget caps. Once the text is longer than
// the context, tokens leave it (Overflow), and the others get positions from 0 and are a prompt again.
//
// Pads at the end of a prompt are removed; a pad is never chosen. On the CPU the bytes depend on no part's size, and on
// no generation that runs in the same step.
//
// One thread at a time; the model's backend is used only inside Create(), the steps and the destructor, which waits
// for it.
class Generation {
 public:
  // `model` is a causal-lm and must outlive the generation; `prompt` comes from Model::Prepare, without a pairwise
  // bias; `stop` has no empty string. Takes the memory of CacheBytes::next. INVALID_ARGUMENT: max_edges is below the
  // forced edges of a row that this text can reach (the field is max_edges; the message gives the least);
  // RESOURCE_EXHAUSTED: no memory.
  static absl::StatusOr<std::unique_ptr<Generation>> Create(const Model& model, ModelSequence prompt,
                                                            GenerationOptions options);
  ~Generation();

  bool done() const { return finish_reason() != FinishReason::kNone; }
  FinishReason finish_reason() const;

  // Runs a step of this generation alone. An error ends the generation: INTERNAL where the model gave a number that is
  // not finite or the device failed, CANCELLED where a stop was requested.
  absl::Status Step();
  // Whether tokens before the last one are not cached yet, so that StepPrompts may run them; and whether it must, since
  // they are many.
  bool has_prompt() const;
  bool prompt_next() const;
  // Whether a part of a prompt, or a token, is half-way through the layers, so that its rows are in memory. Those of a
  // part take as much as those of a pass: finish one step of prompts before another begins.
  bool holds_part() const;
  bool holds_token() const;
  // The tokens before the last one that a part of the prompt may have, from the next part on; fewer where they and the
  // samples make more rows than a wave may have. 0: no other bound.
  void LimitPart(int32_t tokens);
  int32_t part_tokens() const;  // of the part that runs, or is next
  int64_t part_rows() const;    // of its samples, with the last token, which may follow
  // The rows that the next token takes, those of the prompt before it included; each token takes one of each sample.
  int64_t rows() const;
  int64_t samples() const;

  // The memory of keys and values; a step takes what it needs more, unless TakeMemory has done so before.
  CacheBytes cache_bytes() const;
  absl::Status TakeMemory();
  // Frees the keys and values until the next step, which computes them again. Only between parts of the prompt, and
  // where that gives the same bytes: a row that was capped would not be.
  bool CanDropCache() const;
  void DropCache();

  // Whether both can run in one step: they are of one model and in the same phase, their samples share the same layers,
  // and neither has failed in a step with others.
  bool Joins(const Generation& other) const;
  // Runs one layer of a part of each generation's prompt; after the last layer, those whose prompt has ended get a
  // token, in a step more. Each has_prompt() and joins the first, and none holds rows; or the generations are those
  // that hold a part together, but for those that are gone. `statuses`: of each, as Step() returns it. Where a step
  // of several fails, each takes the part again alone. Returns the rows that went through the whole of a layer: each
  // token before the drawn layers, in those each token of each sample; 0 in the last layer, where few do, and where
  // none ran.
  static int64_t StepPrompts(std::span<Generation* const> generations, std::span<absl::Status> statuses);
  // Decodes one token of each generation in one step: runs so many layers now. The choice of the tokens counts as the
  // last one, and is a call of its own where the layers were several; LayersOfToken() in all. Each joins the first, and
  // none has prompt_next() or holds rows; or the generations are those that hold a token together, but for those that
  // are gone. `statuses` and failures as in StepPrompts.
  static void DecodeTogether(std::span<Generation* const> generations, std::span<absl::Status> statuses,
                             int64_t layers = kAllLayers);
  static int64_t LayersOfToken(const Model& model);

  // The token of the last step, if it decoded one.
  std::optional<GeneratedToken> TakeToken();

 private:
  struct State;
  explicit Generation(std::unique_ptr<State> state);
  // Those that go on, with the memory for the step; the others leave the step, and their statuses say why.
  static std::vector<State*> Prepare(std::span<Generation* const> generations, std::span<absl::Status> statuses);
  // Calls run(states) for them, and finishes the tokens that it ends.
  template <typename Run>
  static void StepTogether(std::span<Generation* const> generations, std::span<absl::Status> statuses, const Run& run);
  std::unique_ptr<State> state_;
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_GENERATION_H_
