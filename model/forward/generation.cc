#include "model/forward/generation.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "kernels/draw/permutation.h"
#include "model/checkpoint/decoder.h"
#include "model/checkpoint/weights.h"
#include "model/forward/cancel_on_stop.h"
#include "model/forward/edge_budget.h"
#include "model/forward/generated_text.h"
#include "model/forward/generation_step.h"
#include "model/forward/kv_cache.h"
#include "model/forward/softmax.h"
#include "model/forward/wave.h"
#include "model/kinds/override.h"
#include "model/kinds/patterns.h"
#include "model/kinds/ssa.h"

namespace edgewise {
namespace {

// The tokens that a generation caches at most.
int64_t CachedTokens(const ModelConfig& config, const ModelSequence& prompt, const GenerationOptions& options) {
  return std::min<int64_t>(config.max_position_embeddings,
                           static_cast<int64_t>(prompt.length()) + options.max_new_tokens);
}

// The new tokens at most: with Overflow::kStop the last one is predicted by a full context.
uint32_t MostTokens(const ModelConfig& config, const ContextWindow& window, const GenerationOptions& options) {
  if (options.overflow != Overflow::kStop) return options.max_new_tokens;
  const auto room = static_cast<uint32_t>(config.max_position_embeddings - window.sequence().length());
  return std::min(options.max_new_tokens, room + 1);
}

// Nothing is thrown to the caller.
template <typename Body>
absl::Status Guarded(const Body& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory in a generation");
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("the generation failed: ", error.what()));
  }
}

// A row that a cap may have changed is not computed again.
bool IsCapped(const GenerationOptions& options) { return options.max_edges != kNoCap || options.max_density > 0.0; }

// Whether every row attends to all pairs, as the model's decoder does, of which no cap drops any. A text with gaps has
// other windows.
bool IsPlain(const Model& model, const GenerationOptions& options, const ModelSequence& prompt) {
  const ModelConfig& config = model.config();
  if (model.weights().decoder == nullptr || prompt.positions.back() + 1 != prompt.valid()) return false;
  for (int32_t l = 0; l < config.num_hidden_layers; ++l) {
    const AttentionConfig* const attention = model.Choose(options, nullptr, l).attention;
    if (attention != nullptr && attention->kind != &kDenseKind) return false;
    if ((attention == nullptr ? AllPairs::kFar : attention->reach) != ReachOfDecoder(config, l)) return false;
  }
  return true;
}

// The bytes of a text that has `tokens` now.
CacheBytes BytesOf(const KvCache& cache, const GenerationOptions& options, int64_t tokens, int64_t most) {
  const int64_t next = IsCapped(options) ? most : tokens;
  return {cache.bytes(), cache.BytesFor(next), cache.BytesFor(std::min(most, next + KvPage::kTokens)),
          cache.BytesFor(most)};
}

}  // namespace

CacheBytes CacheBytesOf(const Model& model, const ModelSequence& prompt, const GenerationOptions& options) {
  const int64_t most = CachedTokens(model.config(), prompt, options);
  return BytesOf(KvCache(model, options), options, prompt.valid(), most);
}

struct Generation::State {
  State(const Model& model, const ModelSequence& prompt, GenerationOptions options);
  ~State() { LeaveStep(); }

  absl::Status CheckBudget() const;
  int32_t PartEnd() const;
  GenerationStep::Rows SelectPart(int32_t end);
  void LeaveStep();
  CacheBytes cache_bytes() const { return BytesOf(cache, options, context().valid(), most_cached); }
  absl::Status TakeMemory() { return cache.Grow(IsCapped(options) ? most_cached : context().valid()); }
  void DropCache();
  void SelectRow();
  TokenChoice Choice() const;
  void Take(const ChosenToken& chosen, const TokenAlternatives& alternatives);
  absl::Status FinishToken();
  int32_t uncached() const { return last() - cached; }  // tokens before the last
  int32_t last() const { return context().valid() - 1; }
  bool prompt_next() const { return uncached() > 0 && !(IsShort(uncached()) && phase() == Phase::kDecode); }
  bool IsShort(int32_t tokens) const { return tokens * std::ssize(rows.results) <= kShortPromptRows; }
  // The phase of the tokens that are cached next. It depends on the text alone: on a GPU the phases round differently.
  Phase phase() const {
    return IsShort(prompt_tokens - 1) || cached >= prompt_tokens ? Phase::kDecode : Phase::kPrefill;
  }
  bool stop_requested() const { return options.stopping.stop_requested(); }
  const ModelSequence& context() const { return window.sequence(); }

