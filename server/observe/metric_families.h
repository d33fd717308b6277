// Names, help and buckets of every metric. Only the sources of metrics.h include this, and with it
// prometheus-cpp.
#ifndef EDGEWISE_SERVER_OBSERVE_METRIC_FAMILIES_H_
#define EDGEWISE_SERVER_OBSERVE_METRIC_FAMILIES_H_

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <array>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/observe/busy_share.h"

namespace edgewise::server {

class ModelMetrics;

using Counters = prometheus::Family<prometheus::Counter>;
using Gauges = prometheus::Family<prometheus::Gauge>;
using Histograms = prometheus::Family<prometheus::Histogram>;
// Histograms without buckets, which pages show as summaries: sum and count, two series.
using Summaries = prometheus::Family<prometheus::Histogram>;
using Labels = prometheus::Labels;
using Buckets = prometheus::Histogram::BucketBoundaries;

// The status codes that a request can end with; others count as INTERNAL. One for a model that is known never ends with
// the last.
inline constexpr std::array<absl::StatusCode, 10> kCodes = {
    absl::StatusCode::kOk,           absl::StatusCode::kCancelled,          absl::StatusCode::kInvalidArgument,
    absl::StatusCode::kNotFound,     absl::StatusCode::kDeadlineExceeded,   absl::StatusCode::kResourceExhausted,
    absl::StatusCode::kInternal,     absl::StatusCode::kFailedPrecondition, absl::StatusCode::kUnavailable,
    absl::StatusCode::kUnimplemented};
size_t CodeIndex(absl::StatusCode code);  // in kCodes
std::string CodeName(size_t index);       // of kCodes

inline constexpr size_t kRpcs = 7;  // enum Rpc

struct MetricFamilies {
  explicit MetricFamilies(std::function<Time()> clock);

  absl::Mutex mutex;  // shared by MetricsEvent, exclusive to a scrape
  prometheus::Registry registry;
  const std::function<Time()> clock;
  BusyShare busy;  // of the device, on requests and generations

  Gauges& build_info;
  Gauges& model_info;
  Gauges& model_ready;
  Counters& model_loads;
  Gauges& model_load_duration;
  Gauges& memory;
  Gauges& call_memory;
  Gauges& call_memory_limit;
  Gauges& cache;
  Gauges& cache_limit;
  Gauges& working_memory;
  Gauges& device_memory;
  Gauges& connections;
  Gauges& preparing;
  Gauges& read_delay;
  Gauges& utilization;
  Counters& secret_loads;
  Counters& rpc_requests;
  Counters& http_requests;
  Counters& refusals;
  std::array<std::array<prometheus::Counter*, kCodes.size()>, kRpcs> rpcs{};  // the series of rpc_requests
  ModelMetrics* other =
      nullptr;  // requests for models that are not known, and generations of those that do not generate

  Counters& requests;
  Counters& items;
  Counters& executions;
  Histograms& request_duration;
  Histograms& queue_duration;
  Counters& stage;
  Gauges& in_flight;
  Gauges& queue_requests;
  Gauges& queue_tokens;
  Gauges& queue_seconds;
  Counters& device;
  Gauges& capacity;
  Counters& rejections;
  Counters& cancelled_compute;
  Summaries& prediction;
  Counters& tokens;

  Counters& generations;
  Summaries& generation_duration;
  Gauges& generations_running;
  Counters& generated_tokens;
  Counters& prompt_tokens;
  Histograms& first_token_duration;
  Histograms& token_duration;

  Counters& edges;
  Counters& pairs;
  Counters& isolated;
  Histograms& input_density;
  Counters& budget_requests;
  Summaries& budget_utilization;
  Counters& budget_capped;
  Counters& degraded;
  Counters& shadow_requests;
  Counters& shadow_disagreements;
  Summaries& shadow_distance;
  Counters& shadow_device;
  Summaries& ensemble_samples;
  Summaries& ensemble_disagreement;
};

// The series of a version, which leave together. One thread at a time; no scrape may run while it removes.
class SeriesSet {
 public:
  // Adds the series, or finds it.
  template <typename Series, typename... Bounds>
  Series& Add(prometheus::Family<Series>& family, const Labels& labels, const Bounds&... bounds) {
    Series& series = family.Add(labels, bounds...);
    remove_[&series] = [&family, &series] { family.Remove(&series); };
    return series;
  }
  void Remove(const void* series) { remove_.extract(series).mapped()(); }
  void RemoveAll() {
    for (const auto& [series, remove] : std::exchange(remove_, {})) remove();
  }

 private:
  std::map<const void*, std::function<void()>> remove_;
};

inline Labels With(Labels labels, const char* name, std::string value) {
  labels[name] = std::move(value);
  return labels;
}

// Half a decade, or about that. With more of them a model that generates and has a shadow would have over 120 series.
inline const Buckets kDurationBuckets = {0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 5};
inline const Buckets kFirstTokenBuckets = {0.01, 0.03, 0.1, 0.3, 1, 5};
inline const Buckets kTokenBuckets = {0.005, 0.02, 0.05, 0.15, 0.5};
inline const Buckets kDensityBuckets = {0.01, 0.03, 0.1, 0.25, 0.5, 1};
inline const Buckets kNoBuckets = {};

// Metrics of this process, read from the kernel and from the allocator at every scrape.
std::vector<prometheus::MetricFamily> ProcessMetrics();

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_OBSERVE_METRIC_FAMILIES_H_
