#include "server/observe/metric_families.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

namespace edgewise::server {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;

prometheus::MetricFamily Single(const char* name, const char* help, prometheus::MetricType type, double value) {
  prometheus::MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = type;
  prometheus::ClientMetric metric;
  if (type == prometheus::MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  family.metric.push_back(metric);
  return family;
}

// Fields of /proc/self/stat from the third on, after the command in parentheses.
std::vector<double> ProcessStat() {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t close = text.rfind(')');
  std::vector<double> fields;
  if (close == std::string::npos || close + 3 >= text.size()) return fields;
  std::istringstream stream(text.substr(close + 3));  // past the state letter
  for (double value; stream >> value;) fields.push_back(value);
  return fields;
}

double BootTime() {
  std::ifstream file("/proc/stat");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("btime ", 0) == 0) return std::stod(line.substr(6));
  }
  return 0.0;
}

}  // namespace

#define EDGEWISE_COUNTER(name, help) BuildCounter().Name("edgewise_" name).Help(help).Register(registry)
#define EDGEWISE_GAUGE(name, help) BuildGauge().Name("edgewise_" name).Help(help).Register(registry)
#define EDGEWISE_HISTOGRAM(name, help) BuildHistogram().Name("edgewise_" name).Help(help).Register(registry)

MetricFamilies::MetricFamilies(std::function<Time()> clock)
    : clock(std::move(clock)),
      build_info(EDGEWISE_GAUGE("build_info", "What runs; the value is 1.")),
      model_info(EDGEWISE_GAUGE("model_info", "Which weights are loaded; the value is 1.")),
      model_ready(EDGEWISE_GAUGE("model_ready", "1 while the version serves, else 0.")),
      model_loads(EDGEWISE_COUNTER("model_loads_total", "Loads tried, by result.")),
      model_load_duration(EDGEWISE_GAUGE("model_load_duration_seconds", "How long the last load took.")),
      memory(EDGEWISE_GAUGE("memory_bytes", "Memory that a model holds, by device and kind.")),
      call_memory(EDGEWISE_GAUGE("call_memory_bytes", "Memory that calls hold or have reserved.")),
      call_memory_limit(EDGEWISE_GAUGE("call_memory_limit_bytes", "Memory that calls may hold.")),
      cache(EDGEWISE_GAUGE("cache_bytes", "Memory that keys and values of generations hold.")),
      cache_limit(EDGEWISE_GAUGE("cache_limit_bytes", "Memory that keys and values of generations may hold.")),
      working_memory(EDGEWISE_GAUGE("working_memory_bytes",
                                    "Memory of the host that passes and generations use or have left for the next.")),
      device_memory(
          EDGEWISE_GAUGE("device_memory_bytes", "Memory of the GPU, by what holds it; the sum is all of it.")),
      connections(EDGEWISE_GAUGE("connections", "Connections that are open.")),
      preparing(EDGEWISE_GAUGE("preparing_messages", "Long messages that are prepared, or wait for it.")),
      read_delay(EDGEWISE_GAUGE("read_delay_seconds", "Longest wait of what clients have sent to be read.")),
      utilization(EDGEWISE_GAUGE("device_utilization_ratio", "Share of the last 10 seconds that the device worked.")),
      secret_loads(EDGEWISE_COUNTER("secret_loads_total", "Changed files of tokens and certificates, by result.")),
      rpc_requests(EDGEWISE_COUNTER("rpc_requests_total", "RPCs ended, by service, method and status code.")),
      http_requests(EDGEWISE_COUNTER("http_requests_total", "Requests of the HTTP front ended, by route and code.")),
      refusals(EDGEWISE_COUNTER("refusals_total", "Calls refused, over HTTP and gRPC, by code and reason.")),
      requests(EDGEWISE_COUNTER("requests_total", "Predict requests ended (messages, on a stream), by status code.")),
      items(EDGEWISE_COUNTER("items_total", "Inputs answered.")),
      executions(EDGEWISE_COUNTER("executions_total", "Batches computed.")),
      request_duration(EDGEWISE_HISTOGRAM("request_duration_seconds", "From the arrival of a request to its answer.")),
      queue_duration(EDGEWISE_HISTOGRAM("queue_duration_seconds", "Waiting for the device.")),
      stage(EDGEWISE_COUNTER("stage_seconds_total",
                             "Checking the input, the forward pass (edges drawn included), making the answer.")),
      in_flight(EDGEWISE_GAUGE("requests_in_flight", "Requests accepted and not yet answered.")),
      queue_requests(EDGEWISE_GAUGE("queue_requests", "Requests that wait for the device.")),
      queue_tokens(EDGEWISE_GAUGE("queue_tokens", "Valid tokens of the requests that wait.")),
      queue_seconds(EDGEWISE_GAUGE("queue_seconds", "Seconds that the requests that wait will take, as predicted.")),
      device(EDGEWISE_COUNTER("device_seconds_total", "Time that the device worked.")),
      capacity(EDGEWISE_GAUGE("capacity_requests_per_second",
                              "Predict requests of the usual size that the device would answer alone, as predicted.")),
      rejections(EDGEWISE_COUNTER("rejections_total", "Requests refused or dropped, by reason.")),
      cancelled_compute(EDGEWISE_COUNTER("cancelled_compute_seconds_total",
                                         "Compute time spent on requests that were cancelled or late.")),
      prediction(EDGEWISE_HISTOGRAM("measured_over_predicted_ratio",
                                    "Seconds that a batch took on the device, over those predicted.")),
      tokens(EDGEWISE_COUNTER("tokens_total", "Valid tokens answered.")),
      generations(EDGEWISE_COUNTER("generations_total", "Generate requests ended, by status code.")),
      generation_duration(
          EDGEWISE_HISTOGRAM("generation_duration_seconds", "From the arrival of a Generate request to its end.")),
      generations_running(EDGEWISE_GAUGE("generations_running", "Generations that run now.")),
      generated_tokens(EDGEWISE_COUNTER("generated_tokens_total", "Tokens generated.")),
      prompt_tokens(
          EDGEWISE_COUNTER("prompt_tokens_total", "Valid tokens of the prompts of generations that ended OK.")),
      first_token_duration(EDGEWISE_HISTOGRAM("first_token_duration_seconds",
                                              "From the arrival of a Generate request to its first token.")),
      token_duration(
          EDGEWISE_HISTOGRAM("token_duration_seconds", "From one generated token to the next, first ones left out.")),
      edges(EDGEWISE_COUNTER("attention_edges_total", "Attended pairs, summed over heads and samples.")),
      pairs(EDGEWISE_COUNTER("attention_pairs_total",
                             "Pairs of valid tokens, summed over heads and samples; edges / pairs is the density.")),
      isolated(EDGEWISE_COUNTER("isolated_queries_total", "Query rows without an edge, over heads and samples.")),
      input_density(EDGEWISE_HISTOGRAM("input_density_ratio", "Edges over pairs of an input, mean of its samples.")),
      budget_requests(EDGEWISE_COUNTER("edge_budget_requests_total", "Valid requests with an edge budget.")),
      budget_utilization(EDGEWISE_HISTOGRAM("edge_budget_utilization_ratio",
                                            "Edges of the most expensive sample over the cap; above 1 is a fault.")),
      budget_capped(EDGEWISE_COUNTER("edge_budget_capped_total", "Inputs whose budget made a layer drop edges.")),
      degraded(EDGEWISE_COUNTER("degraded_requests_total",
                                "Requests answered, as agreed, with fewer samples or a lower cap, by reason.")),
      shadow_requests(EDGEWISE_COUNTER("shadow_requests_total",
                                       "Answered requests to be computed again under another profile, by result.")),
      shadow_disagreements(EDGEWISE_COUNTER("shadow_disagreements_total",
                                            "Inputs whose most probable label (of a multi-label model: any label's yes "
                                            "or no) differs under the other profile.")),
      shadow_distance(
          EDGEWISE_HISTOGRAM("shadow_distance_ratio",
                             "Total variation distance of an input's distribution to that of the other profile; of a "
                             "multi-label model the mean over labels.")),
      shadow_device(
          EDGEWISE_COUNTER("shadow_device_seconds_total", "Time that the device worked on computing requests again.")),
      ensemble_samples(EDGEWISE_HISTOGRAM("ensemble_samples", "Samples that an answer is made of.")),
      ensemble_disagreement(
          EDGEWISE_HISTOGRAM("ensemble_disagreement_ratio",
                             "Share of samples (of tokens, where tokens are labelled; of each label's yes or no, where "
                             "a model is multi-label) whose label differs from the answer's.")) {}