  // The row of the last token: its pairs, the edges that no cap drops, and those that one sample may use (0: all).
  uint64_t RowPairs(const ModelSequence& sequence) const;
  uint64_t RowLeast(const ModelSequence& sequence) const;
  uint64_t RowBudget(const ModelSequence& sequence) const;

  // Steps those that have memory for it; an error concerns all. Decode runs layers of one token of each. StepPrompts
  // runs a layer of a part of each prompt. After all layers both choose the tokens that follow.
  static absl::Status Decode(std::span<State* const> states, int64_t layers);
  static absl::Status StepPrompts(std::span<State* const> states, int64_t& rows);
  static absl::Status StartRows(std::span<State* const> states, bool of_token);
  static absl::Status FinishRows(std::span<State* const> states);

  const Model& model;
  const ModelConfig& config;
  const GenerationOptions options;
  const int32_t first_drawn;  // the samples share the layers below it
  // ModelWeights::decoder runs its decoded rows. By the request alone, so that a row has the same bytes whoever is
  // beside it, and when it is computed again.
  const bool plain;

  ContextWindow window;
  const uint32_t most_tokens;
  const int64_t most_cached;  // tokens
  int32_t cached = 0;     // tokens of the context whose keys and values are cached: all but the last before a decode
  int32_t prompt_tokens;  // of the context, those that were there before a token was generated
  KvCache cache;
  SourceCache sources;  // of the window that the last row was in

  GenerationRows rows;    // the last token
  GenerationRows before;  // a part of the tokens before it
  int32_t most_part_tokens = 0;
  ModelSequence part;                    // the text up to the end of the part before the last token that runs; and
  std::shared_ptr<GenerationStep> step;  // its rows, and those of other generations; null: none runs
  bool of_token = false;                 // it decodes
  size_t place = 0;                      // in the step
  int32_t part_end = 0;                  // the tokens that are cached after it
  bool part_ends = false;                // the last token runs too
  bool alone = false;                    // a step with others failed: this takes it again alone

  std::optional<TextStream> stream;  // of a Hugging Face tokenizer: the texts of tokens
  GeneratedText text;
  TokenPenalties penalties;
  uint32_t generated = 0;
  FinishReason finish = FinishReason::kNone;
  GeneratedToken next;  // while it is decoded
  bool next_finite = false;
  std::optional<GeneratedToken> token;
};

Generation::State::State(const Model& model, const ModelSequence& prompt, GenerationOptions given)
    : model(model),
      config(model.config()),
      options(std::move(given)),
      first_drawn(FirstDrawnLayer(config, options)),
      plain(IsPlain(model, options, prompt)),
      window(config, options.overflow, prompt),
      most_tokens(MostTokens(config, window, options)),
      most_cached(CachedTokens(config, prompt, options)),
      prompt_tokens(context().valid()),
      cache(model, options),
      rows(config, options, first_drawn < config.num_hidden_layers ? options.samples : 1, cache, false),
      before(config, options, static_cast<uint32_t>(rows.results.size()), cache, true),
      text(options.stop),
      penalties{options.presence_penalty, options.frequency_penalty, options.repetition_penalty, {}} {
  if (!penalties.neutral()) {
    for (const int32_t position : prompt.positions) penalties.seen.emplace(prompt.token_ids[position], 0);
  }
  if (model.tokenizer() != nullptr) stream.emplace(model.tokenizer()->Stream(true));
  before.input.sources = rows.input.sources = &sources;
}

uint64_t Generation::State::RowPairs(const ModelSequence& sequence) const {
  const QueryRange range{&sequence, sequence.valid() - 1};
  return model.Pairs({&range, 1});
}

uint64_t Generation::State::RowLeast(const ModelSequence& sequence) const {
  const QueryRange range{&sequence, sequence.valid() - 1};
  return std::max<uint64_t>(1, model.LeastEdges(options, nullptr, {&range, 1}));
}

