#include "server/observe/metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "server/base/status_details.h"
#include "server/observe/metric_families.h"

namespace edgewise::server {
namespace {

// Removed versions that wait for the page with their last counts: some 50 kB each.
constexpr size_t kMostWithoutPage = 16;

// Methods of both services, in the order of Rpc.
constexpr const char kOurs[] = "edgewise.v1.InferenceService", kOpen[] = "inference.GRPCInferenceService";
constexpr std::pair<const char*, const char*> kMethods[kRpcs] = {
    {kOurs, "Predict"},  {kOurs, "PredictStream"}, {kOurs, "Generate"}, {kOurs, "ListModels"},
    {kOurs, "GetModel"}, {kOpen, "ModelInfer"},    {kOpen, "_other"}};

// Codes and reasons of refusals that clients meet. Their series exist from the start, so that the first refusal shows.
constexpr std::pair<const char*, const char*> kRefusals[] = {{"INVALID_ARGUMENT", "invalid"},
                                                             {"INVALID_ARGUMENT", "budget"},
                                                             {"NOT_FOUND", "invalid"},
                                                             {"RESOURCE_EXHAUSTED", "queue_full"},
                                                             {"RESOURCE_EXHAUSTED", "oom"},
                                                             {"RESOURCE_EXHAUSTED", "deadline"},
                                                             {"RESOURCE_EXHAUSTED", "invalid"},
                                                             {"DEADLINE_EXCEEDED", "deadline"},
                                                             {"CANCELLED", "cancelled"},
                                                             {"UNAVAILABLE", "draining"},
                                                             {"UNAVAILABLE", "not_ready"},
                                                             {"UNAUTHENTICATED", "unauthenticated"},
                                                             {"UNIMPLEMENTED", "not_served"},
                                                             {"INTERNAL", "failed"},
                                                             {"400", "invalid"},
                                                             {"400", "budget"},
                                                             {"401", "unauthenticated"},
                                                             {"403", "invalid"},
                                                             {"404", "invalid"},
                                                             {"404", "not_served"},
                                                             {"405", "not_served"},
                                                             {"408", "deadline"},
                                                             {"413", "invalid"},
                                                             {"415", "invalid"},
                                                             {"422", "invalid"},
                                                             {"429", "queue_full"},
                                                             {"429", "oom"},
                                                             {"429", "deadline"},
                                                             {"499", "cancelled"},
                                                             {"500", "failed"},
                                                             {"503", "draining"},
                                                             {"503", "not_ready"},
                                                             {"504", "deadline"}};

// Pages show histograms without buckets as what they are.
void MakeSummaries(std::vector<prometheus::MetricFamily>& families) {
  for (prometheus::MetricFamily& family : families) {
    if (family.type != prometheus::MetricType::Histogram) continue;
    for (prometheus::ClientMetric& metric : family.metric) {
      if (metric.histogram.bucket.size() > 1) continue;  // that of +Inf
      family.type = prometheus::MetricType::Summary;
      metric.summary.sample_count = metric.histogram.sample_count;
      metric.summary.sample_sum = metric.histogram.sample_sum;
    }
  }
}

}  // namespace

Metrics::Metrics(std::function<Time()> clock) : families_(std::make_unique<MetricFamilies>(std::move(clock))) {
  families_->build_info
      .Add({{"version", EDGEWISE_VERSION},
            {"revision", EDGEWISE_REVISION},
            {"grpc", EDGEWISE_GRPC_VERSION},
            {"cuda", EDGEWISE_CUDA_VERSION},
            {"compiler", EDGEWISE_COMPILER}})
      .Set(1.0);
  for (const auto& [code, reason] : kRefusals) families_->refusals.Add({{"code", code}, {"reason", reason}});
  other_ = std::make_shared<ModelMetrics>(*families_, "_other", "_other");
  families_->other = other_.get();
  call_memory_ = &families_->call_memory.Add({});
  call_memory_limit_ = &families_->call_memory_limit.Add({});
  cache_ = &families_->cache.Add({});
  cache_limit_ = &families_->cache_limit.Add({});
  connections_ = &families_->connections.Add({});
  preparing_ = &families_->preparing.Add({});
  read_delay_ = &families_->read_delay.Add({});
  utilization_ = &families_->utilization.Add({});
  for (const char* kind : {"tokens", "certificates"}) {
    for (const char* result : {"ok", "error"}) families_->secret_loads.Add({{"kind", kind}, {"result", result}});
  }
  for (size_t method = 0; method < std::size(kMethods); ++method) {
    for (size_t code = 0; code < kCodes.size(); ++code) {
      families_->rpcs[method][code] = &families_->rpc_requests.Add(
          {{"service", kMethods[method].first}, {"method", kMethods[method].second}, {"code", CodeName(code)}});
    }
  }
}

Metrics::~Metrics() = default;

std::shared_ptr<ModelMetrics> Metrics::ForModel(const std::string& model, int64_t version) {
  const absl::MutexLock lock(&mutex_);
  const auto known = versions_.find({model, version});
  if (known != versions_.end()) return known->second;
  if (const Versions left = TakeLeft(kMostWithoutPage); !left.empty()) {
    const absl::WriterMutexLock alone(&families_->mutex);
    for (const auto& [_, metrics] : left) metrics->RemoveAll();
  }
  return versions_[{model, version}] = std::make_shared<ModelMetrics>(*families_, model, std::to_string(version));
}

// Who holds none of them gets none but by ForModel, which waits: a count of one is final.
Metrics::Versions Metrics::TakeLeft(size_t spared) const {
  const auto is_left = [](const auto& version) { return version.second.use_count() == 1; };
  Versions left;
  if (std::count_if(versions_.begin(), versions_.end(), is_left) <= static_cast<std::ptrdiff_t>(spared)) return left;
  for (auto version = versions_.begin(); version != versions_.end();) {
    const auto next = std::next(version);
    if (is_left(*version)) left.insert(versions_.extract(version));
    version = next;
  }
  return left;
}

void Metrics::CountRpc(Rpc rpc, absl::StatusCode code) {
  const MetricsEvent event(families_->mutex);
  families_->rpcs[static_cast<size_t>(rpc)][CodeIndex(code)]->Increment();
}

void Metrics::CountRefusal(const absl::Status& status, int http_code) {
  const std::string code = http_code != 0 ? std::to_string(http_code) : absl::StatusCodeToString(status.code());
  const MetricsEvent event(families_->mutex);
  families_->refusals.Add({{"code", code}, {"reason", RefusalReason(status)}}).Increment();
}

void Metrics::ExpectHttp(std::string_view route) {
  const MetricsEvent event(families_->mutex);
  for (const char* code : {"2xx", "4xx", "5xx"}) {
    families_->http_requests.Add({{"route", std::string(route)}, {"code", code}});
  }
}

void Metrics::CountHttp(std::string_view route, int code) {
  const MetricsEvent event(families_->mutex);
  const char* kind = code < 400 ? "2xx" : code < 500 ? "4xx" : "5xx";
  families_->http_requests.Add({{"route", std::string(route)}, {"code", kind}}).Increment();
}

void Metrics::CountSecretLoad(std::string_view kind, bool ok) {
  const MetricsEvent event(families_->mutex);
  families_->secret_loads.Add({{"kind", std::string(kind)}, {"result", ok ? "ok" : "error"}}).Increment();
}

void Metrics::SetTransport(uint64_t call_memory, uint64_t call_memory_limit, size_t connections, int64_t preparing,
                           double read_delay_seconds) {
  const MetricsEvent event(families_->mutex);
  call_memory_->Set(static_cast<double>(call_memory));
  call_memory_limit_->Set(static_cast<double>(call_memory_limit));
  connections_->Set(static_cast<double>(connections));
  preparing_->Set(static_cast<double>(preparing));
  read_delay_->Set(read_delay_seconds);
}

void Metrics::SetCache(uint64_t bytes, uint64_t limit) {
  const MetricsEvent event(families_->mutex);
  cache_->Set(static_cast<double>(bytes));
  cache_limit_->Set(static_cast<double>(limit));
}

void Metrics::SetWorkingMemory(uint64_t bytes) {
  const MetricsEvent event(families_->mutex);
  families_->working_memory.Add({}).Set(static_cast<double>(bytes));
}

void Metrics::SetDeviceMemory(const DeviceMemory& memory, uint64_t cache) {
  // The numbers are not of one moment: what would be below 0 is 0.
  const auto less = [](uint64_t all, uint64_t part) { return all - std::min(all, part); };
  const uint64_t calls = less(memory.in_use, memory.weights);
  const uint64_t ours = memory.in_use + memory.kept;
  const MetricsEvent event(families_->mutex);
  for (const auto& [kind, bytes] : {std::pair("weights", std::min(memory.weights, memory.in_use)),
                                    {"cache", std::min(cache, calls)},
                                    {"scratch", less(calls, cache)},
                                    {"kept", memory.kept},
                                    {"other", less(memory.total, ours + memory.free)},
                                    {"free", memory.free}}) {
    families_->device_memory.Add({{"kind", kind}}).Set(static_cast<double>(bytes));
  }
}

std::string Metrics::Render() const {
  std::vector<prometheus::MetricFamily> families;
  {
    const absl::MutexLock lock(&mutex_);
    const Versions left = TakeLeft(0);  // this page is their last
    absl::WriterMutexLock alone(&families_->mutex);
    utilization_->Set(families_->busy.At(families_->clock()));
    families = families_->registry.Collect();
    for (const auto& [version, metrics] : left) metrics->RemoveAll();
  }
  MakeSummaries(families);
  for (prometheus::MetricFamily& family : ProcessMetrics()) families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace edgewise::server
