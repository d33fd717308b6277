// The series of the versions of models: ModelMetrics and LoadedMetrics (metrics.h).
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "model/kinds/kind.h"
#include "server/base/status_details.h"
#include "server/observe/metric_families.h"
#include "server/observe/metrics.h"

namespace edgewise::server {
namespace {

constexpr const char* kDegradedBy[] = {"deadline", "load"};                  // DegradedBy but the first
constexpr const char* kShadowResults[] = {"compared", "dropped", "failed"};  // ShadowResult

// Samples, or tokens of samples, whose most probable label is not the answer's; of a multi-label model labels of
// samples whose yes or no is not. Values have no labels.
double Disagreement(const InputResult& result) {
  uint64_t differ = 0, total = 0;
  for (const SampleResult& sample : result.sample_results) {
    for (size_t c = 0; result.multi_label && c < sample.probabilities.size(); ++c) {
      ++total;
      if (SaysYes(sample.probabilities[c]) != SaysYes(result.probabilities[c])) ++differ;
    }
    if (result.multi_label) continue;
    for (int32_t row = 0; row < result.rows; ++row) {
      if (result.label_id[row] < 0) continue;  // a pad
      const auto begin = sample.probabilities.begin() + static_cast<int64_t>(row) * result.labels;
      ++total;
      if (std::max_element(begin, begin + result.labels) - begin != result.label_id[row]) ++differ;
    }
  }
  return total == 0 ? 0.0 : static_cast<double>(differ) / static_cast<double>(total);
}

}  // namespace

struct ModelMetrics::Series {
  void AddGenerations(MetricFamilies& families) {
    for (size_t i = 0; i < codes; ++i)
      generations[i] = &all.Add(families.generations, With(labels, "code", CodeName(i)));
    generation_duration = &all.Add(families.generation_duration, labels, kNoBuckets);
  }

  SeriesSet all;  // those of LoadedMetrics too
  Labels labels;
  size_t codes = kCodes.size() - 1;  // that have series
  std::array<prometheus::Counter*, kCodes.size()> requests{};
  std::array<prometheus::Counter*, kRejections> rejections{};
  prometheus::Histogram* request_duration = nullptr;
  std::array<prometheus::Counter*, kCodes.size()> generations{};  // of a model that can generate, as the next
  prometheus::Histogram* generation_duration = nullptr;
  prometheus::Counter* loads_ok = nullptr;
  prometheus::Counter* loads_error = nullptr;
  prometheus::Gauge* load_duration = nullptr;
  prometheus::Gauge* ready = nullptr;
  prometheus::Gauge* capacity = nullptr;
  prometheus::Gauge* info = nullptr;    // while it is loaded
  prometheus::Gauge* memory = nullptr;  // from the first load on

