#include "model/forward/generation.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <new>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/permutation.h"
#include "model/forward/cancel_on_stop.h"
#include "model/forward/edge_budget.h"
#include "model/forward/generated_text.h"
#include "model/forward/heads.h"
#include "model/forward/kv_cache.h"
#include "model/forward/pass.h"
#include "model/forward/softmax.h"
#include "model/forward/token_choice.h"
#include "model/forward/wave.h"
#include "model/kinds/patterns.h"
#include "model/kinds/ssa.h"
#include "text/field_error.h"
#include "text/status_macros.h"

namespace edgewise {
namespace {

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

// The tokens that a generation caches at most.
int64_t CachedTokens(const ModelConfig& config, const ModelSequence& prompt, const GenerationOptions& options) {
  return std::min<int64_t>(config.max_position_embeddings,
                           static_cast<int64_t>(prompt.length()) + options.max_new_tokens);
}

}  // namespace

uint64_t CacheBytes(const ModelConfig& config, const ModelSequence& prompt, const GenerationOptions& options) {
  return KvCache::Bytes(config, options, static_cast<uint64_t>(CachedTokens(config, prompt, options)));
}

struct Generation::State {
  State(const Model& model, const ModelSequence& prompt, GenerationOptions options);

  absl::Status CheckBudget() const;
  absl::Status Step();
  absl::Status StepPrefill();
  absl::Status Decode(RowEdges& edges, std::vector<double>& mean);
  bool prefill_next() const { return cached < context.valid() - 1; }

  // The row of the last token: its pairs, the edges that no cap drops, and those that one sample may use (0: all).
  uint64_t RowPairs(const ModelSequence& sequence) const;
  uint64_t RowLeast(const ModelSequence& sequence) const;
  uint64_t RowBudget(const ModelSequence& sequence) const;

  const Model& model;
  const ModelConfig& config;
  const GenerationOptions options;
  const int32_t first_drawn;  // the samples share the layers below it
  const uint32_t samples;     // that differ

  std::vector<int32_t> tokens;  // prompt and what was generated
  ModelSequence context;        // the end of it that the model sees
  int32_t cached = 0;  // tokens of `context` whose keys and values are cached: all but the last before a decode
  KvCache cache;
  SourceCache sources;                 // of the window that the last row was in
  std::shared_ptr<CancelOnStop> stop;  // of decodes; null: nobody can stop it

  std::vector<ModelInput> before;  // [1] the tokens before the last one of the context, while they run:
  std::unique_ptr<Pass> prefill;   // null: they do not

