#include "server/schedule/degrade.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "server/models/repository.h"

namespace edgewise::server {
namespace {

constexpr double kFewest = 1.0 / 16;  // of the edges expected: fewer save next to nothing
constexpr double kGain = 0.1;         // of a sample's seconds: what the fewest edges have to save
constexpr double kRungs = 8.0;        // caps to each half
// Factors of the time until the deadline: the samples of a request may be predicted to take that long. The first is for
// requests that can end after every wave, the second for those that can end only with the last of their inputs.
constexpr double kHopeful = 1.25, kCareful = 0.8;

// Expected edges of one sample of all inputs.
double EdgesWithin(const CapRange& caps, double cap) {
  double edges = 0.0;
  for (const CapRange::Input& input : caps.inputs) {
    edges += std::min(input.edges, static_cast<double>(caps.EdgesAt(cap, input.pairs)));
  }
  return edges;
}

// Not where something else than the model's own rule says which edges there are, not where a cap keeps the most
// probable of all that are drawn, and not for the windows of a text, which would have to run at once.
bool HasOwnEdges(const ModelInput& input, const ModelConfig& config) {
  const bool windows = config.task == ModelTask::kCausalLm && input.sequences.size() > 1;
  const bool own = !input.dense && input.attention == nullptr && !input.graph.has_value();
  return own && input.keep == CapRule::kRandom && !windows;
}

// `ones`: the demand of one sample of each input. No inputs in the range: there is no lower cap.
CapRange CapsOf(const Model& model, const Work& work, const std::vector<Demand>& ones) {
  CapRange caps{.by_density = work.budget != BudgetKind::kEdges};
  for (size_t i = 0; i < ones.size(); ++i) {
    const ModelInput& input = work.inputs[i];
    if (!HasOwnEdges(input, model.config())) return {};
    const double unit = caps.by_density ? ones[i].pairs : 1.0;
    caps.inputs.push_back({static_cast<uint64_t>(std::llround(ones[i].pairs)), ones[i].edges});
    caps.most = std::max(caps.most, ones[i].edges / unit);
    caps.least = std::max(caps.least, static_cast<double>(std::max<uint64_t>(1, model.LeastEdges(input))) / unit);
  }
  caps.least = std::max(caps.least, caps.by_density ? kFewest * caps.most : std::ceil(kFewest * caps.most));
  return caps.least < caps.most ? caps : CapRange();
}

// Seconds of one sample grow in a line with its edges.
double SecondsOfOne(const Forecast& forecast, double edges) {
  const double least = EdgesWithin(forecast.caps, forecast.caps.least);
  const double share = (edges - least) / (forecast.one.edges - least);
  return forecast.least_seconds + share * (forecast.one_seconds - forecast.least_seconds);
}

double CapWithin(const Forecast& forecast, double seconds) {
  const CapRange& caps = forecast.caps;
  for (double rung = std::ceil(kRungs * std::log2(caps.most)) - 1; std::exp2(rung / kRungs) > caps.least; --rung) {
    const double cap = caps.by_density ? std::exp2(rung / kRungs) : std::floor(std::exp2(rung / kRungs));
    if (SecondsOfOne(forecast, EdgesWithin(caps, cap)) <= seconds) return cap;
  }
  return caps.least;
}

void LowerSamples(Forecast& forecast, uint32_t samples) {
  const double share = static_cast<double>(samples - 1) / (forecast.samples - 1);
  const auto lower = [share](double& value, double one) { value = one + share * (value - one); };
  lower(forecast.demand.passes, forecast.one.passes);
  lower(forecast.demand.tokens, forecast.one.tokens);
  lower(forecast.demand.pairs, forecast.one.pairs);
  lower(forecast.demand.edges, forecast.one.edges);
  lower(forecast.seconds, forecast.one_seconds);
  forecast.samples = samples;
}

// Lowers the cap of the one sample that is left.
void LowerCap(Forecast& forecast, double cap) {
  const double edges = EdgesWithin(forecast.caps, cap);
  forecast.one_seconds = SecondsOfOne(forecast, edges);
  forecast.one.edges = edges;
  forecast.demand = forecast.one;
  forecast.seconds = forecast.one_seconds;
  forecast.cap = cap;
}

}  // namespace

Forecast MakeForecast(const LoadedModel& loaded, const Work& work) {
  const CostModel& costs = *loaded.costs;
  Forecast forecast;
  if (work.generation) {
    forecast.samples = work.generation->options.samples;
    forecast.seconds =
        costs.PredictGeneration(static_cast<double>(work.tokens), work.generation->options.max_new_tokens);
    return forecast;
  }
  forecast.samples = work.inputs.front().samples;
  std::vector<Demand> ones;
  for (const ModelInput& input : work.inputs) {
    const Demand demand = costs.Expected(*loaded.model, input);
    forecast.demand += demand;
    if (work.may_degrade) forecast.one += ones.emplace_back(demand.OfOneSample());
  }
  forecast.seconds = costs.Predict(forecast.demand);
  if (!work.may_degrade) return forecast;
  forecast.one_seconds = forecast.least_seconds = costs.Predict(forecast.one);
  CapRange caps = CapsOf(*loaded.model, work, ones);
  if (caps.inputs.empty()) return forecast;
  Demand least = forecast.one;
  least.edges = EdgesWithin(caps, caps.least);
  const double seconds = costs.Predict(least);
  if (seconds > (1.0 - kGain) * forecast.one_seconds) return forecast;
  forecast.least_seconds = seconds;
  forecast.caps = std::move(caps);
  return forecast;
}

double SlackOf(const Ticket& ticket, Time now) {
  return ticket.deadline == Time::max() ? std::numeric_limits<double>::infinity() : Seconds(ticket.deadline - now);
}

double LeastSeconds(const Request& request) {
  return request.work.may_degrade ? request.forecast.least_seconds : request.forecast.seconds;
}

double SpareSeconds(const Request& request, Time now) {
  return std::max(0.0, std::min(request.forecast.seconds, SlackOf(request.ticket, now)) - LeastSeconds(request));
}

Choice ChoiceWithin(const Request& request, double seconds, double first) {
  const Forecast& forecast = request.forecast;
  if (forecast.one_seconds > first && forecast.one_seconds > forecast.least_seconds)
    return {1, CapWithin(forecast, first)};
  const double more = forecast.seconds - forecast.one_seconds;  // than one sample
  if (seconds >= forecast.seconds || !(more > 0.0)) return {forecast.samples};
  const double share = std::max(0.0, seconds - forecast.one_seconds) / more;
  return {1 + static_cast<uint32_t>(share * (forecast.samples - 1))};
}

void LowerToDeadline(Request& request, int64_t max_wave_tokens, Time now) {
  if (!request.work.may_degrade || request.ticket.deadline == Time::max()) return;
  const bool at_once = request.work.tokens <= static_cast<uint64_t>(max_wave_tokens);
  const double slack = SlackOf(request.ticket, now);
  const double first = (slack - Seconds(kAnswer)) / request.ticket.model->costs->Spread();
  Lower(request, ChoiceWithin(request, slack * (at_once ? kHopeful : kCareful), first), DegradedBy::kDeadline);
}

void Lower(Request& request, const Choice& choice, DegradedBy reason) {
  Forecast& forecast = request.forecast;
  if (!request.work.may_degrade) return;
  const uint32_t samples = std::max(choice.samples, 1u);
  const bool fewer_edges = choice.cap > 0.0 && (forecast.cap == 0.0 || choice.cap < forecast.cap);
  if (samples >= forecast.samples && !fewer_edges) return;
  if (samples < forecast.samples) LowerSamples(forecast, samples);
  if (fewer_edges) LowerCap(forecast, choice.cap);
  forecast.reason = reason;
}

}  // namespace edgewise::server
