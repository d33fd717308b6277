#include "server/validate/validate.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "model/forward/edge_budget.h"
#include "server/models/repository.h"
#include "server/status_details.h"
#include "server/validate/validate_graph.h"
#include "server/validate/validate_parts.h"

namespace edgewise::server {
namespace {

constexpr size_t kMaxQuoted = 64;
constexpr size_t kMaxRequestId = 128;

absl::Status ParseInput(const v1::Input& input, const Model& model, const RequestLimits& limits, uint32_t stride,
                        const std::string& field, ModelInput& parsed) {
  const bool pair = model.config().task == ModelTask::kPairClassification;
  if (!input.has_sequence()) return InvalidField(field + ".sequence", "is missing");
  if (pair && !input.has_second())
    return InvalidField(field + ".second", "is missing; a pair-classification model takes two sequences");
  if (!pair && input.has_second()) {
    return InvalidField(field + ".second", absl::StrCat("is for pair-classification models; this one does ",
                                                        ModelTaskName(model.config().task)));
  }
  absl::StatusOr<std::vector<ModelSequence>> sequences =
      ParseSequence(input.sequence(), model, stride, field + ".sequence");
  if (!sequences.ok()) return sequences.status();
  parsed.sequences = *std::move(sequences);
  if (pair) {
    absl::StatusOr<std::vector<ModelSequence>> second = ParseSequence(input.second(), model, stride, field + ".second");
    if (!second.ok()) return second.status();
    parsed.sequences.push_back(std::move(second->front()));
  }
  if (!input.has_graph()) return absl::OkStatus();
  if (!limits.allow_graphs)
    return InvalidField(field + ".graph", "is not taken by this server; start it with --allow_graphs");
  if (parsed.dense) return InvalidField(field + ".graph", "cannot go with attention DENSE: choose one of them");
  if (parsed.attention) return InvalidField(field + ".graph", "cannot go with an override: choose one of them");
  absl::StatusOr<Graph> graph = ParseGraph(input.graph(), model, limits, field + ".graph");
  if (!graph.ok()) return graph.status();
  parsed.graph = *std::move(graph);
  if (absl::Status checked = model.CheckGraph(parsed); !checked.ok()) return Within(field, checked);
  return absl::OkStatus();
}

uint64_t GivenEdges(const Graph& graph) {
  uint64_t edges = 0;
  for (const std::vector<HeadEdges>& layer : graph.layers) {
    for (const HeadEdges& head : layer) edges += head.keys.size();
  }
  return edges;
}

// The cap of one input, in edges.
absl::Status ApplyBudget(const v1::Budget& budget, const Model& model, size_t index, ModelInput& input) {
  if (budget.cap_case() == v1::Budget::CAP_NOT_SET) return absl::OkStatus();
  const std::string of_input = absl::StrCat("inputs[", index, "]");
  const uint64_t least = std::max<uint64_t>(1, model.LeastEdges(input));
  if (budget.cap_case() == v1::Budget::kMaxEdges) {
    input.max_edges = budget.max_edges();
    if (input.max_edges >= least) return absl::OkStatus();
    return InvalidField("budget.max_edges", absl::StrCat("is ", input.max_edges, "; ", of_input, " needs at least ",
                                                         least, " edges (those that are never dropped)"));
  }
  const uint64_t pairs = model.Pairs(input);
  input.max_edges = EdgesOfDensity(budget.max_density(), pairs);
  if (input.max_edges >= least) return absl::OkStatus();
  return InvalidField("budget.max_density",
                      absl::StrCat("is ", budget.max_density(), ", which is ", input.max_edges, " of the ", pairs,
                                   " pairs of ", of_input, "; it needs at least ", least, " edges"));
}

// Windows of texts are more than what was sent. `positions`: those of the inputs so far.
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

absl::Status ParseOutputs(const v1::PredictRequest& request, const Model& model, OutputSelection& outputs) {
  const v1::OutputOptions& options = request.outputs();
  const ModelConfig& config = model.config();
  if (options.stride() != 0 && config.task != ModelTask::kCausalLm) {
    return InvalidField("outputs.stride",
                        absl::StrCat("is ", options.stride(), "; it is for causal language models, this one does ",
                                     ModelTaskName(config.task)));
  }
  if (options.logits() && config.task == ModelTask::kRegression) {
    return InvalidField("outputs.logits", "is set; the values of a regression model are its outputs as they are");
  }
  if (options.top_k() > 0 && config.task == ModelTask::kRegression) {
    return InvalidField("outputs.top_k", absl::StrCat("is ", options.top_k(), "; a regression model has no labels"));
  }
  if (options.top_k() > 0 && config.task == ModelTask::kTokenClassification) {
    return InvalidField("outputs.top_k", absl::StrCat("is ", options.top_k(),
                                                      "; a token-classification model gives all labels of each token"));
  }
  if (options.top_k() > static_cast<uint32_t>(config.num_labels)) {
    return InvalidField("outputs.top_k",
                        absl::StrCat("is ", options.top_k(), "; the model has ", config.num_labels, " labels"));
  }
  if (options.graph() && request.ensemble().samples() > 1) {
    return InvalidField("outputs.graph", absl::StrCat("is set with ", request.ensemble().samples(),
                                                      " samples; a graph is returned of one sample only"));
  }
  outputs = {options.logits(),      options.layer_stats(), options.key_degrees(),
             options.each_sample(), options.graph(),       options.top_k()};
  return absl::OkStatus();
}

// The parts of a request that do not depend on its inputs.
absl::Status ParseShared(const v1::PredictRequest& request, const Model& model, const RequestLimits& limits,
                         ParsedRequest& parsed) {
  for (const absl::Status& status : {CheckAttention(request.attention()), CheckPriority(request.priority()),
                                     CheckBudget(request.budget()), CheckEnsemble(request.ensemble(), limits)}) {
    if (!status.ok()) return status;
  }
  if (absl::Status status = ParseOutputs(request, model, parsed.outputs); !status.ok()) return status;
  if (request.inputs_size() == 0) return InvalidField("inputs", "is empty; at least one is needed");
  if (static_cast<uint32_t>(request.inputs_size()) > limits.max_inputs) {
    return InvalidField("inputs", absl::StrCat("has ", request.inputs_size(), " entries; the server takes at most ",
                                               limits.max_inputs));
  }
  parsed.priority = PriorityOf(request.priority());
  parsed.budget = KindOf(request.budget());
  parsed.seed = SeedOf(request.ensemble());
  return absl::OkStatus();
}

}  // namespace

std::string Quoted(const std::string& text) {
  const std::string shown = absl::CHexEscape(text.substr(0, kMaxQuoted));
  return text.size() > kMaxQuoted ? absl::StrCat("\"", shown, "\"... (", text.size(), " bytes)")
                                  : absl::StrCat("\"", shown, "\"");
}

absl::Status CheckModelName(const std::string& name) {
  if (name.empty()) return InvalidField("model", "is empty; give the name of a model (ListModels lists them)");
  if (IsModelName(name)) return absl::OkStatus();
  return InvalidField("model", absl::StrCat("is ", Quoted(name),
                                            "; allowed are 1 to 64 of a-z 0-9 _ . -, the first a letter or digit"));
}

absl::Status CheckVersion(int64_t version) {
  if (version >= 0) return absl::OkStatus();
  return InvalidField("version", absl::StrCat("is ", version, "; allowed are 0 (the latest) and more"));
}

absl::Status CheckRequestId(const std::string& id) {
  const bool printable = std::all_of(id.begin(), id.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
  if (id.size() <= kMaxRequestId && printable) return absl::OkStatus();
  return InvalidField("request_id", absl::StrCat("is ", Quoted(id), "; allowed are at most ", kMaxRequestId,
                                                 " printable ASCII characters"));
}

absl::StatusOr<ParsedRequest> ParseRequest(const v1::PredictRequest& request, const Model& model,
                                           const RequestLimits& limits, bool* budget_refused) {
  ParsedRequest parsed;
  if (absl::Status status = ParseShared(request, model, limits, parsed); !status.ok()) return status;
  std::shared_ptr<const std::vector<AttentionConfig>> attention;  // null: the model's
  if (request.has_override()) {
    auto overridden = ParseOverride(request.override(), request.attention(), model);
    if (!overridden.ok()) return overridden.status();
    attention = *std::move(overridden);
  }
  const uint32_t stride = request.outputs().stride();
  uint64_t window_positions = 0;
  parsed.inputs.reserve(static_cast<size_t>(request.inputs_size()));
  for (int i = 0; i < request.inputs_size(); ++i) {
    ModelInput input;
    input.seed = parsed.seed;
    input.first_sample = request.ensemble().first_sample();
    input.samples = std::max<uint32_t>(1, request.ensemble().samples());
    input.tolerance = request.ensemble().tolerance();
    input.dense = request.attention() == v1::DENSE;
    input.attention = attention;
    input.wanted = {parsed.outputs.layer_stats, parsed.outputs.key_degrees, parsed.outputs.graph};
    const std::string field = absl::StrCat("inputs[", i, "]");
    if (absl::Status status = ParseInput(request.inputs(i), model, limits, stride, field, input); !status.ok()) {
      return status;
    }
    if (absl::Status status = ApplyBudget(request.budget(), model, static_cast<size_t>(i), input); !status.ok()) {
      if (budget_refused) *budget_refused = true;
      return status;
    }
    if (absl::Status status = CheckWindows(input, model, field, window_positions); !status.ok()) return status;
    for (const ModelSequence& sequence : input.sequences) {
      parsed.tokens += static_cast<uint64_t>(sequence.valid());
      parsed.cost += static_cast<uint64_t>(sequence.length());
      parsed.cost += sequence.bias_values.size() + sequence.bias_buckets.size();
    }
    if (input.graph) parsed.cost += GivenEdges(*input.graph);
    parsed.inputs.push_back(std::move(input));
  }
  if (absl::Status status = CheckResultSize(parsed, model, limits); !status.ok()) return status;
  return parsed;
}

}  // namespace edgewise::server
