// The metrics that Prometheus scrapes (docs/metrics.md). Every series exists as soon as its model is known, or loaded
// where it is of what only some models can do; at most 120 of a version. They leave when the version has left the
// repository and its last request has ended. Any thread may record. A scrape shows all changes of an event or none.
#ifndef EDGEWISE_SERVER_OBSERVE_METRICS_H_
#define EDGEWISE_SERVER_OBSERVE_METRICS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "kernels/device_memory.h"
#include "model/forward/generation.h"
#include "model/forward/result.h"
#include "model/input/input.h"
#include "model/model.h"
#include "server/request/request.h"

namespace edgewise::server {

struct MetricFamilies;

// The end of a second computation (handler/shadow.h). Without memory or time there was none; or the other profile, or
// the device, refused it.
enum class ShadowResult { kCompared, kDropped, kFailed };

// Makes the records of its scope one event. Recording threads share the mutex; a scrape holds it alone. A method that
// takes an event records as part of it; others are events of their own. One event at a time on a thread. Inside an
// event take no lock that others hold while they record, and call no client.
class MetricsEvent {
 public:
  explicit MetricsEvent(absl::Mutex& mutex) : lock_(&mutex) {}

 private:
  absl::ReaderMutexLock lock_;
};

class ModelMetrics;

// Totals of a version since the server started, of requests that are no generations.
struct ModelTotals {
  struct Sum {
    uint64_t count = 0;
    double seconds = 0.0;
  };
  Sum success, fail;                  // whole requests
  Sum queue, input, forward, output;  // parts of those that were valid
  uint64_t inputs = 0, executions = 0;
  uint64_t last_ms = 0;  // when the last request was answered, in milliseconds since 1970; 0: none was
};

// The series of one loaded version. Every load makes a new object; the numbers continue.
class LoadedMetrics {
 public:
  LoadedMetrics(std::shared_ptr<ModelMetrics> version, const Model& loaded);
  ~LoadedMetrics();

  // A valid request, checked in `seconds`: counts it as in flight and as waiting.
  void CountValid(Request& request, double seconds);
  // Requests leave the queue: a pass over their inputs begins; or one joins the generations that run.
  void CountBatch(std::span<Request* const> requests);
  void CountGeneration(Request& request);
  // A pass whose requests were all answered took `seconds`; 0 `predicted`: nothing was known of the model.
  void CountPrediction(double predicted, double seconds);
  // A step of the model's work took so long, and ended now. `background`: nobody waits for that work.
  void CountDevice(double seconds, bool background = false);
  // The model has a shadow: makes its series. Before its first request.
  void ExpectShadow(const MetricsEvent& event);
  // The shadow of an answered request ended. Where it was compared: the distance of each input's two distributions, and
  // the inputs whose labels differ.
  void CountShadow(ShadowResult result, std::span<const double> distances, uint64_t disagreements);
  // A generated token: its row, and the time since the last token (since the arrival for the first one).
  void CountToken(const Request& request, const RowEdges& row, double seconds);
  // A request that waited ends. `answered`: with OK, after `output_seconds` for the answer.
  void CountEnd(const MetricsEvent& event, const Request& request, bool answered, double output_seconds);
  void CountInput(const MetricsEvent& event, const InputRun& run, const InputResult& result);

  ModelTotals Totals() const;

 private:
  struct Series;
  void CountGenerated(const Request& request);
  const std::shared_ptr<ModelMetrics> version_;  // keeps the series
  MetricFamilies& families_;
  absl::Mutex& mutex_;
  std::unique_ptr<Series> series_;
};

// The series of one version of one model, loaded or not. Those who record share it. Its Metrics must outlive it.
class ModelMetrics : public std::enable_shared_from_this<ModelMetrics> {
 public:
  ModelMetrics(MetricFamilies& families, std::string model, std::string version);
  ~ModelMetrics();

  MetricsEvent Event() const;
  // One thread at a time: the loader. The version is ready from now on.
  std::unique_ptr<LoadedMetrics> Loaded(const MetricsEvent& event, const Model& model);
  void CountLoad(const MetricsEvent& event, bool ok, double seconds);
  // The version left the repository: not ready, no memory, no capacity, no model_info. The rest stays for the requests
  // that still run. A later load brings these back.
  void Removed();

  // Requests a second, for the next Render; 0: not known. Not of a version that was removed.
  void SetCapacity(double capacity);

  // Once for every request. `rpc`: kPredict, for streams too, or kGenerate, which counts under `_other` unless the
  // version has been a model that generates.
  void CountRequest(const MetricsEvent& event, Rpc rpc, const absl::Status& status, double seconds);

 private:
  friend class LoadedMetrics;
  friend class Metrics;
  struct Series;
  void RemoveAll();  // for good; the caller holds the families' mutex alone
  MetricFamilies& families_;
  const std::string model_;
  const std::string version_;
  std::unique_ptr<Series> series_;
};

class Metrics {
 public:
  // `clock`: the time, as that of the queue.
  explicit Metrics(std::function<Time()> clock = Clock::now);
  ~Metrics();

  // The series of a version in the repository, made anew where those of before have left. Where many wait for a page to
  // leave with, as where nobody makes pages, they leave now.
  std::shared_ptr<ModelMetrics> ForModel(const std::string& model, int64_t version);
  // The series of requests for unknown models and versions, with the labels `_other`.
  const std::shared_ptr<ModelMetrics>& other() { return other_; }
  void CountRpc(Rpc rpc, absl::StatusCode code);
  // A call was refused, or failed, with this status; over HTTP with this code, over gRPC with 0.
  void CountRefusal(const absl::Status& status, int http_code);
  // The HTTP front serves this route: makes its series.
  void ExpectHttp(std::string_view route);
  // A request of HTTP ended with this code. `route`: one that is expected.
  void CountHttp(std::string_view route, int code);
  // A file of "tokens" or "certificates" has changed and was read again, or was wrong.
  void CountSecretLoad(std::string_view kind, bool ok);
  // For the next Render.
  void SetTransport(uint64_t call_memory, uint64_t call_memory_limit, size_t connections, int64_t preparing,
                    double read_delay_seconds);
  void SetCache(uint64_t bytes, uint64_t limit);
  void SetWorkingMemory(uint64_t bytes);
  // `cache`: bytes that are keys and values of generations, among those in use.
  void SetDeviceMemory(const DeviceMemory& memory, uint64_t cache);

  // The exposition text, with process_* metrics. Series that nobody holds any more leave after it, so that their last
  // counts are on one page.
  std::string Render() const;

 private:
  using Versions = std::map<std::pair<std::string, int64_t>, std::shared_ptr<ModelMetrics>>;
  // Takes out what nobody holds any more, where that is more than `spared` versions.
  Versions TakeLeft(size_t spared) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::unique_ptr<MetricFamilies> families_;
  std::shared_ptr<ModelMetrics> other_;
  prometheus::Gauge *call_memory_, *call_memory_limit_, *cache_, *cache_limit_, *connections_, *preparing_,
      *read_delay_, *utilization_;
  mutable absl::Mutex mutex_;  // before that of the families
  mutable Versions versions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_OBSERVE_METRICS_H_
