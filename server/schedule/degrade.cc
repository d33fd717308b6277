#include "server/schedule/degrade.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/forward/edge_budget.h"
#include "server/models/repository.h"

namespace edgewise::server {
namespace {

constexpr double kFewest = 1.0 / 16;  // of the edges expected: fewer save next to nothing
constexpr double kGain = 0.1;         // of a sample's seconds: what the fewest edges have to save
constexpr double kRungs = 8.0;        // caps to each half
// Factors of the time until the deadline: the samples of a request may be predicted to take that long. The first is for
// requests that can end after every wave, the second for those that can end only with the last of their inputs.
constexpr double kHopeful = 1.25, kCareful = 0.8;

uint64_t EdgesAt(const CapRange& caps, double cap, uint64_t pairs) {
  return caps.by_density ? EdgesOfDensity(cap, pairs) : static_cast<uint64_t>(cap);
}

// Expected edges of one sample of all inputs.
double EdgesWithin(const CapRange& caps, double cap) {
  double edges = 0.0;
  for (const CapRange::Input& input : caps.inputs) {
    edges += std::min(input.edges, static_cast<double>(EdgesAt(caps, cap, input.pairs)));
  }
  return edges;
}

// Not where something else than the model's own rule says which edges there are, not where a cap keeps the most
// probable of all that are drawn, and not for the windows of a text, which would have to run at once.
bool HasOwnEdges(const ModelInput& input, const ModelConfig& config) {
  const bool windows = config.task == ModelTask::kCausalLm && input.sequences.size() > 1;
  const bool own = !input.dense && input.attention == nullptr && !input.graph.has_value();
  return own && input.keep == KeepRule::kRandom && !windows;
}

// No inputs: there is no lower cap.
CapRange CapsOf(const Request& request) {
  const Model& model = *request.model->model;
  CapRange caps{.by_density = request.budget != BudgetKind::kEdges};
  for (const ModelInput& input : request.inputs) {
    if (!HasOwnEdges(input, model.config())) return {};
    const uint64_t pairs = model.Pairs(input);
    const double unit = caps.by_density ? static_cast<double>(pairs) : 1.0;
    const double edges = request.model->costs->Expected(model, input).OfOneSample().edges;
    caps.inputs.push_back({pairs, edges});
    caps.most = std::max(caps.most, edges / unit);
    caps.least = std::max(caps.least, static_cast<double>(std::max<uint64_t>(1, model.LeastEdges(input))) / unit);
  }
  caps.least = std::max(caps.least, caps.by_density ? kFewest * caps.most : std::ceil(kFewest * caps.most));
  return caps.least < caps.most ? caps : CapRange();
}

// Seconds of one sample grow in a line with its edges.
double SecondsOfOne(const Consent& consent, double edges) {
  const double least = EdgesWithin(consent.caps, consent.caps.least);
  const double share = (edges - least) / (consent.one.edges - least);
  return consent.least_seconds + share * (consent.one_seconds - consent.least_seconds);
}

double CapWithin(const Consent& consent, double seconds) {
  const CapRange& caps = consent.caps;
  for (double rung = std::ceil(kRungs * std::log2(caps.most)) - 1; std::exp2(rung / kRungs) > caps.least; --rung) {
    const double cap = caps.by_density ? std::exp2(rung / kRungs) : std::floor(std::exp2(rung / kRungs));
    if (SecondsOfOne(consent, EdgesWithin(caps, cap)) <= seconds) return cap;
  }
  return caps.least;
}

void LowerSamples(Request& request, uint32_t samples) {
  Consent& consent = request.consent;
  const double share = static_cast<double>(samples - 1) / (consent.samples - 1);
  const auto lower = [share](double& value, double one) { value = one + share * (value - one); };
  lower(request.demand.passes, consent.one.passes);
  lower(request.demand.tokens, consent.one.tokens);
  lower(request.demand.pairs, consent.one.pairs);
  lower(request.demand.edges, consent.one.edges);
  lower(request.predicted_seconds, consent.one_seconds);
  for (ModelInput& input : request.inputs) input.samples = samples;
  consent.samples = samples;
}

// Lowers the cap of the one sample that is left.
void LowerCap(Request& request, double cap) {
  Consent& consent = request.consent;
  const double edges = EdgesWithin(consent.caps, cap);
  consent.one_seconds = SecondsOfOne(consent, edges);
  consent.one.edges = edges;
  request.demand = consent.one;
  request.predicted_seconds = consent.one_seconds;
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    uint64_t& max_edges = request.inputs[i].max_edges;
    max_edges = std::min(max_edges, EdgesAt(consent.caps, cap, consent.caps.inputs[i].pairs));
  }
  consent.cap = cap;
}

}  // namespace

void PredictCost(Request& request) {
  const CostModel& costs = *request.model->costs;
  Consent& consent = request.consent;
  for (const ModelInput& input : request.inputs) {
    const Demand demand = costs.Expected(*request.model->model, input);
    request.demand += demand;
    if (consent.given) consent.one += demand.OfOneSample();
  }
  request.predicted_seconds = costs.Predict(request.demand);
  if (!consent.given) return;
  consent.one_seconds = consent.least_seconds = costs.Predict(consent.one);
  CapRange caps = CapsOf(request);
  if (caps.inputs.empty()) return;
  Demand least = consent.one;
  least.edges = EdgesWithin(caps, caps.least);
  const double seconds = costs.Predict(least);
  if (seconds > (1.0 - kGain) * consent.one_seconds) return;
  consent.least_seconds = seconds;
  consent.caps = std::move(caps);
}

double SlackOf(const Request& request, Time now) {
  return request.deadline == Time::max() ? std::numeric_limits<double>::infinity() : Seconds(request.deadline - now);
}

double LeastSeconds(const Request& request) {
  return request.consent.given ? request.consent.least_seconds : request.predicted_seconds;
}

double SpareSeconds(const Request& request, Time now) {
  return std::max(0.0, std::min(request.predicted_seconds, SlackOf(request, now)) - LeastSeconds(request));
}

Choice ChoiceWithin(const Request& request, double seconds, double first) {
  const Consent& consent = request.consent;
  if (consent.one_seconds > first && consent.one_seconds > consent.least_seconds) return {1, CapWithin(consent, first)};
  const double more = request.predicted_seconds - consent.one_seconds;  // than one sample
  if (seconds >= request.predicted_seconds || !(more > 0.0)) return {consent.samples};
  const double share = std::max(0.0, seconds - consent.one_seconds) / more;
  return {1 + static_cast<uint32_t>(share * (consent.samples - 1))};
}

void LowerToDeadline(Request& request, int64_t max_wave_tokens, Time now) {
  if (!request.consent.given || request.deadline == Time::max()) return;
  const bool at_once = request.tokens <= static_cast<uint64_t>(max_wave_tokens);
  const double slack = SlackOf(request, now);
  const double first = (slack - Seconds(kAnswer)) / request.model->costs->Spread();
  Lower(request, ChoiceWithin(request, slack * (at_once ? kHopeful : kCareful), first), DegradedBy::kDeadline);
}

void Lower(Request& request, const Choice& choice, DegradedBy reason) {
  Consent& consent = request.consent;
  if (!consent.given) return;
  const uint32_t samples = std::max(choice.samples, 1u);
  const bool fewer_edges = choice.cap > 0.0 && (consent.cap == 0.0 || choice.cap < consent.cap);
  if (samples >= consent.samples && !fewer_edges) return;
  if (samples < consent.samples) LowerSamples(request, samples);
  if (fewer_edges) LowerCap(request, choice.cap);
  consent.reason = reason;
}

}  // namespace edgewise::server