uint64_t Generation::State::RowBudget(const ModelSequence& sequence) const {
  uint64_t cap = options.max_edges;
  if (options.max_density > 0.0) {
    cap = std::min(cap, std::max(EdgesOfDensity(options.max_density, RowPairs(sequence)), RowLeast(sequence)));
  }
  return cap == kNoCap ? 0 : cap;
}

// max_edges allows the forced edges of every row that this text can reach. They depend on the places of tokens, not on
// the tokens. A density always allows them (RowBudget).
absl::Status Generation::State::CheckBudget() const {
  if (options.max_edges == kNoCap) return absl::OkStatus();
  const int32_t any_token = config.pad_token_id == 0 ? 1 : 0;
  ContextWindow coming = window;
  uint64_t most = 0;
  int full = 0;  // contexts without a pad: after the first or, where half of it leaves, the second, all rows are alike
  for (uint32_t t = 0; t < most_tokens && full < (options.overflow == Overflow::kHalve ? 2 : 1); ++t) {
    const ModelSequence& row = coming.sequence();
    most = std::max(most, RowLeast(row));
    full += row.valid() == config.max_position_embeddings ? 1 : 0;
    coming.Append(any_token);
  }
  if (options.max_edges >= most) return absl::OkStatus();
  return FieldError("max_edges", absl::StrCat("is ", options.max_edges, "; a row of this text needs up to ", most,
                                              " edges (those that are never dropped)", SparseRemedy(config, options)));
}

// Of the tokens before the last one, the first that the next part does not run.
int32_t Generation::State::PartEnd() const {
  int64_t tokens = std::max<int64_t>(1, kMaxWaveTokens / std::ssize(rows.results) - 1);  // the last one may follow
  if (most_part_tokens > 0) tokens = std::min<int64_t>(tokens, most_part_tokens);
  const int32_t most = phase() == Phase::kPrefill ? std::min(prompt_tokens, last()) : last();
  return static_cast<int32_t>(std::min<int64_t>(cached + tokens, most));
}

// The tokens from the cached ones to `end` run next, and the last one where it follows in the same phase.
GenerationStep::Rows Generation::State::SelectPart(int32_t end) {
  part_end = end;
  part_ends = end == last() && (phase() == Phase::kDecode || end < prompt_tokens);
  if (part_ends) SelectRow();
  if (end == cached) return {nullptr, &rows, Choice()};
  part.positions.assign(context().positions.begin(), context().positions.begin() + end);
  part.token_ids.assign(context().token_ids.begin(), context().token_ids.begin() + part.positions.back() + 1);
  before.Select({&part, cached}, kNoCap);
  return {&before, part_ends ? &rows : nullptr, Choice()};
}

// The rows of a part that runs are dropped.
void Generation::State::LeaveStep() {
  if (step != nullptr && step.use_count() > 1) step->Remove(place);
  step.reset();
}

void Generation::State::DropCache() {
  cache.Shrink(0);
  cached = 0;
}

void Generation::State::SelectRow() {
  next = {};
  next.edges.pairs = RowPairs(context());
  next.edges.budget = RowBudget(context());
  const bool binds = next.edges.budget > 0 && next.edges.budget < next.edges.pairs;
  rows.Select({&context(), last()}, binds ? next.edges.budget : kNoCap);
}

TokenChoice Generation::State::Choice() const {
  return {.temperature = options.temperature,
          .top_k = options.top_k,
          .top_p = options.top_p,
          .excluded = config.pad_token_id,
          .uniform = TokenUniform(options.seed, window.text_length()),
          .min_p = options.min_p,
          .alternatives = options.alternatives,
          .penalties = penalties.neutral() ? nullptr : &penalties};
}

void Generation::State::Take(const ChosenToken& chosen, const TokenAlternatives& alternatives) {
  next.token_id = chosen.id;
  next.log_probability = chosen.log_probability;
  next.predictive_entropy = chosen.predictive_entropy;
  next.mutual_information = chosen.mutual_information;
  next.alternatives = alternatives;
  next_finite = chosen.finite;
}

