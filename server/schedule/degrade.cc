#include "server/schedule/degrade.h"

#include <algorithm>
#include <limits>

namespace edgewise::server {

double SlackOf(const Request& request, Time now) {
  return request.deadline == Time::max() ? std::numeric_limits<double>::infinity() : Seconds(request.deadline - now);
}

double LeastSeconds(const Request& request) {
  return request.consent.given ? request.consent.least_seconds : request.predicted_seconds;
}

double SpareSeconds(const Request& request, Time now) {
  return std::max(0.0, std::min(request.predicted_seconds, SlackOf(request, now)) - LeastSeconds(request));
}

uint32_t SamplesWithin(const Request& request, double seconds) {
  const Consent& consent = request.consent;
  const double more = request.predicted_seconds - consent.least_seconds;  // than one sample
  if (seconds >= request.predicted_seconds || !(more > 0.0)) return consent.samples;
  const double share = std::max(0.0, seconds - consent.least_seconds) / more;
  return 1 + static_cast<uint32_t>(share * (consent.samples - 1));
}

void LowerSamples(Request& request, uint32_t samples, DegradedBy reason) {
  Consent& consent = request.consent;
  samples = std::max(samples, 1u);
  if (!consent.given || samples >= consent.samples) return;
  const double share = static_cast<double>(samples - 1) / (consent.samples - 1);
  const auto lower = [share](double& value, double least) { value = least + share * (value - least); };
  lower(request.demand.passes, consent.least.passes);
  lower(request.demand.tokens, consent.least.tokens);
  lower(request.demand.pairs, consent.least.pairs);
  lower(request.demand.edges, consent.least.edges);
  lower(request.predicted_seconds, consent.least_seconds);
  for (ModelInput& input : request.inputs) input.samples = samples;
  consent.samples = samples;
  consent.reason = reason;
}

}  // namespace edgewise::server
