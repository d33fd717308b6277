#include "server/handler/respond.h"

#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "base/ensemble_math.h"
#include "base/status_macros.h"
#include "kernels/draw/draw.h"
#include "model/kinds/kind.h"
#include "server/base/build_id.h"
#include "server/validate/settings.h"

namespace edgewise::server {
namespace {

// The label of a token that a language model predicts: its text where that is printable.
std::string TokenName(const TokenizerConfig& tokenizer, int32_t id) {
  if (static_cast<size_t>(id) < tokenizer.vocabulary.size()) return tokenizer.vocabulary[static_cast<size_t>(id)];
  const int32_t byte = id - tokenizer.offset;
  if (tokenizer.kind == TokenizerKind::kByte && byte >= 0x20 && byte < 0x7f) {
    return std::string(1, static_cast<char>(byte));
  }
  return std::to_string(id);
}

// `tokenizer`: of a Hugging Face folder, or null.
std::string LabelName(const ModelConfig& config, const HfTokenizer* tokenizer, int32_t id) {
  if (id < 0) return "";
  if (GivesVocabulary(config.task) && tokenizer != nullptr) {
    const std::string text = tokenizer->Decode({id}, false);
    return text.empty() ? std::to_string(id) : text;
  }
  if (config.task == ModelTask::kCausalLm) return TokenName(config.tokenizer, id);
  return config.labels.empty() ? std::to_string(id) : config.labels[static_cast<size_t>(id)];
}

// Row `row` of a [rows, labels] array.
template <typename Field>
void AddRow(const std::vector<float>& values, int32_t row, int32_t labels, Field* field) {
  const auto begin = values.begin() + static_cast<int64_t>(row) * labels;
  field->Add(begin, begin + labels);
}

// Prediction and TokenPrediction name these alike.
template <typename Message>
void FillRow(const ModelConfig& config, const HfTokenizer* tokenizer, const InputResult& result, int32_t row,
             bool logits, Message& message) {
  AddRow(result.probabilities, row, result.labels, message.mutable_probabilities());
  AddRow(result.stddev, row, result.labels, message.mutable_stddev());
  if (logits) AddRow(result.logits, row, result.labels, message.mutable_logits());
  const int32_t id = result.label_id[static_cast<size_t>(row)];
  message.set_label_id(id);
  message.set_label(LabelName(config, tokenizer, id));
  message.set_predictive_entropy(result.predictive_entropy[static_cast<size_t>(row)]);
  message.set_mutual_information(result.mutual_information[static_cast<size_t>(row)]);
}

// Prediction and TokenPrediction name it alike.
template <typename Message>
void FillTop(const ModelConfig& config, const HfTokenizer* tokenizer, const InputResult& result, int32_t row,
             uint32_t top_k, Message& message) {
  const size_t labels = static_cast<size_t>(result.labels);
  const auto probabilities = std::span(result.probabilities).subspan(static_cast<size_t>(row) * labels, labels);
  for (const int32_t id : ensemble::LargestFirst(probabilities, top_k)) {
    v1::Prediction::Top* top = message.add_top();
    top->set_label_id(id);
    top->set_label(LabelName(config, tokenizer, id));
    top->set_probability(probabilities[id]);
  }
}

// The numbers of an embedding that a request gets.
uint32_t EmbeddingSize(const ModelConfig& config, uint32_t dimensions) {
  return dimensions > 0 ? dimensions : static_cast<uint32_t>(config.embedding_size);
}

// The first `dimensions` numbers of the vector (0: as many as the model gives), and then, where the model or the
// request asks for it, of length 1.
void FillEmbedding(const ModelConfig& config, const InputResult& result, uint32_t dimensions,
                   v1::Prediction& prediction) {
  const size_t size = EmbeddingSize(config, dimensions);
  prediction.set_normalized(config.normalize || dimensions > 0);
  const auto numbers = std::span(result.probabilities).first(size);
  const double length = prediction.normalized() ? ensemble::Length(numbers) : 1.0;
  for (size_t i = 0; i < size; ++i) {
    prediction.add_embedding(static_cast<float>(result.probabilities[i] / length));
    prediction.add_stddev(result.stddev[i]);
  }
  if (result.token_rows.empty()) return;
  v1::Prediction::TokenEmbeddings& tokens = *prediction.mutable_token_embeddings();
  tokens.set_tokens(static_cast<uint32_t>(result.token_rows.size() / static_cast<size_t>(config.hidden_size)));
  tokens.mutable_values()->Add(result.token_rows.begin(), result.token_rows.end());
}

// fill-mask: one for every mask token.
void FillMasks(const ModelConfig& config, const HfTokenizer* tokenizer, const ModelInput& input,
               const InputResult& result, const OutputSelection& outputs, v1::Prediction& prediction) {
  const std::vector<int32_t>& ids = input.sequences[0].token_ids;
  int32_t row = 0;
  for (size_t place = 0; place < ids.size(); ++place) {
    if (ids[place] != config.mask_token_id) continue;
    v1::TokenPrediction* token = prediction.add_tokens();
    token->set_position(static_cast<uint32_t>(place));
    FillRow(config, tokenizer, result, row, outputs.logits, *token);
    if (outputs.top_k > 0) FillTop(config, tokenizer, result, row, outputs.top_k, *token);
    ++row;
  }
}

void FillLayers(const InputResult& result, const OutputSelection& outputs, v1::EdgeReport& report) {
  if (result.sample_results.empty()) return;
  const double samples = static_cast<double>(result.sample_results.size());
  const auto& first = result.sample_results.front().layers;
  for (size_t l = 0; l < first.size(); ++l) {
    v1::EdgeReport::LayerEdges* layer = report.add_layers();
    for (size_t h = 0; h < first[l].size(); ++h) {
      uint64_t edges = 0;
      double expected = 0.0;
      std::vector<uint32_t> degrees(outputs.key_degrees ? first[l][h].key_degrees.size() : 0);
      for (const SampleResult& sample : result.sample_results) {
        const HeadCounts& counts = sample.layers[l][h];
        edges += counts.edges;
        expected += counts.expected;
        for (size_t k = 0; k < degrees.size(); ++k) degrees[k] += counts.key_degrees[k];
      }
      v1::EdgeReport::HeadEdges* head = layer->add_heads();
      head->set_edges(static_cast<double>(edges) / samples);
      if (outputs.layer_stats) head->set_expected(expected / samples);
      head->mutable_key_degrees()->Add(degrees.begin(), degrees.end());
    }
  }
}

void FillEdges(uint64_t max_edges, const InputResult& result, const OutputSelection& outputs, v1::EdgeReport& report) {
  report.set_edges(result.edges);
  report.set_pairs(result.pairs);
  report.set_density(result.density);
  report.set_budget(max_edges == kNoCap ? 0 : max_edges);
  report.set_capped(result.capped);
  if (outputs.layer_stats) report.set_expected_edges(result.expected_edges);
  report.set_max_sample_edges(result.max_sample_edges);
  report.set_isolated_queries(result.isolated_queries);
  if (outputs.layer_stats || outputs.key_degrees) FillLayers(result, outputs, report);
}

void FillGraph(const Graph& graph, v1::Graph& message) {
  for (const std::vector<HeadEdges>& layer : graph.layers) {
    v1::Graph::Layer* out = message.add_layers();
    for (const HeadEdges& head : layer) {
      v1::Graph::Head* edges = out->add_heads();
      edges->mutable_row_offsets()->Add(head.row_offsets.begin(), head.row_offsets.end());
      edges->mutable_keys()->Add(head.keys.begin(), head.keys.end());
      edges->mutable_weights()->Add(head.weights.begin(), head.weights.end());
      edges->mutable_multiplicities()->Add(head.multiplicity.begin(), head.multiplicity.end());
    }
  }
}

void FillTokens(const ModelConfig& config, const HfTokenizer* tokenizer, const ModelInput& input,
                const InputResult& result, const OutputSelection& outputs, v1::Prediction& prediction) {
  const std::vector<tokenizers::Span>& offsets = input.sequences[0].offsets;
  for (int32_t row = 0; row < result.rows; ++row) {
    v1::TokenPrediction* token = prediction.add_tokens();
    if (!offsets.empty()) {
      token->set_begin(offsets[static_cast<size_t>(row)].begin);
      token->set_end(offsets[static_cast<size_t>(row)].end);
    }
    if (result.label_id[static_cast<size_t>(row)] < 0) {
      token->set_pad(true);
    } else {
      FillRow(config, tokenizer, result, row, outputs.logits, *token);
    }
  }
}

void FillSamples(const ModelConfig& config, const InputResult& result, const OutputSelection& outputs,
                 v1::Prediction& prediction) {
  for (const SampleResult& sample : result.sample_results) {
    v1::SampleOutput* output = prediction.add_sample_outputs();
    auto* numbers = config.task == ModelTask::kRegression  ? output->mutable_values()
                    : config.task == ModelTask::kEmbedding ? output->mutable_embedding()
                                                           : output->mutable_probabilities();
    const auto begin = sample.probabilities.begin();
    const bool cut = config.task == ModelTask::kEmbedding;
    numbers->Add(begin, cut ? begin + EmbeddingSize(config, outputs.dimensions) : sample.probabilities.end());
    output->mutable_token_probabilities()->Add(sample.token_probabilities.begin(), sample.token_probabilities.end());
    if (outputs.logits) output->mutable_logits()->Add(sample.logits.begin(), sample.logits.end());
    output->set_edges(sample.edges);
  }
}

void FillScores(const InputResult& result, v1::Prediction& prediction) {
  prediction.set_log_likelihood(result.log_likelihood);
  prediction.set_perplexity(result.perplexity);
  prediction.set_scored_tokens(static_cast<uint32_t>(result.sample_results.front().token_probabilities.size()));
}

template <typename Message>
void FillAlternatives(const Model& model, const TokenAlternatives& alternatives, Message& message) {
  for (const TokenProbability& one : alternatives) {
    v1::TokenAlternative& alternative = *message.add_alternatives();
    alternative.set_token_id(one.id);
    alternative.set_token_bytes(model.TokenBytes(one.id));
    alternative.set_log_probability(one.log_probability);
  }
}

// Each window scores the tokens that the one before did not have.
void FillTokenScores(const Model& model, const ModelInput& input, const InputResult& result,
                     v1::Prediction& prediction) {
  std::vector<const double*> samples;
  for (const SampleResult& sample : result.sample_results) samples.push_back(sample.token_probabilities.data());
  const std::vector<TokenAlternatives>& alternatives = result.sample_results.front().alternatives;
  size_t scored = 0;
  for (const ModelSequence& window : input.sequences) {
    for (int32_t i = prediction.token_scores().empty() ? 0 : window.first_scored; i < window.valid(); ++i) {
      v1::TokenScore& score = *prediction.add_token_scores();
      score.set_token_id(window.token_ids[window.positions[i]]);
      score.set_token_bytes(model.TokenBytes(score.token_id()));
      if (i < window.first_scored) continue;
      score.set_log_probability(std::log(ensemble::Mean<double>(samples, scored)));
      if (!alternatives.empty()) FillAlternatives(model, alternatives[scored], score);
      ++scored;
    }
  }
}

void FillInputTokens(const Model& model, const ModelInput& input, v1::Prediction& prediction) {
  const std::vector<std::string>& vocabulary = model.config().tokenizer.vocabulary;
  for (const ModelSequence& sequence : input.sequences) {
    auto valid = sequence.positions.begin();
    for (int32_t i = 0; i < sequence.length(); ++i) {
      v1::InputToken& token = *prediction.add_input_tokens();
      token.set_pad(valid == sequence.positions.end() || *valid != i);
      if (!token.pad()) ++valid;
      if (sequence.token_ids.empty()) continue;
      const int32_t id = sequence.token_ids[static_cast<size_t>(i)];
      token.set_token_id(id);
      token.set_token_bytes(model.TokenBytes(id));
      const bool named = token.token_bytes().empty() && id >= 0 && static_cast<size_t>(id) < vocabulary.size();
      if (named) token.set_token_bytes(vocabulary[static_cast<size_t>(id)]);
    }
  }
}

const char* PooledRows(const ModelConfig& config) {
  switch (config.task) {
    case ModelTask::kTokenClassification:
    case ModelTask::kFillMask:
      return "";
    case ModelTask::kCausalLm:
      return "last";
    default:
      break;
  }
  switch (config.pooling) {
    case Pooling::kMeanValid:
    case Pooling::kMeanMaxLength:
      return "mean";
    case Pooling::kCls:
    case Pooling::kFirst:
      return "first";
    case Pooling::kLast:
      return "last";
  }
  return "";
}

// The cap that a request was lowered to, in place of the one in `budget`. Caps of that kind keep random edges, whatever
// the model's default is.
void SetCap(const Request& request, v1::Budget& budget) {
  const Forecast& forecast = request.forecast;
  if (request.ticket.model->model->CapRuleMatters(request.work.inputs.front())) budget.set_keep(v1::RANDOM);
  if (forecast.caps.by_density) {
    budget.set_max_density(forecast.cap);
  } else {
    budget.set_max_edges(static_cast<uint64_t>(forecast.cap));
  }
}

void FillDegraded(const Request& request, v1::Degraded& degraded) {
  const Forecast& forecast = request.forecast;
  degraded.set_requested_samples(request.work.inputs.front().samples);
  degraded.set_samples(forecast.samples);
  degraded.set_reason(static_cast<v1::Degraded::Reason>(forecast.reason));
  if (forecast.cap == 0.0) return;
  if (request.work.settings->has_budget()) *degraded.mutable_requested_budget() = request.work.settings->budget();
  SetCap(request, *degraded.mutable_budget());
}

// Where an answer comes from. PredictResponse and GenerateResponse name these alike.
template <typename Message>
void FillOrigin(const Request& request, Message& message) {
  message.set_model(request.ticket.model->name);
  message.set_version(request.ticket.model->version);
  message.set_seed(request.work.seed);
  message.set_device(request.ticket.model->model->backend().device());
  message.set_request_id(request.ticket.id);
  if (request.work.settings == nullptr) return;
  *message.mutable_settings() = *request.work.settings;
  message.mutable_settings()->set_samples(request.forecast.samples);
  if (request.forecast.cap > 0.0) SetCap(request, *message.mutable_settings()->mutable_budget());
}

}  // namespace

absl::Status FillResponse(const Request& request, absl::FunctionRef<absl::Status()> wanted,
                          v1::PredictResponse& response) {
  FillOrigin(request, response);
  response.set_build(BuildId());
  response.set_sha256(request.ticket.model->model->sha256());
  response.set_input_tokens(request.work.tokens);
  const bool degraded = request.forecast.reason != DegradedBy::kNothing;
  if (request.work.fits_deadline || degraded) FillDegraded(request, *response.mutable_degraded());
  for (size_t i = 0; i < request.work.inputs.size(); ++i) {
    if (i > 0) RETURN_IF_ERROR(wanted());
    const InputResult& result = request.outcome.results[i];
    const Model& model = *request.ticket.model->model;
    v1::Prediction& prediction = *response.add_predictions();
    FillPrediction(model.config(), model.tokenizer(), RunOf(request, i), result, request.work.outputs, prediction);
    if (request.work.outputs.token_scores) FillTokenScores(model, request.work.inputs[i], result, prediction);
    if (request.work.outputs.input_tokens) FillInputTokens(model, request.work.inputs[i], prediction);
  }
  return absl::OkStatus();
}

void FillPrediction(const ModelConfig& config, const HfTokenizer* tokenizer, const InputRun& run,
                    const InputResult& result, const OutputSelection& outputs, v1::Prediction& prediction) {
  const ModelInput& input = *run.input;
  if (config.task == ModelTask::kTokenClassification) {
    FillTokens(config, tokenizer, input, result, outputs, prediction);
  } else if (config.task == ModelTask::kFillMask) {
    FillMasks(config, tokenizer, input, result, outputs, prediction);
  } else if (config.task == ModelTask::kEmbedding) {
    FillEmbedding(config, result, outputs.dimensions, prediction);
  } else if (config.task == ModelTask::kRegression) {
    AddRow(result.probabilities, 0, result.labels, prediction.mutable_values());
    AddRow(result.stddev, 0, result.labels, prediction.mutable_stddev());
    if (outputs.logits) AddRow(result.logits, 0, result.labels, prediction.mutable_logits());
  } else {
    FillRow(config, tokenizer, result, 0, outputs.logits, prediction);
    prediction.set_multi_label(config.multi_label);
  }
  if (outputs.top_k > 0 && config.task != ModelTask::kFillMask)
    FillTop(config, tokenizer, result, 0, outputs.top_k, prediction);
  if (config.task == ModelTask::kCausalLm) FillScores(result, prediction);
  prediction.set_samples(result.samples);
  FillEdges(run.max_edges, result, outputs, *prediction.mutable_edges());
  if (outputs.each_sample) FillSamples(config, result, outputs, prediction);
  if (outputs.graph && result.graph) FillGraph(*result.graph, *prediction.mutable_graph());
  uint32_t truncated = 0;
  for (const ModelSequence& sequence : input.sequences) truncated += sequence.truncated_tokens;
  prediction.set_truncated_tokens(truncated);
}

void FillRowEdges(const RowEdges& row, v1::EdgeReport& report) {
  report.set_edges(row.edges);
  report.set_pairs(row.pairs);
  report.set_density(row.pairs == 0 ? 0.0 : row.edges / static_cast<double>(row.pairs));
  report.set_budget(row.budget);
  report.set_capped(row.capped);
  report.set_max_sample_edges(row.max_sample_edges);
}

void FillToken(const Request& request, const GeneratedToken& token, FinishReason finish,
               v1::GenerateResponse& message) {
  const Outcome::Generated& generated = request.outcome.generated;
  const bool last = finish != FinishReason::kNone;
  message.set_token_id(token.token_id);
  message.set_text(token.text);
  message.set_log_probability(token.log_probability);
  message.set_predictive_entropy(token.predictive_entropy);
  message.set_mutual_information(token.mutual_information);
  const Model& model = *request.ticket.model->model;
  message.set_token_bytes(model.TokenBytes(token.token_id));
  FillAlternatives(model, token.alternatives, message);
  FillRowEdges(token.edges, *message.mutable_edges());
  if (last || generated.tokens == 1) FillOrigin(request, message);
  if (!last) return;
  message.set_done(true);
  message.set_finish_reason(finish == FinishReason::kStop ? "stop" : "length");
  message.set_prompt_tokens(static_cast<uint32_t>(request.work.tokens));
  message.set_generated_tokens(generated.tokens);
  message.set_truncated_tokens(request.work.generation->prompt.truncated_tokens);
}

void FillModelInfo(const ModelStatus& status, bool vocabulary, v1::ModelInfo& info) {
  info.set_name(status.name);
  info.set_version(status.version);
  info.set_error(status.error);
  constexpr v1::ModelInfo::State kStates[] = {v1::ModelInfo::LOADING, v1::ModelInfo::READY, v1::ModelInfo::FAILED,
                                              v1::ModelInfo::DRAINING};
  info.set_state(kStates[static_cast<int>(status.state)]);
  if (!status.loaded) return;
  const Model& model = *status.loaded->model;
  const ModelConfig& config = model.config();
  info.set_description(config.description);
  info.set_task(ModelTaskName(config.task));
  info.set_attention(AttentionName(config));
  info.set_layers(static_cast<uint32_t>(config.num_hidden_layers));
  info.set_heads(static_cast<uint32_t>(config.num_attention_heads));
  info.set_hidden_size(static_cast<uint32_t>(config.hidden_size));
  info.set_max_tokens(static_cast<uint32_t>(config.max_position_embeddings));
  info.set_vocab_size(static_cast<uint32_t>(config.vocab_size));
  for (const std::string& label : config.labels) info.add_labels(label);
  const bool tokens = vocabulary && (model.tokenizer() != nullptr ? GivesVocabulary(config.task)
                                                                  : config.task == ModelTask::kCausalLm &&
                                                                        config.tokenizer.kind != TokenizerKind::kNone);
  for (int32_t id = 0; tokens && id < config.vocab_size; ++id)
    info.add_labels(LabelName(config, model.tokenizer(), id));
  info.set_tokenizer(TokenizerName(config.tokenizer.kind));
  info.set_parameters(model.parameters());
  info.set_sha256(model.sha256());
  info.set_device(model.backend().device());
  info.set_feature_size(static_cast<uint32_t>(config.feature_size));
  if (config.image_processor.serves) {
    info.set_image_width(static_cast<uint32_t>(config.image.width));
    info.set_image_height(static_cast<uint32_t>(config.image.height));
  }
  info.set_pairwise_bias(config.pairwise_bias == PairwiseBiasKind::kNone     ? "none"
                         : config.pairwise_bias == PairwiseBiasKind::kValues ? "values"
                                                                             : "buckets");
  info.set_num_buckets(static_cast<uint32_t>(config.num_buckets));
  info.set_causal(config.causal);
  info.set_multi_label(config.multi_label);
  if (config.task == ModelTask::kFillMask) info.set_mask_token_id(config.mask_token_id);
  info.set_takes_messages(model.chat_template().ok());
  for (const auto& [name, prompt] : config.prompts) info.add_prompts(name);
  info.set_default_prompt(config.default_prompt);
  info.set_embedding_size(static_cast<uint32_t>(config.embedding_size));
  info.set_pooling(PooledRows(config));
  info.set_random_numbers(kRandomNumbersVersion);
  const Profiles& profiles = status.loaded->profiles;
  for (const auto& [name, profile] : profiles.by_name) *info.add_profiles() = ToMessage(name, profile);
  info.set_default_profile(profiles.default_name);
  const Profile& limits = profiles.limits;
  const bool limited = limits.max_edges > 0 || limits.max_density > 0.0 || limits.samples > 0;
  if (limited) *info.mutable_limits() = ToMessage("", limits);
}

}  // namespace edgewise::server