absl::Status Generation::State::FinishToken() {
  alone = false;
  if (stop_requested()) return CancelledByCaller();  // else what was downloaded is whole
  if (!next_finite) return NonFiniteOutput();
  for (const SampleResult& result : rows.results) {
    next.edges.edges += static_cast<double>(result.edges);
    next.edges.max_sample_edges = std::max(next.edges.max_sample_edges, result.edges);
    next.edges.capped |= result.capped;
  }
  next.edges.edges /= static_cast<double>(rows.results.size());
  const bool ends =
      std::find(config.end_token_ids.begin(), config.end_token_ids.end(), next.token_id) != config.end_token_ids.end();
  if (!ends) {
    next.text = text.Add(stream ? stream->Push(next.token_id) : model.Decode(next.token_id, generated == 0));
  }
  ++generated;
  if (!penalties.neutral()) ++penalties.seen[next.token_id];
  if (!text.stopped() && (ends || generated == most_tokens)) {
    finish = ends ? FinishReason::kStop : FinishReason::kLength;
    if (stream) next.text += text.Add(stream->Finish());
    next.text += text.Finish();
  }
  if (text.stopped()) finish = FinishReason::kStop;
  const bool moved = window.Append(next.token_id);
  cached = moved ? 0 : context().valid() - 1;
  if (moved) {
    prompt_tokens = context().valid();
    if (!IsCapped(options)) cache.Shrink(context().valid());
  }
  token = std::move(next);
  return absl::OkStatus();
}

absl::Status Generation::State::Decode(std::span<State* const> states, int64_t layers) {
  const bool half_way = states[0]->step != nullptr;
  if (!half_way) RETURN_IF_ERROR(StartRows(states, true));
  GenerationStep& step = *states[0]->step;
  if (step.done()) return FinishRows(states);
  for (; layers > 0 && !step.done(); --layers) RETURN_IF_ERROR(step.StepLayer());
  // The choice among all words may take as long as many layers.
  return layers > 0 && !half_way ? FinishRows(states) : states[0]->model.backend().Throttle();
}

absl::Status Generation::State::StepPrompts(std::span<State* const> states, int64_t& rows) {
  if (states[0]->step == nullptr) RETURN_IF_ERROR(StartRows(states, false));
  GenerationStep& step = *states[0]->step;
  if (step.done()) return FinishRows(states);
  const int64_t of_layer = step.rows();
  RETURN_IF_ERROR(step.StepLayer());
  if (!step.done()) rows = of_layer;
  return step.done() && !step.predicts() ? FinishRows(states) : states[0]->model.backend().Throttle();
}

absl::Status Generation::State::StartRows(std::span<State* const> states, bool of_token) {
  const Phase phase = of_token ? Phase::kDecode : states[0]->phase();
  const auto step = std::make_shared<GenerationStep>(states[0]->model);
  std::vector<GenerationStep::Rows> rows;
  for (State* state : states) {
    state->step = step;
    state->of_token = of_token;
    state->place = rows.size();
    rows.push_back(state->SelectPart(of_token ? state->last() : state->PartEnd()));
  }
  return step->Start(rows, states[0]->first_drawn, phase, states[0]->plain && phase == Phase::kDecode);
}

