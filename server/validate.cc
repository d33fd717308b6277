#include "server/validate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/repository.h"
#include "server/status_details.h"
#include "server/task.h"
#include "server/validate_graph.h"

namespace edgewise::server {
namespace {

constexpr size_t kMaxQuoted = 64;
constexpr size_t kMaxRequestId = 128;

// A message of the model, "token_ids[3] is ..." or "text: ...", as one of the field that it stands in.
absl::Status Within(const std::string& parent, const absl::Status& status) {
  const std::string message(status.message());
  if (!absl::IsInvalidArgument(status)) return absl::Status(status.code(), absl::StrCat(parent, ": ", message));
  const std::string part = message.substr(0, message.find_first_of(": "));
  return InvalidFieldMessage(absl::StrCat(parent, ".", part), absl::StrCat(parent, ".", message));
}

absl::StatusOr<TruncateMode> ParseTruncate(v1::Truncate truncate, const std::string& field) {
  switch (truncate) {
    case v1::REFUSE:
      return TruncateMode::kRefuse;
    case v1::HEAD:
      return TruncateMode::kHead;
    case v1::TAIL:
      return TruncateMode::kTail;
    default:
      return InvalidField(field,
                          absl::StrCat("is ", static_cast<int>(truncate), "; allowed are REFUSE, HEAD and TAIL"));
  }
}

absl::StatusOr<ModelSequence> ParseSequence(const v1::Sequence& sequence, const Model& model,
                                            const std::string& field) {
  if (sequence.has_bias()) return InvalidField(field + ".bias", "is reserved: no model of this server takes a bias");
  absl::StatusOr<TruncateMode> truncate = ParseTruncate(sequence.truncate(), field + ".truncate");
  if (!truncate.ok()) return truncate.status();
  std::vector<int32_t> token_ids;
  switch (sequence.content_case()) {
    case v1::Sequence::kText: {
      absl::StatusOr<std::vector<int32_t>> tokens = model.Tokenize(sequence.text());
      if (!tokens.ok()) return Within(field, tokens.status());
      token_ids = *std::move(tokens);
      if (token_ids.empty()) return InvalidField(field + ".text", "has no tokens; at least one is needed");
      break;
    }
    case v1::Sequence::kTokenIds:
      token_ids.assign(sequence.token_ids().values().begin(), sequence.token_ids().values().end());
      if (token_ids.empty()) return InvalidField(field + ".token_ids", "is empty; at least one token is needed");
      break;
    case v1::Sequence::kFeatures:
      return InvalidField(field + ".features", "is reserved: no model of this server takes rows of features");
    default:
      return InvalidField(field, "has no content; give text or token_ids");
  }
  absl::StatusOr<ModelSequence> prepared = model.Prepare(std::move(token_ids), *truncate);
  if (!prepared.ok()) return Within(field, prepared.status());
  return prepared;
}

absl::Status ParseInput(const v1::Input& input, const Model& model, const RequestLimits& limits,
                        const std::string& field, ModelInput& parsed) {
  const bool pair = model.config().task == edgewise::Task::kPairClassification;
  if (!input.has_sequence()) return InvalidField(field + ".sequence", "is missing");
  if (pair && !input.has_second())
    return InvalidField(field + ".second", "is missing; a pair-classification model takes two sequences");
  if (!pair && input.has_second()) {
    return InvalidField(field + ".second", absl::StrCat("is for pair-classification models; this one does ",
                                                        TaskName(model.config().task)));
  }
  absl::StatusOr<ModelSequence> sequence = ParseSequence(input.sequence(), model, field + ".sequence");
  if (!sequence.ok()) return sequence.status();
  parsed.sequences.push_back(*std::move(sequence));
  if (pair) {
    absl::StatusOr<ModelSequence> second = ParseSequence(input.second(), model, field + ".second");
    if (!second.ok()) return second.status();
    parsed.sequences.push_back(*std::move(second));
  }
  if (!input.has_graph()) return absl::OkStatus();
  if (!limits.allow_graphs)
    return InvalidField(field + ".graph", "is not taken by this server; start it with --allow_graphs");
  if (parsed.dense) return InvalidField(field + ".graph", "cannot go with attention DENSE: choose one of them");
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

absl::Status CheckBudget(const v1::Budget& budget) {
  if (budget.cap_case() == v1::Budget::kMaxEdges && budget.max_edges() == 0) {
    return InvalidField("budget.max_edges", "is 0; allowed are 1 and more (leave it out for no cap)");
  }
  if (budget.cap_case() == v1::Budget::kMaxDensity && !(budget.max_density() > 0.0 && budget.max_density() <= 1.0)) {
    return InvalidField("budget.max_density", absl::StrCat("is ", budget.max_density(), "; allowed is (0, 1]"));
  }
  return absl::OkStatus();
}

absl::Status CheckEnsemble(const v1::Ensemble& ensemble, const RequestLimits& limits) {
  const uint32_t samples = std::max<uint32_t>(1, ensemble.samples());
  if (samples > limits.max_samples) {
    return InvalidField("ensemble.samples",
                        absl::StrCat("is ", samples, "; the server takes at most ", limits.max_samples));
  }
  if (!(ensemble.tolerance() >= 0.0) || std::isinf(ensemble.tolerance())) {
    return InvalidField("ensemble.tolerance",
                        absl::StrCat("is ", ensemble.tolerance(), "; allowed are finite numbers, 0 and more"));
  }
  if (ensemble.tolerance() > 0.0 && ensemble.first_sample() != 0) {
    return InvalidField("ensemble.tolerance",
                        absl::StrCat("is ", ensemble.tolerance(), " with first_sample ", ensemble.first_sample(),
                                     "; a part of an ensemble cannot stop early"));
  }
  if (uint64_t{ensemble.first_sample()} + samples > uint64_t{std::numeric_limits<uint32_t>::max()} + 1) {
    return InvalidField("ensemble.first_sample", absl::StrCat("is ", ensemble.first_sample(), " with ", samples,
                                                              " samples; the last sample may be 4294967295"));
  }
  return absl::OkStatus();
}

absl::Status ParseOutputs(const v1::PredictRequest& request, const Model& model, OutputSelection& outputs) {
  const v1::OutputOptions& options = request.outputs();
  const ModelConfig& config = model.config();
  if (options.stride() != 0)
    return InvalidField("outputs.stride",
                        absl::StrCat("is ", options.stride(), "; it is reserved for causal language models"));
  if (options.top_k() > 0 && config.task == edgewise::Task::kTokenClassification) {
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
  if (request.has_override())
    return InvalidField("override", "is reserved: this server runs models with their own attention");
  if (request.attention() != v1::MODEL_DEFAULT && request.attention() != v1::DENSE) {
    return InvalidField("attention", absl::StrCat("is ", static_cast<int>(request.attention()),
                                                  "; allowed are MODEL_DEFAULT and DENSE"));
  }
  if (request.priority() > kPriorityLevels) {
    return InvalidField("priority",
                        absl::StrCat("is ", request.priority(), "; allowed are 0 (default) to ", kPriorityLevels));
  }
  if (absl::Status status = CheckBudget(request.budget()); !status.ok()) return status;
  if (absl::Status status = CheckEnsemble(request.ensemble(), limits); !status.ok()) return status;
  if (absl::Status status = ParseOutputs(request, model, parsed.outputs); !status.ok()) return status;
  if (request.inputs_size() == 0) return InvalidField("inputs", "is empty; at least one is needed");
  if (static_cast<uint32_t>(request.inputs_size()) > limits.max_inputs) {
    return InvalidField("inputs", absl::StrCat("has ", request.inputs_size(), " entries; the server takes at most ",
                                               limits.max_inputs));
  }
  parsed.priority = request.priority() == 0 ? kDefaultPriority : request.priority();
  if (request.budget().cap_case() == v1::Budget::kMaxEdges) parsed.budget = BudgetKind::kEdges;
  if (request.budget().cap_case() == v1::Budget::kMaxDensity) parsed.budget = BudgetKind::kDensity;
  if (request.ensemble().has_seed()) {
    parsed.seed = request.ensemble().seed();
  } else {
    std::random_device device;
    parsed.seed = uint64_t{device()} << 32 | device();
  }
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

uint64_t EdgesOfDensity(double density, uint64_t pairs) {
  constexpr uint64_t kExact = uint64_t{1} << 53;  // whole numbers up to here are doubles
  uint64_t edges = std::min(pairs, static_cast<uint64_t>(density * static_cast<double>(pairs)));
  if (pairs > kExact) return edges;
  const double all = static_cast<double>(pairs);
  while (edges < pairs && static_cast<double>(edges + 1) / all <= density) ++edges;
  while (edges > 0 && static_cast<double>(edges) / all > density) --edges;
  return edges;
}

absl::StatusOr<ParsedRequest> ParseRequest(const v1::PredictRequest& request, const Model& model,
                                           const RequestLimits& limits, bool* budget_refused) {
  ParsedRequest parsed;
  if (absl::Status status = ParseShared(request, model, limits, parsed); !status.ok()) return status;
  parsed.inputs.reserve(static_cast<size_t>(request.inputs_size()));
  for (int i = 0; i < request.inputs_size(); ++i) {
    ModelInput input;
    input.seed = parsed.seed;
    input.first_sample = request.ensemble().first_sample();
    input.samples = std::max<uint32_t>(1, request.ensemble().samples());
    input.tolerance = request.ensemble().tolerance();
    input.dense = request.attention() == v1::DENSE;
    input.want_expected = parsed.outputs.layer_stats;
    input.want_key_degrees = parsed.outputs.key_degrees;
    input.want_graph = parsed.outputs.graph;
    if (absl::Status status = ParseInput(request.inputs(i), model, limits, absl::StrCat("inputs[", i, "]"), input);
        !status.ok()) {
      return status;
    }
    if (absl::Status status = ApplyBudget(request.budget(), model, static_cast<size_t>(i), input); !status.ok()) {
      if (budget_refused) *budget_refused = true;
      return status;
    }
    for (const ModelSequence& sequence : input.sequences) {
      parsed.tokens += static_cast<uint64_t>(sequence.valid());
      parsed.cost += static_cast<uint64_t>(sequence.length());
    }
    if (input.graph) parsed.cost += GivenEdges(*input.graph);
    parsed.inputs.push_back(std::move(input));
  }
  if (absl::Status status = CheckResultSize(parsed, model, limits); !status.ok()) return status;
  return parsed;
}

}  // namespace edgewise::server
