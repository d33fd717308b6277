#include "server/observe/metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "model/kinds/patterns.h"
#include "server/observe/metric_families.h"

namespace edgewise::server {
namespace {

constexpr const char* kReasons[] = {"queue_full", "deadline", "cancelled", "draining",
                                    "invalid",    "budget",   "oom",       "not_ready"};
constexpr const char* kMethods[] = {"Predict", "PredictStream", "Generate", "ListModels", "GetModel"};

constexpr const char* kStages[] = {"input", "forward", "output"};
constexpr const char* kBudgetKinds[] = {"none", "edges", "density"};

thread_local absl::Mutex* recording = nullptr;  // the mutex that this thread shares

// Samples, or tokens of samples, whose most probable label is not the answer's. Values have no labels.
double Disagreement(const InputResult& result) {
  uint64_t differ = 0, total = 0;
  for (const SampleResult& sample : result.sample_results) {
    for (int32_t row = 0; row < result.rows; ++row) {
      if (result.label_id[row] < 0) continue;  // a pad
      const auto begin = sample.probabilities.begin() + static_cast<int64_t>(row) * result.labels;
      ++total;
      if (std::max_element(begin, begin + result.labels) - begin != result.label_id[row]) ++differ;
    }
  }
  return total == 0 ? 0.0 : static_cast<double>(differ) / static_cast<double>(total);
}

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

void ModelMetrics::CountRequest(Rpc rpc, absl::StatusCode code, double seconds) {
  const MetricsEvent event(families_.mutex);
  const bool generates = rpc == Rpc::kGenerate;
  (generates ? series_->generations : series_->requests)[CodeIndex(code)]->Increment();
  (generates ? series_->generation_duration : series_->request_duration)->Observe(seconds);
}

void ModelMetrics::CountRejection(Rejection reason) {
  const MetricsEvent event(families_.mutex);
  series_->rejections[static_cast<size_t>(reason)]->Increment();
}

struct LoadedMetrics::Series {
  struct Layer {
    prometheus::Counter *edges, *pairs, *isolated;
  };

