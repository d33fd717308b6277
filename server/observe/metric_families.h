// Names, help and buckets of every metric. Only metrics.cc includes this, and with it prometheus-cpp.
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

using Counters = prometheus::Family<prometheus::Counter>;
using Gauges = prometheus::Family<prometheus::Gauge>;
using Histograms = prometheus::Family<prometheus::Histogram>;
using Labels = prometheus::Labels;
using Buckets = prometheus::Histogram::BucketBoundaries;

// The status codes that a request can end with; others count as INTERNAL.
inline constexpr std::array<absl::StatusCode, 10> kCodes = {
    absl::StatusCode::kOk,           absl::StatusCode::kCancelled,          absl::StatusCode::kInvalidArgument,
    absl::StatusCode::kNotFound,     absl::StatusCode::kDeadlineExceeded,   absl::StatusCode::kResourceExhausted,
    absl::StatusCode::kInternal,     absl::StatusCode::kFailedPrecondition, absl::StatusCode::kUnavailable,
    absl::StatusCode::kUnimplemented};
size_t CodeIndex(absl::StatusCode code);  // in kCodes

inline constexpr size_t kRpcs = 5;  // enum Rpc

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
  Gauges& connections;
  Gauges& preparing;
  Gauges& read_delay;
  Gauges& utilization;
  Counters& secret_loads;
  Counters& rpc_requests;
  std::array<std::array<prometheus::Counter*, kCodes.size()>, kRpcs> rpcs{};  // the series of rpc_requests

  Counters& requests;
  Counters& items;
  Counters& executions;
  Histograms& request_duration;
  Histograms& queue_duration;
  Histograms& stage_duration;
  Gauges& in_flight;
  Gauges& queue_requests;
  Gauges& queue_tokens;
  Gauges& queue_seconds;
  Counters& device;
  Gauges& capacity;
  Counters& rejections;
  Counters& cancelled_compute;
  Histograms& prediction;
  Histograms& batch_items;
  Histograms& batch_tokens;
  Counters& tokens;
  Histograms& input_length;

  Counters& generations;
  Histograms& generation_duration;
  Gauges& generations_running;
  Counters& generated_tokens;
  Counters& prompt_tokens;
  Histograms& first_token_duration;
  Histograms& token_duration;

  Counters& edges;
  Counters& pairs;
  Counters& isolated;
  Histograms& input_density;
  Histograms& input_edges;
  Histograms& input_isolated;
  Counters& budget_requests;
  Histograms& budget_utilization;
  Counters& budget_capped;
  Counters& degraded;
  Counters& shadow_requests;
  Counters& shadow_disagreements;
  Histograms& shadow_distance;
  Counters& shadow_device;
  Histograms& ensemble_samples;
  Histograms& ensemble_disagreement;
  Counters& flops;
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

// base^first, base^(first+1), ..., base^last.
Buckets PowersOf(double base, int first, int last);

inline const Buckets kDurationBuckets = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                         0.1,    0.25,    0.5,    1,     2.5,    5,     10,   30};
inline const Buckets kRatioBuckets = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2,
                                      0.3,   0.4,   0.5,   0.6,  0.7,  0.8,  0.9, 1};
inline const Buckets kUtilizationBuckets = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.01, 1.05, 1.25, 2};
inline const Buckets kPredictionBuckets = {0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 4};

// Metrics of this process, read from the kernel and from the allocator at every scrape.
std::vector<prometheus::MetricFamily> ProcessMetrics();

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_OBSERVE_METRIC_FAMILIES_H_
