// The counters and histograms that Prometheus sees (docs/metrics.md). Every series exists from the moment its model is
// known. Any thread may record. A scrape shows an event, with all that it moves, as a whole or not at all.
#ifndef EDGEWISE_SERVER_OBSERVE_METRICS_H_
#define EDGEWISE_SERVER_OBSERVE_METRICS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "model/forward/generation.h"
#include "model/forward/result.h"
#include "model/input/input.h"
#include "model/model.h"

namespace edgewise::server {

enum class Rejection { kQueueFull, kDeadline, kCancelled, kDraining, kInvalid, kBudget, kOutOfMemory, kNotReady };
enum class Stage { kInput, kForward, kOutput };
enum class BudgetKind { kNone, kEdges, kDensity };
enum class Rpc { kPredict, kPredictStream, kGenerate, kListModels, kGetModel };

struct MetricFamilies;

// While it lives, what its thread records is one event: threads that record share the mutex, a scrape has it alone.
// Every recording call is an event by itself, and part of the one around it. Inside one take no lock that others hold
// while they record, and answer nobody.
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

// The series of one loaded version. Made anew by every load; the numbers go on.
class LoadedMetrics {
 public:
  LoadedMetrics(MetricFamilies& families, const std::string& model, const std::string& version, const Model& loaded);
  ~LoadedMetrics();

  MetricsEvent Event() const { return MetricsEvent(mutex_); }
  void CountBudget(BudgetKind kind);
  void ObserveStage(Stage stage, double seconds);
  void ObserveQueue(uint32_t priority, double seconds);
  void ObserveInput(const Model& model, const ModelInput& input, const InputResult& result);
  // A generated token: its row, and how long it took since the last one (`first`: since the call arrived).
  void ObserveToken(const Model& model, const RowEdges& row, uint32_t samples, bool first, double seconds);
  // A generation that came to its end. utilization: of its most expensive row; < 0: no budget.
  void ObserveGeneration(uint64_t prompt_tokens, uint32_t samples, double utilization, bool capped);
  void AddGenerations(int running);
  void AddInFlight(int requests);
  void AddQueued(int requests, int64_t tokens);
  void ObserveBatch(uint32_t inputs, uint64_t tokens);
  void AddCancelledCompute(double seconds);

 private:
  struct Series;
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
  // The version has gone from the repository: not ready, no memory, no model_info. A later load brings them back.
  void Removed();

  // Once for every Predict request.
  void CountRequest(absl::StatusCode code, double seconds);
  // Once for every Generate request.
  void CountGeneration(absl::StatusCode code, double seconds);
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

  // The series of a model that the repository has; made at the first call, kept until the end.
  ModelMetrics& ForModel(const std::string& model, int64_t version);
  // Requests for models that the repository lacks: labels `_other`.
  ModelMetrics& other() { return *other_; }
  void CountRpc(Rpc rpc, absl::StatusCode code, int calls = 1);

  // The exposition text, process_* metrics included.
  std::string Render() const;

 private:
  std::unique_ptr<MetricFamilies> families_;
  std::unique_ptr<ModelMetrics> other_;
  absl::Mutex mutex_;
  std::map<std::pair<std::string, int64_t>, std::unique_ptr<ModelMetrics>> models_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_OBSERVE_METRICS_H_