absl::Status Generation::State::FinishRows(std::span<State* const> states) {
  const std::shared_ptr<GenerationStep> step = states[0]->step;
  RETURN_IF_ERROR(step->Finish([&](size_t place, const ChosenToken& chosen, const TokenAlternatives& alternatives) {
    for (State* state : states) {
      if (state->place == place) state->Take(chosen, alternatives);
    }
  }));
  for (State* state : states) {
    state->cached = state->part_end;
    state->step.reset();  // between steps there are only the caches
    state->alone = false;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Generation>> Generation::Create(const Model& model, ModelSequence prompt,
                                                               GenerationOptions options) {
  std::unique_ptr<State> state;
  RETURN_IF_ERROR(Guarded([&] {
    state = std::make_unique<State>(model, prompt, std::move(options));
    RETURN_IF_ERROR(state->CheckBudget());
    ASSIGN_OR_RETURN(state->rows.input.cancel, CancelOnStop::Create(model.backend(), state->options.stopping));
    state->before.input.cancel = state->rows.input.cancel;
    return state->TakeMemory();
  }));
  return std::unique_ptr<Generation>(new Generation(std::move(state)));
}

Generation::Generation(std::unique_ptr<State> state) : state_(std::move(state)) {}
Generation::~Generation() = default;

FinishReason Generation::finish_reason() const { return state_->finish; }
bool Generation::has_prompt() const { return state_->uncached() > 0; }
bool Generation::prompt_next() const { return state_->prompt_next(); }
bool Generation::holds_part() const { return state_->step != nullptr && !state_->of_token; }
bool Generation::holds_token() const { return state_->step != nullptr && state_->of_token; }
int64_t Generation::LayersOfToken(const Model& model) { return model.config().num_hidden_layers + 1; }
void Generation::LimitPart(int32_t tokens) { state_->most_part_tokens = tokens; }
int32_t Generation::part_tokens() const { return state_->PartEnd() - state_->cached; }
int64_t Generation::part_rows() const { return (1 + part_tokens()) * samples(); }
int64_t Generation::rows() const { return (1 + state_->uncached()) * samples(); }
int64_t Generation::samples() const { return std::ssize(state_->rows.results); }
std::optional<GeneratedToken> Generation::TakeToken() { return std::exchange(state_->token, std::nullopt); }

CacheBytes Generation::cache_bytes() const { return state_->cache_bytes(); }
absl::Status Generation::TakeMemory() {
  return Guarded([&] { return state_->TakeMemory(); });
}
bool Generation::CanDropCache() const { return state_->step == nullptr && !IsCapped(state_->options); }
void Generation::DropCache() { state_->DropCache(); }

bool Generation::Joins(const Generation& other) const {
  const State &a = *state_, &b = *other.state_;
  return !a.alone && !b.alone && &a.model == &b.model && a.plain == b.plain && a.first_drawn == b.first_drawn &&
         a.phase() == b.phase();
}

absl::Status Generation::Step() {
  if (done()) return absl::OkStatus();
  Generation* const generation = this;
  absl::Status status;
  if (prompt_next() || holds_part()) {
    StepPrompts({&generation, 1}, {&status, 1});
  } else {
    DecodeTogether({&generation, 1}, {&status, 1});
  }
  return status;
}

std::vector<Generation::State*> Generation::Prepare(std::span<Generation* const> generations,
                                                    std::span<absl::Status> statuses) {
  std::vector<State*> states;
  for (size_t i = 0; i < generations.size(); ++i) {
    State& state = *generations[i]->state_;
    state.token.reset();
    statuses[i] = state.stop_requested() ? CancelledByCaller() : Guarded([&] { return state.TakeMemory(); });
    statuses[i].ok() ? states.push_back(&state) : state.LeaveStep();
  }
  return states;
}

template <typename Run>
void Generation::StepTogether(std::span<Generation* const> generations, std::span<absl::Status> statuses,
                              const Run& run) {
  const std::vector<State*> states = Prepare(generations, statuses);
  if (states.empty()) return;
  const std::shared_ptr<GenerationStep>& half_way = states[0]->step;
  const bool of_one = (half_way == nullptr ? states.size() : half_way->generations()) == 1;
  const absl::Status together = Guarded([&] { return run(states); });
  for (size_t i = 0; i < generations.size(); ++i) {
    State& state = *generations[i]->state_;
    if (!statuses[i].ok()) continue;
    if (!together.ok()) {
      state.step.reset();
      state.alone = true;
      if (of_one) statuses[i] = together;
    } else if (state.step == nullptr && state.part_ends) {
      statuses[i] = Guarded([&] { return state.FinishToken(); });
    }
  }
}

int64_t Generation::StepPrompts(std::span<Generation* const> generations, std::span<absl::Status> statuses) {
  int64_t rows = 0;
  StepTogether(generations, statuses,
               [&](const std::vector<State*>& states) { return State::StepPrompts(states, rows); });
  return rows;
}

void Generation::DecodeTogether(std::span<Generation* const> generations, std::span<absl::Status> statuses,
                                int64_t layers) {
  StepTogether(generations, statuses, [&](const std::vector<State*>& states) { return State::Decode(states, layers); });
}

}  // namespace edgewise
