#include "server/validate/predict.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/forward/edge_budget.h"
#include "server/status_details.h"
#include "server/validate/graph.h"
#include "text/field_error.h"
#include "text/status_macros.h"

namespace edgewise::server {
namespace {

absl::Status CheckOutputs(const v1::PredictRequest& request, const ModelConfig& config) {
  const v1::OutputOptions& options = request.outputs();
  const uint32_t top_k = options.top_k();
  if (options.stride() != 0 && config.task != ModelTask::kCausalLm) {
    return FieldError("outputs.stride",
                      absl::StrCat("is ", options.stride(), "; it is for causal language models, this one does ",
                                   ModelTaskName(config.task)));
  }
  if (options.logits() && config.task == ModelTask::kRegression) {
    return FieldError("outputs.logits", "is set; the values of a regression model are its outputs as they are");
  }
  if (top_k > 0 && config.task == ModelTask::kRegression) {
    return FieldError("outputs.top_k", absl::StrCat("is ", top_k, "; a regression model has no labels"));
  }
  if (top_k > 0 && config.task == ModelTask::kTokenClassification) {
    return FieldError("outputs.top_k",
                      absl::StrCat("is ", top_k, "; a token-classification model gives all labels of each token"));
  }
  if (top_k > static_cast<uint32_t>(config.num_labels)) {
    return FieldError("outputs.top_k", absl::StrCat("is ", top_k, "; the model has ", config.num_labels, " labels"));
  }
  if (options.graph() && request.ensemble().samples() > 1) {
    return FieldError("outputs.graph", absl::StrCat("is set with ", request.ensemble().samples(),
                                                    " samples; a graph is returned of one sample only"));
  }
  return absl::OkStatus();
}

// The sequence, or the windows of a text for causal-lm, without the bias.
absl::StatusOr<std::vector<ModelSequence>> ParseContent(const v1::Sequence& sequence, const Model& model,
                                                        uint32_t stride, TruncateMode truncate,
                                                        const std::string& field) {
  if (sequence.content_case() == v1::Sequence::CONTENT_NOT_SET) {
    return FieldError(field, "has no content; give text, token_ids or features");
  }
  absl::StatusOr<ModelSequence> one;
  if (sequence.has_features()) {
    const v1::Features& features = sequence.features();
    one = model.PrepareFeatures(features.rows(), features.columns(),
                                std::vector<float>(features.values().begin(), features.values().end()), truncate);
  } else {
    ASSIGN_OR_RETURN(std::vector<int32_t> tokens, ParseTokens(sequence, model, field));
    if (model.config().task == ModelTask::kCausalLm) {
      absl::StatusOr<std::vector<ModelSequence>> windows = model.PrepareWindows(std::move(tokens), truncate, stride);
      if (windows.ok()) return windows;
      return Within(FieldOf(windows.status()) == "stride" ? "outputs" : field, windows.status());
    }
    one = model.Prepare(std::move(tokens), truncate);
  }
  if (!one.ok()) return Within(field, one.status());
  std::vector<ModelSequence> sequences;
  sequences.push_back(*std::move(one));
  return sequences;
}

absl::StatusOr<std::vector<ModelSequence>> ParseSequence(const v1::Sequence& sequence, const Model& model,
                                                         uint32_t stride, const std::string& field) {
  ASSIGN_OR_RETURN(const TruncateMode truncate, ParseTruncate(sequence.truncate(), field + ".truncate"));
  ASSIGN_OR_RETURN(std::vector<ModelSequence> sequences, ParseContent(sequence, model, stride, truncate, field));
  if (!sequence.has_bias()) return sequences;
  const v1::PairwiseBias& bias = sequence.bias();
  if (bias.values().empty() && bias.buckets().empty()) {
    return FieldError(field + ".bias", "is empty; give values or buckets, or leave it out");
  }
  if (sequences.size() > 1) {
    return FieldError(field + ".bias", absl::StrCat("is given for a text that is scored in ", sequences.size(),
                                                    " windows; it goes with texts that fit the context"));
  }
  ModelSequence& one = sequences.front();
  one.bias_values.assign(bias.values().begin(), bias.values().end());
  one.bias_buckets.assign(bias.buckets().begin(), bias.buckets().end());
  RETURN_IF_ERROR(Within(field, model.CheckBias(one)));
  return sequences;
}

absl::Status ParseInput(const v1::Input& message, const Model& model, const RequestLimits& limits, uint32_t stride,
                        const std::string& field, ModelInput& input) {
  const bool pair = model.config().task == ModelTask::kPairClassification;
  if (!message.has_sequence()) return FieldError(field + ".sequence", "is missing");
  if (pair && !message.has_second())
    return FieldError(field + ".second", "is missing; a pair-classification model takes two sequences");
  if (!pair && message.has_second()) {
    return FieldError(field + ".second", absl::StrCat("is for pair-classification models; this one does ",
                                                      ModelTaskName(model.config().task)));
  }
  ASSIGN_OR_RETURN(input.sequences, ParseSequence(message.sequence(), model, stride, field + ".sequence"));
  if (pair) {
    ASSIGN_OR_RETURN(std::vector<ModelSequence> second,
                     ParseSequence(message.second(), model, stride, field + ".second"));
    input.sequences.push_back(std::move(second.front()));
  }
  if (!message.has_graph()) return absl::OkStatus();
  if (!limits.allow_graphs)
    return FieldError(field + ".graph", "is not taken by this server; start it with --allow_graphs");
  if (input.dense) return FieldError(field + ".graph", "cannot go with attention DENSE: choose one of them");
  if (input.attention) return FieldError(field + ".graph", "cannot go with an override: choose one of them");
  ASSIGN_OR_RETURN(input.graph, ParseGraph(message.graph(), model, limits, field + ".graph"));
  return Within(field, model.CheckGraph(input));
}

// Sets the cap of one input, in edges.
absl::Status ApplyBudget(const v1::Budget& budget, const Model& model, const std::string& field, ModelInput& input) {
  if (budget.cap_case() == v1::Budget::CAP_NOT_SET) return absl::OkStatus();
  const uint64_t pairs = model.Pairs(input);
  const uint64_t least = std::max<uint64_t>(1, model.LeastEdges(input));
  input.max_edges = budget.has_max_edges() ? budget.max_edges() : EdgesOfDensity(budget.max_density(), pairs);
  if (input.max_edges >= least) return absl::OkStatus();
  absl::Status refused =
      budget.has_max_edges()
          ? FieldError("budget.max_edges", absl::StrCat("is ", input.max_edges, "; ", field, " needs at least ", least,
                                                        " edges (those that are never dropped)"))
          : FieldError("budget.max_density",
                       absl::StrCat("is ", budget.max_density(), ", which is ", input.max_edges, " of the ", pairs,
                                    " pairs of ", field, "; it needs at least ", least, " edges"));
  return WithRejection(std::move(refused), Rejection::kBudget);
}

// The windows of a text have more positions than the text. `positions`: those of the inputs so far.
absl::Status CheckWindows(const ModelInput& input, const Model& model, const std::string& field, uint64_t& positions) {
  if (model.config().task != ModelTask::kCausalLm || input.sequences.size() == 1) return absl::OkStatus();
  uint64_t of_input = 0;
  for (const ModelSequence& window : input.sequences) of_input += static_cast<uint64_t>(window.length());
  const bool at_once = input.graph.has_value() || input.max_edges < model.Pairs(input);
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

void AddSize(const ModelInput& input, Task& task) {
  for (const ModelSequence& sequence : input.sequences) {
    task.tokens += static_cast<uint64_t>(sequence.valid());
    task.cost += static_cast<uint64_t>(sequence.length());
    task.cost += sequence.bias_values.size() + sequence.bias_buckets.size();
  }
  if (input.graph) task.cost += EdgesOf(*input.graph);
}

}  // namespace

absl::StatusOr<ParsedPredict> ParsePredict(const v1::PredictRequest& request, const Model& model,
                                           const RequestLimits& limits) {
  ASSIGN_OR_RETURN(ParsedRequest common,
                   ParseCommon(request.attention(), request.priority(), request.budget(), request.ensemble(), limits));
  RETURN_IF_ERROR(CheckOutputs(request, model.config()));
  if (request.inputs_size() == 0) return FieldError("inputs", "is empty; at least one is needed");
  if (static_cast<uint32_t>(request.inputs_size()) > limits.max_inputs) {
    return FieldError("inputs", absl::StrCat("has ", request.inputs_size(), " entries; the server takes at most ",
                                             limits.max_inputs));
  }
  const v1::OutputOptions& options = request.outputs();
  ParsedPredict parsed{std::move(common),
                       {options.logits(), options.layer_stats(), options.key_degrees(), options.each_sample(),
                        options.graph(), options.top_k()}};
  ModelInput shared;  // the part that all inputs have in common
  shared.seed = parsed.seed;
  shared.first_sample = request.ensemble().first_sample();
  shared.samples = std::max<uint32_t>(1, request.ensemble().samples());
  shared.tolerance = request.ensemble().tolerance();
  shared.dense = request.attention() == v1::DENSE;
  shared.wanted = {options.layer_stats(), options.key_degrees(), options.graph()};
  if (request.has_override()) {
    ASSIGN_OR_RETURN(shared.attention, ParseOverride(request.override(), request.attention(), model));
  }
  std::vector<ModelInput>& inputs = parsed.task->inputs;
  inputs.reserve(static_cast<size_t>(request.inputs_size()));
  uint64_t window_positions = 0;
  for (const v1::Input& message : request.inputs()) {
    const std::string field = absl::StrCat("inputs[", inputs.size(), "]");
    ModelInput& input = inputs.emplace_back(shared);
    RETURN_IF_ERROR(ParseInput(message, model, limits, options.stride(), field, input));
    RETURN_IF_ERROR(ApplyBudget(request.budget(), model, field, input));
    RETURN_IF_ERROR(CheckWindows(input, model, field, window_positions));
    AddSize(input, *parsed.task);
  }
  RETURN_IF_ERROR(CheckAnswerSize(inputs, parsed.outputs, model, limits));
  return parsed;
}

}  // namespace edgewise::server
