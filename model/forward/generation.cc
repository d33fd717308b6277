#include "model/forward/generation.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/permutation.h"
#include "model/forward/generation_state.h"
#include "model/forward/softmax.h"
#include "model/forward/token_choice.h"
#include "model/kinds/patterns.h"
#include "text/field_error.h"

namespace edgewise {
namespace {

ModelInput ChoicesOf(const GenerationOptions& options) {
  ModelInput input;
  input.seed = options.seed;
  input.samples = options.samples;
  input.dense = options.dense;
  input.attention = options.attention;
  return input;
}

std::vector<AttentionSpec> LayersOf(const Model& model, const ModelInput& choices) {
  std::vector<AttentionSpec> layers;
  for (int32_t l = 0; l < model.config().num_hidden_layers; ++l) layers.push_back(model.Choose(choices, l));
  return layers;
}

// Pads at the end of a prompt are no part of the text that goes on.
std::vector<int32_t> WithoutTrailingPads(const ModelSequence& prompt) {
  const auto begin = prompt.token_ids.begin();
  return std::vector<int32_t>(begin, begin + prompt.positions.back() + 1);
}

// The last positions of a text that the model can see, numbered from 0.
ModelSequence ContextOf(const ModelConfig& config, const std::vector<int32_t>& tokens) {
  const size_t length = std::min<size_t>(tokens.size(), config.max_position_embeddings);
  ModelSequence context;
  context.token_ids.assign(tokens.end() - static_cast<int64_t>(length), tokens.end());
  for (size_t i = 0; i < length; ++i) {
    if (context.token_ids[i] != config.pad_token_id) context.positions.push_back(static_cast<int32_t>(i));
  }
  return context;
}

absl::Status CheckOptions(const Model& model, const ModelSequence& prompt, const GenerationOptions& options) {
  const ModelConfig& config = model.config();
  if (config.task != ModelTask::kCausalLm) {
    return absl::InvalidArgumentError(
        absl::StrCat("model: generation needs a causal-lm; this one does ", ModelTaskName(config.task)));
  }
  if (prompt.positions.empty()) return absl::InvalidArgumentError("prompt has no token");
  if (!prompt.bias_values.empty() || !prompt.bias_buckets.empty()) {
    return absl::InvalidArgumentError("prompt.bias: a text that grows takes no pairwise bias");
  }
  if (options.max_new_tokens == 0) return absl::InvalidArgumentError("max_new_tokens is 0; at least 1 is expected");
  if (options.samples == 0) return absl::InvalidArgumentError("samples is 0; at least 1 is expected");
  if (!(options.temperature >= 0.0) || !std::isfinite(options.temperature)) {
    return absl::InvalidArgumentError(absl::StrCat("temperature is ", options.temperature, "; 0 or more is expected"));
  }
  if (!options.stop.empty() && config.tokenizer.kind == TokenizerKind::kNone) {
    return absl::InvalidArgumentError("stop: this model has no tokenizer");
  }
  for (size_t i = 0; i < options.stop.size(); ++i) {
    if (options.stop[i].empty()) return absl::InvalidArgumentError(absl::StrCat("stop[", i, "] is empty"));
  }
  return absl::OkStatus();
}

}  // namespace

Generation::State::State(const Model& model, ModelSequence prompt, GenerationOptions given)
    : model(model),
      config(model.config()),
      options(std::move(given)),
      choices(ChoicesOf(options)),
      layers(LayersOf(model, choices)),
      first_drawn(options.dense ? config.num_hidden_layers : FirstDrawnLayer(AttentionOf(config, choices))),
      samples(model.Samples(choices) ? options.samples : 1),
      capacity(std::min<int64_t>(config.max_position_embeddings,
                                 prompt.positions.back() + static_cast<int64_t>(options.max_new_tokens))),
      tokens(WithoutTrailingPads(prompt)),
      context(ContextOf(config, tokens)),
      shared(model.backend()),
      active(model.backend()),
      text(options.stop) {}

absl::Status Generation::State::Allocate() {
  absl::StatusOr<std::unique_ptr<CancelOnStop>> made = CancelOnStop::Create(model.backend(), options.stopping);
  if (!made.ok()) return made.status();
  stop = *std::move(made);
  const int64_t width = static_cast<int64_t>(config.num_attention_heads) * config.head_dim;
  for (int32_t l = 0; l < config.num_hidden_layers; ++l) {
    absl::StatusOr<Buffer> cache = model.backend().Allocate(Copies(l) * capacity * 2 * width);
    if (!cache.ok()) return cache.status();
    caches.push_back(*std::move(cache));
  }
  return absl::OkStatus();
}

uint64_t Generation::State::RowPairs(const ModelSequence& sequence) const {
  const uint64_t of_head = PairsOf(config, {&sequence, sequence.valid() - 1});
  return of_head * config.num_attention_heads * config.num_hidden_layers;
}

uint64_t Generation::State::RowLeast(const ModelSequence& sequence) const {
  const QueryRange range{&sequence, sequence.valid() - 1};
  uint64_t least = 0;
  for (const AttentionSpec& layer_choice : layers) least += LeastEdges(layer_choice, {&range, 1});
  return std::max<uint64_t>(1, least);
}

uint64_t Generation::State::RowBudget(const ModelSequence& sequence) const {
  if (options.max_edges != kNoCap) return options.max_edges;
  if (!(options.max_density > 0.0)) return 0;
  return std::max(EdgesOfDensity(options.max_density, RowPairs(sequence)), RowLeast(sequence));
}

void Generation::State::Append(ModelSequence& sequence, int32_t token_id) const {
  sequence.positions.push_back(sequence.length());
  sequence.token_ids.push_back(token_id);
}

// Every row that may come keeps what is never dropped. What a row needs depends on where tokens stand, not on which. A
// density never asks for less (RowBudget).
absl::Status Generation::State::CheckBudget() const {
  if (options.max_edges == kNoCap) return absl::OkStatus();
  const int32_t any_token = config.pad_token_id == 0 ? 1 : 0;
  std::vector<int32_t> coming = tokens;
  ModelSequence row = context;
  uint64_t most = 0;
  for (uint32_t t = 0; t < options.max_new_tokens; ++t) {
    most = std::max(most, RowLeast(row));
    coming.push_back(any_token);
    if (row.length() < config.max_position_embeddings) {
      Append(row, any_token);
    } else if (row.valid() == row.length()) {
      break;  // from here on all rows are alike
    } else {
      row = ContextOf(config, coming);
    }
  }
  if (options.max_edges >= most) return absl::OkStatus();
  return FieldError("max_edges", absl::StrCat("is ", options.max_edges, "; a row of this text needs up to ", most,
                                              " edges (those that are never dropped)"));
}

// One layer of what comes before the next token, or the token.
absl::Status Generation::State::Step() {
  if (options.stopping.stop_requested()) return CancelledByCaller();
  if (cached < context.valid() - 1) {
    const absl::Status status = StepBefore();
    if (cached == before.valid()) ClearRows();
    return status.ok() ? model.backend().Throttle() : status;
  }
  GeneratedToken next;
  std::vector<double> mean;
  const absl::Status status = RunRow(next.edges, mean);
  if (!status.ok()) return status;
  const uint32_t position = static_cast<uint32_t>(tokens.size());
  next.token_id = ChooseToken(mean, {options.temperature, options.top_k, options.top_p, config.pad_token_id},
                              TokenUniform(options.seed, position));
  next.log_probability = std::log(mean[next.token_id]);
  if (!std::isfinite(next.log_probability)) return NonFiniteOutput();  // all of it was the pad's
  next.text = text.Add(model.Decode(next.token_id, generated == 0));
  ++generated;
  if (text.stopped()) {
    finish = FinishReason::kStop;
  } else if (generated == options.max_new_tokens) {
    finish = FinishReason::kLength;
    next.text += text.Finish();
  }
  token = std::move(next);
  tokens.push_back(token->token_id);
  if (context.length() < config.max_position_embeddings) {
    Append(context, token->token_id);
  } else {
    context = ContextOf(config, tokens);
    cached = 0;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Generation>> Generation::Create(const Model& model, ModelSequence prompt,
                                                               GenerationOptions options) {
  try {
    absl::Status status = CheckOptions(model, prompt, options);
    if (!status.ok()) return status;
    auto state = std::make_unique<State>(model, std::move(prompt), std::move(options));
    status = state->CheckBudget();
    if (status.ok()) status = state->Allocate();
    if (!status.ok()) return status;
    return std::unique_ptr<Generation>(new Generation(std::move(state)));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory for a generation");
  }
}

Generation::Generation(std::unique_ptr<State> state) : state_(std::move(state)) {}
Generation::~Generation() = default;

FinishReason Generation::finish_reason() const { return state_->finish; }
uint32_t Generation::generated_tokens() const { return state_->generated; }
bool Generation::prompt_next() const { return state_->cached < state_->context.valid() - 1; }
bool Generation::holds_rows() const { return !state_->shared.empty(); }
std::optional<GeneratedToken> Generation::TakeToken() { return std::exchange(state_->token, std::nullopt); }

absl::Status Generation::Step() {
  if (done()) return absl::OkStatus();
  state_->token.reset();
  try {
    return state_->Step();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory in a generation");
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("the generation failed: ", error.what()));
  }
}

}  // namespace edgewise