  GeneratedText text;
  uint32_t generated = 0;
  FinishReason finish = FinishReason::kNone;
  std::optional<GeneratedToken> token;
};

Generation::State::State(const Model& model, const ModelSequence& prompt, GenerationOptions given)
    : model(model),
      config(model.config()),
      options(std::move(given)),
      first_drawn(FirstDrawnLayer(config, options)),
      samples(first_drawn < config.num_hidden_layers ? options.samples : 1),
      tokens(WithoutTrailingPads(prompt)),
      context(ContextOf(config, tokens)),
      cache(model, options, CachedTokens(config, prompt, options)),
      text(options.stop) {}

uint64_t Generation::State::RowPairs(const ModelSequence& sequence) const {
  const QueryRange range{&sequence, sequence.valid() - 1};
  return model.Pairs({&range, 1});
}

uint64_t Generation::State::RowLeast(const ModelSequence& sequence) const {
  const QueryRange range{&sequence, sequence.valid() - 1};
  return std::max<uint64_t>(1, model.LeastEdges(options, nullptr, {&range, 1}));
}

uint64_t Generation::State::RowBudget(const ModelSequence& sequence) const {
  if (options.max_edges != kNoCap) return options.max_edges;
  if (!(options.max_density > 0.0)) return 0;
  return std::max(EdgesOfDensity(options.max_density, RowPairs(sequence)), RowLeast(sequence));
}

// max_edges allows the forced edges of every row that this text can reach. They depend on the places of tokens, not on
// the tokens. A density always allows them (RowBudget).
absl::Status Generation::State::CheckBudget() const {
  if (options.max_edges == kNoCap) return absl::OkStatus();
  const int32_t any_token = config.pad_token_id == 0 ? 1 : 0;
  std::vector<int32_t> coming = tokens;
  uint64_t most = 0;
  for (uint32_t t = 0; t < options.max_new_tokens; ++t) {
    const ModelSequence row = ContextOf(config, coming);
    most = std::max(most, RowLeast(row));
    if (row.valid() == config.max_position_embeddings) break;  // from here on all rows are alike
    coming.push_back(any_token);
  }
  if (options.max_edges >= most) return absl::OkStatus();
  return FieldError("max_edges", absl::StrCat("is ", options.max_edges, "; a row of this text needs up to ", most,
                                              " edges (those that are never dropped)"));
}

// One layer of the tokens before the last one, whose keys and values go to the cache.
absl::Status Generation::State::StepPrefill() {
  if (prefill == nullptr) {
    ModelInput& input = before.emplace_back();
    static_cast<Draw&>(input) = options;
    input.sequences.push_back(context);
    input.sequences[0].positions.pop_back();
    Pass::Options filling;
    filling.cache = &cache;
    prefill = std::make_unique<Pass>(model, before, filling);
  }
  RETURN_IF_ERROR(prefill->Step());
  if (!prefill->done()) return absl::OkStatus();
  RETURN_IF_ERROR(prefill->TakeResult(0).status);
  cached = context.valid() - 1;
  prefill.reset();  // between tokens there are only the caches
  before.clear();
  return absl::OkStatus();
}

// All layers of the last token of the context, whose earlier tokens are cached; its own keys and values become so.
// `mean`: the mean over samples of the next token's distribution.
absl::Status Generation::State::Decode(RowEdges& edges, std::vector<double>& mean) {
  edges.pairs = RowPairs(context);
  edges.budget = RowBudget(context);
  RunningInput row;
  row.draw = &options;
  row.ranges = {{&context, context.valid() - 1}};
  row.sources = &sources;
  row.cancel = stop;
  if (edges.budget > 0 && edges.budget < edges.pairs) row.max_edges = edges.budget;
  row.shared = SampleResult(config, 1, 0, 0, false);
  std::vector<SampleResult> results(samples, row.shared);
  std::vector<Wave::Sample> all;
  for (uint32_t s = 0; s < samples; ++s) all.push_back({&row, s, &results[s]});

  const auto wave = Wave::Take(model);
  RunningInput* const rows[] = {&row};
  RETURN_IF_ERROR(wave->Start(rows, {first_drawn, Phase::kDecode, &cache}));
  while (wave->shared()) RETURN_IF_ERROR(wave->Step());
  RETURN_IF_ERROR(wave->StartSamples(all));
  while (!wave->done()) RETURN_IF_ERROR(wave->Step());
  cached = context.valid();

  std::vector<int64_t> places(samples);
  std::iota(places.begin(), places.end(), 0);
  mean.assign(config.vocab_size, 0.0);
  bool finite = true;
  RETURN_IF_ERROR(NextTokenLogits(*wave, places, Phase::kDecode, [&](size_t, const float* logits) {
    finite &= AllFinite(logits, mean.size());
    const auto probabilities = Softmax(logits, mean.size(), wave->scratch());
    for (size_t c = 0; c < mean.size(); ++c) mean[c] += probabilities[c];
  }));
  RETURN_IF_ERROR(wave->Finish());
  if (options.stopping.stop_requested()) return CancelledByCaller();  // else what was downloaded is whole
  if (!finite) return NonFiniteOutput();
  for (double& probability : mean) probability /= static_cast<double>(samples);
  for (const SampleResult& result : results) {
    edges.edges += static_cast<double>(result.edges);
    edges.max_sample_edges = std::max(edges.max_sample_edges, result.edges);
    edges.capped |= result.capped;
  }
  edges.edges /= static_cast<double>(samples);
  return absl::OkStatus();
}

absl::Status Generation::State::Step() {
  if (options.stopping.stop_requested()) return CancelledByCaller();
  if (prefill_next()) return StepPrefill();
  GeneratedToken next;
  std::vector<double> mean;
  RETURN_IF_ERROR(Decode(next.edges, mean));
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
  if (context.length() == config.max_position_embeddings) cached = 0;  // every token gets another position
  context = ContextOf(config, tokens);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Generation>> Generation::Create(const Model& model, ModelSequence prompt,
                                                               GenerationOptions options) {
  try {
    auto state = std::make_unique<State>(model, prompt, std::move(options));
    RETURN_IF_ERROR(state->CheckBudget());
    ASSIGN_OR_RETURN(state->stop, CancelOnStop::Create(model.backend(), state->options.stopping));
    RETURN_IF_ERROR(state->cache.Allocate());
    return std::unique_ptr<Generation>(new Generation(std::move(state)));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory for a generation");
  }
}

Generation::Generation(std::unique_ptr<State> state) : state_(std::move(state)) {}
Generation::~Generation() = default;

FinishReason Generation::finish_reason() const { return state_->finish; }
bool Generation::prompt_next() const { return state_->prefill_next(); }
bool Generation::holds_rows() const { return state_->prefill != nullptr; }
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
