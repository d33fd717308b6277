#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "model/forward/edge_budget.h"
#include "model/kinds/override.h"
#include "server/base/status_details.h"
#include "server/image/image_reader.h"
#include "server/validate/answer_size.h"
#include "server/validate/common.h"
#include "server/validate/graph.h"
#include "server/validate/validate.h"

namespace edgewise::server {
namespace {

absl::Status ParseOutputs(const v1::PredictRequest& message, const ModelConfig& config, OutputSelection& outputs,
                          Wanted& wanted) {
  const v1::OutputOptions& options = message.outputs();
  const uint32_t top_k = options.top_k();
  REFUSE_IF(options.stride() != 0 && config.task != ModelTask::kCausalLm, "outputs.stride", "is ", options.stride(),
            "; it is for causal language models, this one does ", ModelTaskName(config.task));
  REFUSE_IF(config.task == ModelTask::kEmbedding && (options.logits() || top_k > 0),
            options.logits() ? "outputs.logits" : "outputs.top_k", "is set; an embedding model has no labels");
  REFUSE_IF(options.dimensions() > 0 && config.task != ModelTask::kEmbedding, "outputs.dimensions", "is ",
            options.dimensions(), "; it is for embedding models, this one does ", ModelTaskName(config.task));
  REFUSE_IF(options.dimensions() > static_cast<uint32_t>(config.num_labels), "outputs.dimensions", "is ",
            options.dimensions(), "; the model's embeddings have ", config.num_labels);
  REFUSE_IF(options.token_embeddings() && config.task != ModelTask::kEmbedding, "outputs.token_embeddings",
            "is set; it is for embedding models, this one does ", ModelTaskName(config.task));
  REFUSE_IF(options.token_scores() && config.task != ModelTask::kCausalLm, "outputs.token_scores",
            "is set; it is for causal language models, this one does ", ModelTaskName(config.task));
  REFUSE_IF(options.alternatives() > 0 && !options.token_scores(), "outputs.alternatives", "is ",
            options.alternatives(), " without token_scores; set it too");
  REFUSE_IF(options.alternatives() > kMaxAlternatives, "outputs.alternatives", "is ", options.alternatives(),
            "; allowed are 0 to ", kMaxAlternatives);
  REFUSE_IF(options.logits() && config.task == ModelTask::kRegression && !config.sigmoid, "outputs.logits",
            "is set; the values of a regression model are its outputs as they are");
  REFUSE_IF(top_k > 0 && config.task == ModelTask::kRegression, "outputs.top_k", "is ", top_k,
            "; a regression model has no labels");
  REFUSE_IF(top_k > 0 && config.task == ModelTask::kTokenClassification, "outputs.top_k", "is ", top_k,
            "; a token-classification model gives all labels of each token");
  REFUSE_IF(top_k > static_cast<uint32_t>(config.num_labels), "outputs.top_k", "is ", top_k, "; the model has ",
            config.num_labels, " labels");
  REFUSE_IF(options.graph() && message.ensemble().samples() > 1, "outputs.graph", "is set with ",
            message.ensemble().samples(), " samples; a graph is returned of one sample only");
  outputs = {options.logits(),      options.layer_stats(),  options.key_degrees(),
             options.each_sample(), options.graph(),        top_k,
             options.dimensions(),  options.token_scores(), options.token_embeddings(),
             options.input_tokens()};
  wanted = {options.layer_stats(), options.key_degrees(), options.graph()};
  return absl::OkStatus();
}

absl::StatusOr<ModelSequence> ParseFeatures(const v1::Features& features, const Model& model, TruncateMode truncate) {
  return model.PrepareFeatures(features.rows(), features.columns(),
                               {features.values().begin(), features.values().end()}, truncate);
}

// A text that a language model scores. `from`: text or token_ids.
absl::StatusOr<std::vector<ModelSequence>> ParseWindows(std::vector<int32_t> tokens, const Model& model,
                                                        TruncateMode truncate, uint32_t stride, const char* from,
                                                        const std::string& field, WorkBounds& bounds) {
  // A small stride makes every token one of many windows.
  const auto context = static_cast<uint64_t>(model.config().max_position_embeddings);
  const uint64_t step = std::max<uint64_t>(1, stride > 0 ? stride : context / 2);
  const uint64_t positions = tokens.size() > context ? tokens.size() / step * context : 0;
  const uint64_t most = std::min(positions, kMaxScoredPositions);
  for (uint64_t done = 0; done < most; done += kWorkPiece) RETURN_IF_ERROR(bounds.Continue());
  ReservedBytes held(bounds);
  RETURN_IF_ERROR(held.Resize(2 * sizeof(int32_t) * most));  // ids and positions
  absl::StatusOr<std::vector<ModelSequence>> windows = model.PrepareWindows(std::move(tokens), truncate, stride, from);
  if (windows.ok()) return windows;
  return Within(FieldOf(windows.status()) == "stride" ? "outputs" : field, windows.status());
}

absl::Status ParseBias(const v1::PairwiseBias& bias, const Model& model, const std::string& field,
                       std::vector<ModelSequence>& sequences) {
  REFUSE_IF(bias.values().empty() && bias.buckets().empty(), field + ".bias",
            "is empty; give values or buckets, or leave it out");
  REFUSE_IF(sequences.size() > 1 && model.config().task == ModelTask::kCausalLm, field + ".bias",
            "is given for a text that is scored in ", sequences.size(),
            " windows; it goes with texts that fit the context");
  ModelSequence& one = sequences.back();
  one.bias_values.assign(bias.values().begin(), bias.values().end());
  one.bias_buckets.assign(bias.buckets().begin(), bias.buckets().end());
  return Within(field, model.CheckBias(one));
}

// Appends the sequence, or sets the windows of a text for causal-lm.
absl::Status ParseSequence(const v1::Sequence& message, const Model& model, uint32_t stride, ImageReader& images,
                           const std::string& field, WorkBounds& bounds, std::vector<ModelSequence>& sequences) {
  ASSIGN_OR_RETURN(const TruncateMode truncate, ParseTruncate(message.truncate(), field + ".truncate"));
  REFUSE_IF(message.content_case() == v1::Sequence::CONTENT_NOT_SET, field,
            "has no content; give text, token_ids, features or image");
  if (message.has_image()) {
    ASSIGN_OR_RETURN(sequences.emplace_back(), Within(field, images.Read(message.image(), model)));
  } else if (message.has_features()) {
    ASSIGN_OR_RETURN(sequences.emplace_back(), Within(field, ParseFeatures(message.features(), model, truncate)));
  } else {
    const bool windows = model.config().task == ModelTask::kCausalLm;
    const char* from = message.has_text() ? "text" : "token_ids";
    ASSIGN_OR_RETURN(std::vector<int32_t> tokens,
                     ParseTokens(message, model, field, !windows && truncate == TruncateMode::kRefuse, bounds));
    if (windows) {
      ASSIGN_OR_RETURN(sequences, ParseWindows(std::move(tokens), model, truncate, stride, from, field, bounds));
    } else {
      ASSIGN_OR_RETURN(sequences.emplace_back(), Within(field, model.Prepare(std::move(tokens), truncate, from)));
    }
  }
  return message.has_bias() ? ParseBias(message.bias(), model, field, sequences) : absl::OkStatus();
}

// A text of a model with a Hugging Face tokenizer, alone or joined with a second one, behind a prompt (null: none).
absl::Status ParseTexts(const v1::Input& message, const Model& model, const Prompt* prompt, const std::string& field,
                        WorkBounds& bounds, std::vector<ModelSequence>& sequences) {
  const v1::Sequence& first = message.sequence();
  const std::string first_field = field + ".sequence", second_field = field + ".second";
  ASSIGN_OR_RETURN(const TruncateMode truncate, ParseTruncate(first.truncate(), first_field + ".truncate"));
  const std::string* second = message.has_second() ? &message.second().text() : nullptr;
  absl::StatusOr<ModelSequence> sequence = model.PrepareText(first.text(), second, truncate, bounds, prompt);
  if (!sequence.ok()) {
    return FieldOf(sequence.status()) == "second" ? Within(field, sequence.status())
                                                  : Within(first_field, sequence.status());
  }
  sequences.push_back(*std::move(sequence));
  if (!first.has_bias()) return absl::OkStatus();
  return ParseBias(first.bias(), model, first_field, sequences);
}

// A cross-encoder: both texts are one sequence.
absl::Status CheckJoined(const v1::Input& message, const std::string& field) {
  const std::string second = field + ".second";
  REFUSE_IF(!message.sequence().has_text() || !message.second().has_text(), second,
            "is joined with the first text by the tokenizer, so both are text; send token_ids of joined texts as "
            "sequence alone");
  REFUSE_IF(message.second().has_bias(), second + ".bias", "is given; the joined texts are one sequence");
  REFUSE_IF(message.second().truncate() != message.sequence().truncate(), second + ".truncate",
            "is not that of sequence; the joined texts are cut together");
  return absl::OkStatus();
}

absl::Status ParseGivenGraph(const v1::Graph& graph, const Model& model, const RequestLimits& limits,
                             const std::string& field, ModelInput& input) {
  REFUSE_IF(!limits.allow_graphs, field + ".graph", "is not taken by this server; start it with --allow_graphs");
  REFUSE_IF(input.dense, field + ".graph", "cannot go with attention DENSE: choose one of them");
  REFUSE_IF(input.attention, field + ".graph", "cannot go with an override: choose one of them");
  ASSIGN_OR_RETURN(input.graph, ParseGraph(graph, model, limits, field + ".graph"));
  return Within(field, model.CheckGraph(input));
}

absl::Status ParseInput(const v1::Input& message, const Model& model, uint32_t stride, ImageReader& images,
                        const std::string& field, WorkBounds& bounds, std::vector<ModelSequence>& sequences) {
  const bool pair = model.config().task == ModelTask::kPairClassification;
  REFUSE_IF(!message.has_sequence(), field + ".sequence", "is missing");
  REFUSE_IF(pair && !message.has_second(), field + ".second",
            "is missing; a pair-classification model takes two sequences");
  const bool joins = model.tokenizer() != nullptr && (model.config().task == ModelTask::kSequenceClassification ||
                                                      model.config().task == ModelTask::kRegression);
  if (joins && message.has_second()) {
    RETURN_IF_ERROR(CheckJoined(message, field));
  } else {
    REFUSE_IF(!pair && message.has_second(), field + ".second", "is for pair-classification models; this one does ",
              ModelTaskName(model.config().task));
  }
  ASSIGN_OR_RETURN(const Prompt* const prompt, FindPrompt(message.sequence(), model, field + ".sequence"));
  REFUSE_IF(!message.second().prompt_name().empty(), field + ".second.prompt_name", "is ",
            Quoted(message.second().prompt_name()), "; a prompt goes before the first text");
  // A language model scores a longer text in windows, unless it is to be cut.
  const bool windows =
      model.config().task == ModelTask::kCausalLm && message.sequence().truncate() == v1::Truncate::REFUSE;
  if (model.tokenizer() != nullptr && message.sequence().has_text() && !windows) {
    return ParseTexts(message, model, prompt, field, bounds, sequences);
  }
  RETURN_IF_ERROR(ParseSequence(message.sequence(), model, stride, images, field + ".sequence", bounds, sequences));
  if (!pair) return absl::OkStatus();
  return ParseSequence(message.second(), model, stride, images, field + ".second", bounds, sequences);
}

// Sets the cap of one input, in edges. `pairs`: Model::Pairs of it.
absl::Status ApplyBudget(const v1::Budget& budget, const Profile& limits, const Model& model, uint64_t pairs,
                         const std::string& field, ModelInput& input) {
  const uint64_t least = std::max<uint64_t>(1, model.LeastEdges(input));
  input.max_edges = budget.has_max_edges() ? budget.max_edges() : EdgesOfDensity(budget.max_density(), pairs);
  if (limits.max_edges > 0) input.max_edges = std::min(input.max_edges, limits.max_edges);
  if (limits.max_density > 0.0) input.max_edges = std::min(input.max_edges, EdgesOfDensity(limits.max_density, pairs));
  if (input.max_edges >= least) return absl::OkStatus();
  const std::string remedy = input.graph ? "" : SparseRemedy(model.config(), input);
  absl::Status refused =
      budget.has_max_edges()
          ? FieldError("budget.max_edges", absl::StrCat("is ", input.max_edges, "; ", field, " needs at least ", least,
                                                        " edges (those that are never dropped)", remedy))
          : FieldError("budget.max_density",
                       absl::StrCat("is ", budget.max_density(), ", which is ", input.max_edges, " of the ", pairs,
                                    " pairs of ", field, "; it needs at least ", least, " edges", remedy));
  return WithRejection(std::move(refused), Rejection::kBudget);
}

// The windows of a text have more positions than the text. `positions`: those of the inputs so far.
absl::Status CheckWindows(const ModelInput& input, uint64_t pairs, const std::string& field, uint64_t& positions) {
  uint64_t of_input = 0;
  for (const ModelSequence& window : input.sequences) of_input += static_cast<uint64_t>(window.length());
  const bool at_once = input.graph.has_value() || input.max_edges < pairs;
  if (at_once && of_input > kMaxPositionsAtOnce) {
    return absl::ResourceExhaustedError(absl::StrCat(
        field, ": the windows of the text have ", of_input, " positions; under a budget or with a graph at most ",
        kMaxPositionsAtOnce, " are scored in one input (a larger stride or several inputs need fewer)"));
  }
  positions += of_input;
  if (positions <= kMaxScoredPositions) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("inputs: the windows of the texts up to ", field, " have ", positions, " positions; at most ",
                   kMaxScoredPositions, " are scored in one request (a larger stride or several requests need fewer)"));
}

void AddSize(const ModelInput& input, Work& work) {
  for (const ModelSequence& sequence : input.sequences) {
    work.tokens += static_cast<uint64_t>(sequence.valid());
    work.cost += static_cast<uint64_t>(sequence.length()) + sequence.bias_values.size() + sequence.bias_buckets.size();
  }
  if (input.graph) work.cost += EdgesOf(*input.graph);
}

// Sets the samples, and whether the answer may have fewer. Without a number the deadline decides, among those whose
// answer is not too large.
absl::Status SetSamples(const v1::PredictRequest& message, const Model& model, const Profiles& profiles,
                        const RequestLimits& limits, const CallTerms& terms, Work& work) {
  const v1::Budget& budget = message.budget();
  REFUSE_IF(budget.fit_deadline() && terms.deadline == Time::max(), "budget.fit_deadline",
            "is set; the call has no deadline to fit");
  work.may_degrade = budget.allow_degraded() || budget.fit_deadline();
  work.fits_deadline = budget.fit_deadline();
  const bool open = work.fits_deadline && work.settings->samples() == 0 && !work.outputs.graph;
  const uint32_t of_model = profiles.limits.samples, of_server = limits.max_samples;
  uint32_t samples = !open ? work.inputs[0].samples : of_model > 0 ? std::min(of_model, of_server) : of_server;
  while (true) {
    for (ModelInput& input : work.inputs) input.samples = samples;
    const absl::Status size = CheckAnswerSize(work, model, limits);
    if (!size.ok() && open && samples > 1) {
      samples /= 2;
      continue;
    }
    return size;
  }
}

}  // namespace