  prometheus::Counter *items, *executions, *cancelled_compute, *tokens, *capped, *flops_executed, *flops_dense,
      *generated_tokens, *prompt_tokens;
  prometheus::Histogram *batch_items, *batch_tokens, *input_length, *density, *edges, *isolated, *utilization, *samples,
      *disagreement, *first_token, *token;
  prometheus::Gauge *in_flight, *queue_requests, *queue_tokens, *generations_running;
  std::array<prometheus::Histogram*, kPriorityLevels> queue{};
  std::array<prometheus::Histogram*, std::size(kStages)> stages{};
  std::array<prometheus::Counter*, std::size(kBudgetKinds)> budgets{};
  std::vector<Layer> layers;  // [num_hidden_layers]
  Layer generated{};          // rows of generated tokens, all layers together; null: the model generates nothing
};

LoadedMetrics::LoadedMetrics(MetricFamilies& families, const std::string& model, const std::string& version,
                             const Model& loaded)
    : mutex_(families.mutex), series_(std::make_unique<Series>()) {
  const MetricsEvent event(mutex_);
  Series& s = *series_;
  const std::string device = loaded.backend().device();
  const Labels base = {{"model", model}, {"version", version}};

  s.items = &families.items.Add(base);
  s.executions = &families.executions.Add(With(base, "device", device));
  s.cancelled_compute = &families.cancelled_compute.Add(base);
  s.tokens = &families.tokens.Add(base);
  s.capped = &families.budget_capped.Add(base);
  s.flops_executed = &families.flops.Add(With(base, "kind", "executed"));
  s.flops_dense = &families.flops.Add(With(base, "kind", "dense_equivalent"));
  s.batch_items = &families.batch_items.Add(base, PowersOf(2, 0, 10));
  s.batch_tokens = &families.batch_tokens.Add(base, PowersOf(2, 4, 20));
  s.input_length = &families.input_length.Add(base, PowersOf(2, 4, 15));
  s.density = &families.input_density.Add(base, kRatioBuckets);
  s.edges = &families.input_edges.Add(base, PowersOf(4, 4, 14));
  s.isolated = &families.input_isolated.Add(base, kRatioBuckets);
  s.utilization = &families.budget_utilization.Add(base, kUtilizationBuckets);
  s.samples = &families.ensemble_samples.Add(base, PowersOf(2, 0, 6));
  s.disagreement = &families.ensemble_disagreement.Add(base, kRatioBuckets);
  s.generated_tokens = &families.generated_tokens.Add(base);
  s.prompt_tokens = &families.prompt_tokens.Add(base);
  s.first_token = &families.first_token_duration.Add(base, kDurationBuckets);
  s.token = &families.token_duration.Add(base, kDurationBuckets);
  s.generations_running = &families.generations_running.Add(base);
  s.in_flight = &families.in_flight.Add(base);
  s.queue_requests = &families.queue_requests.Add(base);
  s.queue_tokens = &families.queue_tokens.Add(base);
  for (uint32_t level = 1; level <= kPriorityLevels; ++level) {
    s.queue[level - 1] = &families.queue_duration.Add(With(base, "priority", std::to_string(level)), kDurationBuckets);
  }
  for (size_t i = 0; i < std::size(kStages); ++i) {
    s.stages[i] = &families.stage_duration.Add(With(base, "stage", kStages[i]), kDurationBuckets);
  }
  for (size_t i = 0; i < std::size(kBudgetKinds); ++i) {
    s.budgets[i] = &families.budget_requests.Add(With(base, "kind", kBudgetKinds[i]));
  }
  s.layers.clear();
  for (int32_t layer = 0; layer < loaded.config().num_hidden_layers; ++layer) {
    const Labels labels = With(base, "layer", std::to_string(layer));
    s.layers.push_back({&families.edges.Add(labels), &families.pairs.Add(labels), &families.isolated.Add(labels)});
  }
  if (loaded.config().task == ModelTask::kCausalLm) {
    const Labels labels = With(base, "layer", "generated");
    s.generated = {&families.edges.Add(labels), &families.pairs.Add(labels), nullptr};
  }
}

LoadedMetrics::~LoadedMetrics() = default;

void LoadedMetrics::CountBudget(BudgetKind kind) {
  const MetricsEvent event(mutex_);
  series_->budgets[static_cast<size_t>(kind)]->Increment();
}

void LoadedMetrics::ObserveStage(Stage stage, double seconds) {
  const MetricsEvent event(mutex_);
  series_->stages[static_cast<size_t>(stage)]->Observe(seconds);
}

void LoadedMetrics::ObserveQueue(uint32_t priority, double seconds) {
  const MetricsEvent event(mutex_);
  series_->queue[std::clamp(priority, 1u, kPriorityLevels) - 1]->Observe(seconds);
}

void LoadedMetrics::ObserveInput(const Model& model, const ModelInput& input, const InputResult& result) {
  const MetricsEvent event(mutex_);
  Series& s = *series_;
  const ModelConfig& config = model.config();
  uint64_t valid = 0, pairs_per_layer = 0;
  for (const ModelSequence& sequence : input.sequences) {
    valid += static_cast<uint64_t>(sequence.valid());
    pairs_per_layer += PairsOf(config, {&sequence, 0}) * static_cast<uint64_t>(config.num_attention_heads);
  }
  const double queries = static_cast<double>(valid) * config.num_attention_heads * config.num_hidden_layers;
  uint64_t edges = 0;
  std::vector<uint64_t> layer_edges(s.layers.size()), layer_isolated(s.layers.size());
  for (const SampleResult& sample : result.sample_results) {
    edges += sample.edges;
    for (size_t l = 0; l < sample.layers.size(); ++l) {
      for (const HeadCounts& head : sample.layers[l]) {
        layer_edges[l % s.layers.size()] += head.edges;
        layer_isolated[l % s.layers.size()] += head.isolated;
      }
    }
  }
  for (size_t l = 0; l < s.layers.size(); ++l) {
    s.layers[l].edges->Increment(static_cast<double>(layer_edges[l]));
    s.layers[l].pairs->Increment(static_cast<double>(pairs_per_layer) * result.samples);
    s.layers[l].isolated->Increment(static_cast<double>(layer_isolated[l]));
  }
  s.items->Increment();
  s.tokens->Increment(static_cast<double>(valid));
  s.input_length->Observe(static_cast<double>(valid));
  s.density->Observe(result.density);
  s.edges->Observe(result.edges);
  s.isolated->Observe(queries > 0.0 ? result.isolated_queries / queries : 0.0);
  if (input.max_edges != kNoCap) {
    s.utilization->Observe(static_cast<double>(result.max_sample_edges) / static_cast<double>(input.max_edges));
  }
  if (result.capped) s.capped->Increment();
  s.samples->Observe(result.samples);
  s.disagreement->Observe(Disagreement(result));
  const double flops_per_pair = 4.0 * config.head_dim;  // a multiply and an add for the score, as many for the sum
  s.flops_executed->Increment(flops_per_pair * static_cast<double>(edges));
  s.flops_dense->Increment(flops_per_pair * static_cast<double>(result.pairs) * result.samples);
}

void LoadedMetrics::ObserveToken(const Model& model, const RowEdges& row, uint32_t samples, bool first,
                                 double seconds) {
  const MetricsEvent event(mutex_);
  Series& s = *series_;
  (first ? s.first_token : s.token)->Observe(seconds);
  s.generated_tokens->Increment();
  const double edges = std::round(row.edges * samples), pairs = static_cast<double>(row.pairs) * samples;
  const double flops_per_pair = 4.0 * model.config().head_dim;
  s.generated.edges->Increment(edges);
  s.generated.pairs->Increment(pairs);
  s.flops_executed->Increment(flops_per_pair * edges);
  s.flops_dense->Increment(flops_per_pair * pairs);
}

void LoadedMetrics::ObserveGeneration(uint64_t prompt_tokens, uint32_t samples, double utilization, bool capped) {
  const MetricsEvent event(mutex_);
  series_->prompt_tokens->Increment(static_cast<double>(prompt_tokens));
  series_->samples->Observe(samples);
  if (utilization >= 0.0) series_->utilization->Observe(utilization);
  if (capped) series_->capped->Increment();
}

GaugeHold LoadedMetrics::HoldInFlight() { return Hold({{series_->in_flight, 1.0}}); }

GaugeHold LoadedMetrics::HoldQueued(uint64_t tokens) {
  return Hold({{series_->queue_requests, 1.0}, {series_->queue_tokens, static_cast<double>(tokens)}});
}

GaugeHold LoadedMetrics::HoldGeneration() { return Hold({{series_->generations_running, 1.0}}); }

GaugeHold LoadedMetrics::Hold(std::vector<std::pair<prometheus::Gauge*, double>> amounts) {
  const auto add = [amounts = std::move(amounts), &mutex = mutex_](double sign) {
    const MetricsEvent event(mutex);
    for (const auto& [gauge, amount] : amounts) gauge->Increment(sign * amount);
  };
  add(1.0);
  return GaugeHold(nullptr, [add](std::nullptr_t) { add(-1.0); });
}

void LoadedMetrics::ObserveBatch(uint32_t inputs, uint64_t tokens) {
  const MetricsEvent event(mutex_);
  series_->executions->Increment();
  series_->batch_items->Observe(inputs);
  series_->batch_tokens->Observe(static_cast<double>(tokens));
}

void LoadedMetrics::AddCancelledCompute(double seconds) {
  const MetricsEvent event(mutex_);
  series_->cancelled_compute->Increment(seconds);
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
