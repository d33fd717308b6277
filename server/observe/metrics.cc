#include "server/observe/metrics.h"

#include <prometheus/text_serializer.h>

#include <array>
#include <iterator>
#include <utility>

#include "server/observe/metric_families.h"

namespace edgewise::server {
namespace {

constexpr const char* kReasons[] = {"queue_full", "deadline", "cancelled", "draining",
                                    "invalid",    "budget",   "oom",       "not_ready"};
constexpr const char* kMethods[] = {"Predict", "PredictStream", "Generate", "ListModels", "GetModel"};

thread_local absl::Mutex* recording = nullptr;  // the mutex that this thread shares

std::string CodeName(size_t index) { return absl::StatusCodeToString(kCodes[index]); }

}  // namespace

MetricsEvent::MetricsEvent(absl::Mutex& mutex) : mutex_(mutex), outer_(std::exchange(recording, &mutex)) {
  if (outer_ != &mutex_) mutex_.ReaderLock();
}

MetricsEvent::~MetricsEvent() {
  if (outer_ != &mutex_) mutex_.ReaderUnlock();
  recording = outer_;
}

struct ModelMetrics::Series {
  Labels labels;
  std::array<prometheus::Counter*, kCodes.size()> requests{};
  std::array<prometheus::Counter*, std::size(kReasons)> rejections{};
  prometheus::Histogram* request_duration = nullptr;
  std::array<prometheus::Counter*, kCodes.size()> generations{};
  prometheus::Histogram* generation_duration = nullptr;
  prometheus::Counter* loads_ok = nullptr;
  prometheus::Counter* loads_error = nullptr;
  prometheus::Gauge* load_duration = nullptr;
  prometheus::Gauge* ready = nullptr;
  prometheus::Gauge* info = nullptr;    // while it is loaded
  prometheus::Gauge* memory = nullptr;  // from the first load on
};

ModelMetrics::ModelMetrics(MetricFamilies& families, std::string model, std::string version)
    : families_(families), model_(std::move(model)), version_(std::move(version)), series_(std::make_unique<Series>()) {
  const MetricsEvent event(families_.mutex);
  Series& s = *series_;
  s.labels = {{"model", model_}, {"version", version_}};
  for (size_t i = 0; i < kCodes.size(); ++i) {
    s.requests[i] = &families_.requests.Add(With(s.labels, "code", CodeName(i)));
    s.generations[i] = &families_.generations.Add(With(s.labels, "code", CodeName(i)));
  }
  for (size_t i = 0; i < std::size(kReasons); ++i) {
    s.rejections[i] = &families_.rejections.Add(With(s.labels, "reason", kReasons[i]));
  }
  s.request_duration = &families_.request_duration.Add(s.labels, kDurationBuckets);
  s.generation_duration = &families_.generation_duration.Add(s.labels, kDurationBuckets);
  if (version_ == "_other") return;
  s.loads_ok = &families_.model_loads.Add(With(s.labels, "result", "ok"));
  s.loads_error = &families_.model_loads.Add(With(s.labels, "result", "error"));
  s.load_duration = &families_.model_load_duration.Add(s.labels);
  s.ready = &families_.model_ready.Add(s.labels);
}

ModelMetrics::~ModelMetrics() = default;

MetricsEvent ModelMetrics::Event() const { return MetricsEvent(families_.mutex); }

std::unique_ptr<LoadedMetrics> ModelMetrics::Loaded(const Model& model) {
  const MetricsEvent event(families_.mutex);
  const ModelConfig& config = model.config();
  const std::string device = model.backend().device();
  Labels info = series_->labels;
  info["attention"] = AttentionName(config);
  info["layers"] = std::to_string(config.num_hidden_layers);
  info["heads"] = std::to_string(config.num_attention_heads);
  info["dtype"] = device.substr(device.rfind('/') + 1);
  info["device"] = device;
  info["sha256"] = model.sha256();
  if (series_->info) families_.model_info.Remove(series_->info);
  series_->info = &families_.model_info.Add(info);
  series_->info->Set(1.0);
  series_->memory = &families_.memory.Add(With(With(series_->labels, "device", device), "kind", "weights"));
  series_->memory->Set(static_cast<double>(model.parameters()) * sizeof(float));
  return std::make_unique<LoadedMetrics>(families_, model_, version_, model);
}

void ModelMetrics::SetReady(bool ready) {
  const MetricsEvent event(families_.mutex);
  series_->ready->Set(ready ? 1.0 : 0.0);
}

void ModelMetrics::Removed() {
  const MetricsEvent event(families_.mutex);
  SetReady(false);
  if (series_->memory) series_->memory->Set(0.0);
  if (series_->info) families_.model_info.Remove(series_->info);
  series_->info = nullptr;
}

void ModelMetrics::CountLoad(bool ok, double seconds) {
  const MetricsEvent event(families_.mutex);
  (ok ? series_->loads_ok : series_->loads_error)->Increment();
  series_->load_duration->Set(seconds);
}

void ModelMetrics::CountRequest(absl::StatusCode code, double seconds) {
  const MetricsEvent event(families_.mutex);
  series_->requests[CodeIndex(code)]->Increment();
  series_->request_duration->Observe(seconds);
}

void ModelMetrics::CountGeneration(absl::StatusCode code, double seconds) {
  const MetricsEvent event(families_.mutex);
  series_->generations[CodeIndex(code)]->Increment();
  series_->generation_duration->Observe(seconds);
}

void ModelMetrics::CountRejection(Rejection reason) {
  const MetricsEvent event(families_.mutex);
  series_->rejections[static_cast<size_t>(reason)]->Increment();
}

Metrics::Metrics() : families_(std::make_unique<MetricFamilies>()) {
  families_->build_info
      .Add({{"version", EDGEWISE_VERSION},
            {"revision", EDGEWISE_REVISION},
            {"grpc", EDGEWISE_GRPC_VERSION},
            {"cuda", EDGEWISE_CUDA_VERSION},
            {"compiler", EDGEWISE_COMPILER}})
      .Set(1.0);
  other_ = std::make_unique<ModelMetrics>(*families_, "_other", "_other");
  for (size_t method = 0; method < std::size(kMethods); ++method) {
    for (absl::StatusCode code : kCodes) CountRpc(static_cast<Rpc>(method), code, 0);
  }
}

Metrics::~Metrics() = default;

ModelMetrics& Metrics::ForModel(const std::string& model, int64_t version) {
  const absl::MutexLock lock(&mutex_);
  std::unique_ptr<ModelMetrics>& metrics = models_[{model, version}];
  if (!metrics) metrics = std::make_unique<ModelMetrics>(*families_, model, std::to_string(version));
  return *metrics;
}

void Metrics::CountRpc(Rpc rpc, absl::StatusCode code, int calls) {
  const MetricsEvent event(families_->mutex);
  families_->rpc_requests
      .Add({{"service", "edgewise.v1.InferenceService"},
            {"method", kMethods[static_cast<size_t>(rpc)]},
            {"code", CodeName(CodeIndex(code))}})
      .Increment(calls);
}

std::string Metrics::Render() const {
  std::vector<prometheus::MetricFamily> families;
  {
    absl::WriterMutexLock alone(&families_->mutex);
    families = families_->registry.Collect();
  }
  for (prometheus::MetricFamily& family : ProcessMetrics()) families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace edgewise::server
