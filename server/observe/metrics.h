// The metrics that Prometheus scrapes (docs/metrics.md). Every series exists as soon as its model is known. Any thread
// may record. A scrape shows all changes of an event or none.
#ifndef EDGEWISE_SERVER_OBSERVE_METRICS_H_
#define EDGEWISE_SERVER_OBSERVE_METRICS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "model/forward/generation.h"
#include "model/forward/result.h"
#include "model/input/input.h"
#include "model/model.h"
#include "server/status_details.h"
#include "server/task.h"

namespace prometheus {
class Gauge;
}

namespace edgewise::server {

enum class Stage { kInput, kForward, kOutput };
enum class BudgetKind { kNone, kEdges, kDensity };
enum class Rpc { kPredict, kPredictStream, kGenerate, kListModels, kGetModel };

struct MetricFamilies;

// Makes the records of its thread one event while it lives. Recording threads share the mutex; a scrape holds it alone.
// Every recording call is an event of its own, or part of the event around it. Inside an event take no lock that others
// hold while they record, and call no client.
class MetricsEvent {
 public:
  explicit MetricsEvent(absl::Mutex& mutex);
  ~MetricsEvent();
  MetricsEvent(const MetricsEvent&) = delete;
  MetricsEvent& operator=(const MetricsEvent&) = delete;

 private:
  absl::Mutex& mutex_;
  absl::Mutex* const outer_;  // of the event around this one
};

// The series of one loaded version. Every load makes a new object; the numbers continue.
class LoadedMetrics {
 public:
  LoadedMetrics(MetricFamilies& families, const std::string& model, const std::string& version, const Model& loaded);
  ~LoadedMetrics();

  MetricsEvent Event() const { return MetricsEvent(mutex_); }
  void CountBudget(BudgetKind kind);
  void ObserveStage(Stage stage, double seconds);
  void ObserveQueue(uint32_t priority, double seconds);
  void ObserveInput(const Model& model, const ModelInput& input, const InputResult& result);
  // A generated token: its row, and the time since the last token (`first`: since the arrival of the call).
  void ObserveToken(const Model& model, const RowEdges& row, uint32_t samples, bool first, double seconds);
  // A generation that ended OK. utilization: edges of its most expensive row over the budget; < 0: no budget.
  void ObserveGeneration(uint64_t prompt_tokens, uint32_t samples, double utilization, bool capped);
  // Each counts one request in its gauges while the hold lives, which may outlive this but not Metrics.
  GaugeHold HoldInFlight();
  GaugeHold HoldQueued(uint64_t tokens);
  GaugeHold HoldGeneration();
  void ObserveBatch(uint32_t inputs, uint64_t tokens);
  void AddCancelledCompute(double seconds);

 private:
  struct Series;
  GaugeHold Hold(std::vector<std::pair<prometheus::Gauge*, double>> amounts);
  absl::Mutex& mutex_;
  std::unique_ptr<Series> series_;
};

// The series of one version of one model, loaded or not. Lives as long as its Metrics.
class ModelMetrics {
 public:
  ModelMetrics(MetricFamilies& families, std::string model, std::string version);
  ~ModelMetrics();

  MetricsEvent Event() const;
  // One thread at a time: the engine.
  std::unique_ptr<LoadedMetrics> Loaded(const Model& model);
  void CountLoad(bool ok, double seconds);
  void SetReady(bool ready);
  // The version left the repository: not ready, no memory, no model_info. A later load brings these back.
  void Removed();

  // Once for every request. `rpc`: kPredict, for streams too, or kGenerate.
  void CountRequest(Rpc rpc, absl::StatusCode code, double seconds);
  void CountRejection(Rejection reason);

 private:
  struct Series;
  MetricFamilies& families_;
  const std::string model_;
  const std::string version_;
  std::unique_ptr<Series> series_;
};

class Metrics {
 public:
  Metrics();
  ~Metrics();

  // The series of a version in the repository, made by the first call and kept until the end.
  ModelMetrics& ForModel(const std::string& model, int64_t version);
  // The series of requests for unknown models and versions, with the labels `_other`.
  ModelMetrics& other() { return *other_; }
  void CountRpc(Rpc rpc, absl::StatusCode code, int calls = 1);

  // The exposition text, with process_* metrics.
  std::string Render() const;

 private:
  std::unique_ptr<MetricFamilies> families_;
  std::unique_ptr<ModelMetrics> other_;
  absl::Mutex mutex_;
  std::map<std::pair<std::string, int64_t>, std::unique_ptr<ModelMetrics>> models_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_OBSERVE_METRICS_H_