absl::StatusOr<Work> Validate(const v1::PredictRequest& message, const Model& model, const Profiles& profiles,
                              const RequestLimits& limits, const CallTerms& terms, WorkBounds& bounds) {
  Work work;
  const ModelConfig& config = model.config();
  const auto count = static_cast<uint32_t>(message.inputs_size());
  ModelInput shared;  // the part that all inputs have in common
  RETURN_IF_ERROR(ValidateCommon(message, model, profiles, limits, terms, work, shared));
  if (message.has_outputs()) RETURN_IF_ERROR(ParseOutputs(message, config, work.outputs, shared.wanted));
  REFUSE_IF(count == 0, "inputs", "is empty; at least one is needed");
  REFUSE_IF(count > limits.max_inputs, "inputs", "has ", count, " entries; the server takes at most ",
            limits.max_inputs);
  shared.tolerance = work.settings->tolerance();
  work.inputs.reserve(count);
  uint64_t window_positions = 0;
  ImageReader images(bounds);
  for (const v1::Input& part : message.inputs()) {
    const std::string field = absl::StrCat("inputs[", work.inputs.size(), "]");
    ModelInput& input = work.inputs.emplace_back(shared);
    RETURN_IF_ERROR(ParseInput(part, model, message.outputs().stride(), images, field, bounds, input.sequences));
    if (part.has_graph()) RETURN_IF_ERROR(ParseGivenGraph(part.graph(), model, limits, field, input));
    const uint64_t pairs = model.Pairs(input);
    if (work.budget != BudgetKind::kNone)
      RETURN_IF_ERROR(ApplyBudget(work.settings->budget(), profiles.limits, model, pairs, field, input));
    if (input.sequences.size() > 1 && config.task == ModelTask::kCausalLm) {
      RETURN_IF_ERROR(CheckWindows(input, pairs, field, window_positions));
    }
    AddSize(input, work);
  }
  for (ModelInput& input : work.inputs) {
    input.alternatives = message.outputs().alternatives();
    input.token_rows = message.outputs().token_embeddings();
  }
  RETURN_IF_ERROR(SetSamples(message, model, profiles, limits, terms, work));
  for (const ModelInput& input : work.inputs) {
    REFUSE_IF(input.alternatives > 0 && input.samples > 1 && model.Samples(input), "outputs.alternatives", "is ",
              input.alternatives, " with ", input.samples, " samples that differ; allowed is 0, or 1 sample");
  }
  return work;
}

}  // namespace edgewise::server