  // For ModelTotals, as request_duration is not apart by how a request ended.
  std::atomic<uint64_t> succeeded = 0, failed = 0, last_ms = 0;
  std::atomic<double> success_seconds = 0.0, fail_seconds = 0.0;
};

ModelMetrics::ModelMetrics(MetricFamilies& families, std::string model, std::string version)
    : families_(families), model_(std::move(model)), version_(std::move(version)), series_(std::make_unique<Series>()) {
  const MetricsEvent event(families_.mutex);
  Series& s = *series_;
  s.labels = {{"model", model_}, {"version", version_}};
  const bool is_other = version_ == "_other";
  if (is_other) s.codes = kCodes.size();
  for (size_t i = 0; i < s.codes; ++i) {
    s.requests[i] = &s.all.Add(families_.requests, With(s.labels, "code", CodeName(i)));
  }
  for (size_t i = 0; i < kRejections; ++i) {
    const char* reason = RejectionName(static_cast<Rejection>(i));
    s.rejections[i] = &s.all.Add(families_.rejections, With(s.labels, "reason", reason));
  }
  s.request_duration = &s.all.Add(families_.request_duration, s.labels, kDurationBuckets);
  if (is_other) {
    s.AddGenerations(families_);
    return;
  }
  s.loads_ok = &s.all.Add(families_.model_loads, With(s.labels, "result", "ok"));
  s.loads_error = &s.all.Add(families_.model_loads, With(s.labels, "result", "error"));
  s.load_duration = &s.all.Add(families_.model_load_duration, s.labels);
  s.ready = &s.all.Add(families_.model_ready, s.labels);
  s.capacity = &s.all.Add(families_.capacity, s.labels);
}

ModelMetrics::~ModelMetrics() = default;

MetricsEvent ModelMetrics::Event() const { return MetricsEvent(families_.mutex); }

std::unique_ptr<LoadedMetrics> ModelMetrics::Loaded(const MetricsEvent&, const Model& model) {
  const ModelConfig& config = model.config();
  const std::string device = model.backend().device();
  Labels info = series_->labels;
  info["attention"] = AttentionName(config);
  info["layers"] = std::to_string(config.num_hidden_layers);
  info["heads"] = std::to_string(config.num_attention_heads);
  info["dtype"] = device.substr(device.rfind('/') + 1);
  info["device"] = device;
  info["sha256"] = model.sha256();
  if (series_->info) series_->all.Remove(series_->info);
  series_->info = &series_->all.Add(families_.model_info, info);
  series_->info->Set(1.0);
  series_->memory =
      &series_->all.Add(families_.memory, With(With(series_->labels, "device", device), "kind", "weights"));
  series_->memory->Set(static_cast<double>(model.parameters()) * sizeof(float));
  series_->ready->Set(1.0);
  if (config.task == ModelTask::kCausalLm && !series_->generation_duration) series_->AddGenerations(families_);
  return std::make_unique<LoadedMetrics>(shared_from_this(), model);
}

void ModelMetrics::Removed() {
  const MetricsEvent event(families_.mutex);
  series_->ready->Set(0.0);
  series_->capacity->Set(0.0);
  if (series_->memory) series_->memory->Set(0.0);
  if (series_->info) series_->all.Remove(series_->info);
  series_->info = nullptr;
}

void ModelMetrics::SetCapacity(double capacity) {
  const MetricsEvent event(families_.mutex);
  if (series_->ready->Value() > 0.0) series_->capacity->Set(capacity);
}

void ModelMetrics::CountLoad(const MetricsEvent&, bool ok, double seconds) {
  (ok ? series_->loads_ok : series_->loads_error)->Increment();
  series_->load_duration->Set(seconds);
}

void ModelMetrics::CountRequest(const MetricsEvent& event, Rpc rpc, const absl::Status& status, double seconds) {
  const bool generates = rpc == Rpc::kGenerate;
  if (generates && !series_->generation_duration) return families_.other->CountRequest(event, rpc, status, seconds);
  const size_t code = CodeIndex(status.code());
  (generates ? series_->generations
             : series_->requests)[code < series_->codes ? code : CodeIndex(absl::StatusCode::kInternal)]
      ->Increment();
  (generates ? series_->generation_duration : series_->request_duration)->Observe(seconds);
  if (!generates) {
    (status.ok() ? series_->succeeded : series_->failed).fetch_add(1);
    (status.ok() ? series_->success_seconds : series_->fail_seconds).fetch_add(seconds);
    if (status.ok()) series_->last_ms = static_cast<uint64_t>(absl::ToUnixMillis(absl::Now()));
  }
  const std::optional<Rejection> reason = status.ok() ? std::nullopt : RejectionOf(status);
  if (reason) series_->rejections[static_cast<size_t>(*reason)]->Increment();
}

struct LoadedMetrics::Series {
  prometheus::Counter *items, *executions, *cancelled_compute, *tokens, *edges, *pairs, *isolated, *budgets, *capped,
      *device, *input_stage, *forward_stage, *output_stage;
  prometheus::Histogram *queue, *prediction, *density, *utilization, *samples, *disagreement;
  prometheus::Gauge *in_flight, *queue_requests, *queue_tokens, *queue_seconds;
  std::array<prometheus::Counter*, std::size(kDegradedBy)> degraded{};
  // Null where the model does not generate.
  prometheus::Counter *generated_tokens = nullptr, *prompt_tokens = nullptr;
  prometheus::Histogram *first_token = nullptr, *token = nullptr;
  prometheus::Gauge* generations_running = nullptr;
  // Null before ExpectShadow.
  std::array<prometheus::Counter*, std::size(kShadowResults)> shadows{};
  prometheus::Counter *shadow_disagreements = nullptr, *shadow_device = nullptr;
  prometheus::Histogram* shadow_distance = nullptr;
};

LoadedMetrics::LoadedMetrics(std::shared_ptr<ModelMetrics> version, const Model& loaded)
    : version_(std::move(version)),
      families_(version_->families_),
      mutex_(families_.mutex),
      series_(std::make_unique<Series>()) {
  Series& s = *series_;
  SeriesSet& all = version_->series_->all;
  const std::string device = loaded.backend().device();
  const Labels& base = version_->series_->labels;

  s.items = &all.Add(families_.items, base);
  s.executions = &all.Add(families_.executions, base);
  s.cancelled_compute = &all.Add(families_.cancelled_compute, base);
  s.tokens = &all.Add(families_.tokens, base);
  s.edges = &all.Add(families_.edges, base);
  s.pairs = &all.Add(families_.pairs, base);
  s.isolated = &all.Add(families_.isolated, base);
  s.budgets = &all.Add(families_.budget_requests, base);
  s.capped = &all.Add(families_.budget_capped, base);
  s.prediction = &all.Add(families_.prediction, base, kNoBuckets);
  s.density = &all.Add(families_.input_density, base, kDensityBuckets);
  s.utilization = &all.Add(families_.budget_utilization, base, kNoBuckets);
  s.samples = &all.Add(families_.ensemble_samples, base, kNoBuckets);
  s.disagreement = &all.Add(families_.ensemble_disagreement, base, kNoBuckets);
  s.in_flight = &all.Add(families_.in_flight, base);
  s.queue_requests = &all.Add(families_.queue_requests, base);
  s.queue_tokens = &all.Add(families_.queue_tokens, base);
  s.queue_seconds = &all.Add(families_.queue_seconds, base);
  s.device = &all.Add(families_.device, base);
  s.queue = &all.Add(families_.queue_duration, base, kDurationBuckets);
  s.input_stage = &all.Add(families_.stage, With(base, "stage", "input"));
  s.forward_stage = &all.Add(families_.stage, With(base, "stage", "forward"));
  s.output_stage = &all.Add(families_.stage, With(base, "stage", "output"));
  for (size_t i = 0; i < std::size(kDegradedBy); ++i) {
    s.degraded[i] = &all.Add(families_.degraded, With(base, "reason", kDegradedBy[i]));
  }
  if (loaded.config().task != ModelTask::kCausalLm) return;
  s.generated_tokens = &all.Add(families_.generated_tokens, base);
  s.prompt_tokens = &all.Add(families_.prompt_tokens, base);
  s.first_token = &all.Add(families_.first_token_duration, base, kFirstTokenBuckets);
  s.token = &all.Add(families_.token_duration, base, kTokenBuckets);
  s.generations_running = &all.Add(families_.generations_running, base);
}

void LoadedMetrics::ExpectShadow(const MetricsEvent&) {
  Series& s = *series_;
  SeriesSet& all = version_->series_->all;
  const Labels& base = version_->series_->labels;
  for (size_t i = 0; i < std::size(kShadowResults); ++i) {
    s.shadows[i] = &all.Add(families_.shadow_requests, With(base, "result", kShadowResults[i]));
  }
  s.shadow_disagreements = &all.Add(families_.shadow_disagreements, base);
  s.shadow_distance = &all.Add(families_.shadow_distance, base, kNoBuckets);
  s.shadow_device = &all.Add(families_.shadow_device, base);
}

LoadedMetrics::~LoadedMetrics() = default;

void LoadedMetrics::CountValid(Request& request, double seconds) {
  const MetricsEvent event(mutex_);
  if (request.work.budget != BudgetKind::kNone) series_->budgets->Increment();
  series_->input_stage->Increment(seconds);
  request.gauges = {Hold(series_->in_flight), Hold(series_->queue_requests),
                    Hold(series_->queue_tokens, static_cast<double>(request.work.tokens)),
                    Hold(series_->queue_seconds, request.forecast.seconds), nullptr};
}

void LoadedMetrics::CountBatch(std::span<Request* const> requests) {
  const MetricsEvent event(mutex_);
  for (Request* request : requests) request->gauges = {.in_flight = std::move(request->gauges.in_flight)};
  series_->executions->Increment();
}

void LoadedMetrics::CountPrediction(double predicted, double seconds) {
  const MetricsEvent event(mutex_);
  if (predicted > 0.0) series_->prediction->Observe(seconds / predicted);
}

void LoadedMetrics::CountDevice(double seconds, bool background) {
  const MetricsEvent event(mutex_);
  (background ? series_->shadow_device : series_->device)->Increment(seconds);
  if (!background) families_.busy.Add(families_.clock(), seconds);
}

void LoadedMetrics::CountShadow(ShadowResult result, std::span<const double> distances, uint64_t disagreements) {
  const MetricsEvent event(mutex_);
  series_->shadows[static_cast<size_t>(result)]->Increment();
  series_->shadow_disagreements->Increment(static_cast<double>(disagreements));
  for (const double distance : distances) series_->shadow_distance->Observe(distance);
}

void LoadedMetrics::CountGeneration(Request& request) {
  const MetricsEvent event(mutex_);
  request.gauges = {.in_flight = std::move(request.gauges.in_flight), .generating = Hold(series_->generations_running)};
}

void LoadedMetrics::CountToken(const Request& request, const RowEdges& row, double seconds) {
  const MetricsEvent event(mutex_);
  Series& s = *series_;
  const double samples = request.work.generation->options.samples;
  (request.outcome.generated.tokens == 0 ? s.first_token : s.token)->Observe(seconds);
  s.generated_tokens->Increment();
  s.edges->Increment(std::round(row.edges * samples));
  s.pairs->Increment(static_cast<double>(row.pairs) * samples);
}

void LoadedMetrics::CountEnd(const MetricsEvent& event, const Request& request, bool answered, double output_seconds) {
  Series& s = *series_;
  s.queue->Observe(request.outcome.queue_seconds);
  s.cancelled_compute->Increment(request.outcome.cancelled_seconds);
  if (!answered) return;
  s.forward_stage->Increment(request.outcome.compute_seconds);
  if (request.work.generation) return CountGenerated(request);
  s.output_stage->Increment(output_seconds);
  if (request.forecast.reason != DegradedBy::kNothing) {
    s.degraded[static_cast<size_t>(request.forecast.reason) - 1]->Increment();
  }
  for (size_t i = 0; i < request.work.inputs.size(); ++i) {
    CountInput(event, RunOf(request, i), request.outcome.results[i]);
  }
}

void LoadedMetrics::CountInput(const MetricsEvent&, const InputRun& run, const InputResult& result) {
  Series& s = *series_;
  uint64_t edges = 0, isolated = 0;
  for (const SampleResult& sample : result.sample_results) {
    for (const auto& layer : sample.layers) {
      for (const HeadCounts& head : layer) {
        edges += head.edges;
        isolated += head.isolated;
      }
    }
  }
  s.edges->Increment(static_cast<double>(edges));
  s.isolated->Increment(static_cast<double>(isolated));
  s.pairs->Increment(static_cast<double>(result.pairs) * result.samples);
  double tokens = 0.0;
  for (const ModelSequence& sequence : run.input->sequences) tokens += sequence.valid();
  s.items->Increment();
  s.tokens->Increment(tokens);
  s.density->Observe(result.density);
  if (run.max_edges != kNoCap) {
    s.utilization->Observe(static_cast<double>(result.max_sample_edges) / static_cast<double>(run.max_edges));
  }
  if (result.capped) s.capped->Increment();
  s.samples->Observe(result.samples);
  s.disagreement->Observe(result.samples > 1 ? Disagreement(result) : 0.0);
}

ModelTotals LoadedMetrics::Totals() const {
  const absl::WriterMutexLock alone(&mutex_);
  const ModelMetrics::Series& version = *version_->series_;
  const Series& s = *series_;
  const prometheus::ClientMetric::Histogram queue = s.queue->Collect().histogram;
  ModelTotals totals{.success = {version.succeeded, version.success_seconds},
                     .fail = {version.failed, version.fail_seconds},
                     .queue = {queue.sample_count, queue.sample_sum},
                     .inputs = static_cast<uint64_t>(s.items->Value()),
                     .executions = static_cast<uint64_t>(s.executions->Value()),
                     .last_ms = version.last_ms};
  totals.input = {totals.queue.count, s.input_stage->Value()};
  totals.forward = {totals.success.count, s.forward_stage->Value()};
  totals.output = {totals.success.count, s.output_stage->Value()};
  return totals;
}

void LoadedMetrics::CountGenerated(const Request& request) {
  const Outcome::Generated& generated = request.outcome.generated;
  series_->prompt_tokens->Increment(static_cast<double>(request.work.tokens));
  series_->samples->Observe(request.work.generation->options.samples);
  if (generated.utilization >= 0.0) series_->utilization->Observe(generated.utilization);
  if (generated.capped) series_->capped->Increment();
}

void ModelMetrics::RemoveAll() { series_->all.RemoveAll(); }

}  // namespace edgewise::server