#undef EDGEWISE_COUNTER
#undef EDGEWISE_GAUGE
#undef EDGEWISE_HISTOGRAM

size_t CodeIndex(absl::StatusCode code) {
  auto found = std::find(kCodes.begin(), kCodes.end(), code);
  if (found == kCodes.end()) found = std::find(kCodes.begin(), kCodes.end(), absl::StatusCode::kInternal);
  return static_cast<size_t>(found - kCodes.begin());
}

std::string CodeName(size_t index) { return absl::StatusCodeToString(kCodes[index]); }

std::vector<prometheus::MetricFamily> ProcessMetrics() {
  using prometheus::MetricType;
  std::vector<prometheus::MetricFamily> families;
  const std::vector<double> stat = ProcessStat();
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  if (stat.size() > 20) {  // proc(5): field n of stat is stat[n - 4]
    families.push_back(Single("process_cpu_seconds_total", "CPU time used, user and system.", MetricType::Counter,
                              (stat[10] + stat[11]) / ticks));
    families.push_back(Single("process_virtual_memory_bytes", "Address space.", MetricType::Gauge, stat[19]));
    families.push_back(Single("process_resident_memory_bytes", "Resident memory.", MetricType::Gauge,
                              stat[20] * static_cast<double>(sysconf(_SC_PAGESIZE))));
    static const double boot = BootTime();
    families.push_back(Single("process_start_time_seconds", "Start, seconds since the epoch.", MetricType::Gauge,
                              boot + stat[18] / ticks));
  }
  std::error_code error;
  double open = 0.0;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end; it.increment(error)) {
    ++open;
  }
  families.push_back(Single("process_open_fds", "File descriptors open.", MetricType::Gauge, open));
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  families.push_back(Single("process_max_fds", "File descriptors that may be open.", MetricType::Gauge,
                            static_cast<double>(limit.rlim_cur)));
  const struct mallinfo2 heap = mallinfo2();
  families.push_back(Single("edgewise_allocator_used_bytes", "Memory that the program has from its allocator.",
                            MetricType::Gauge, static_cast<double>(heap.uordblks + heap.hblkhd)));
  families.push_back(Single("edgewise_allocator_free_bytes",
                            "Memory that the allocator holds free; parts of it may have gone back to the system.",
                            MetricType::Gauge, static_cast<double>(heap.fordblks)));
  return families;
}

}  // namespace edgewise::server
