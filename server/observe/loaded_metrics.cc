// What the requests of a loaded model count.
#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <vector>

#include "model/kinds/patterns.h"
#include "server/observe/metric_families.h"
#include "server/observe/metrics.h"
#include "server/task.h"

namespace edgewise::server {
namespace {

constexpr const char* kStages[] = {"input", "forward", "output"};
constexpr const char* kBudgetKinds[] = {"none", "edges", "density"};

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

}  // namespace

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

void LoadedMetrics::AddGenerations(int running) {
  const MetricsEvent event(mutex_);
  series_->generations_running->Increment(running);
}

void LoadedMetrics::AddInFlight(int requests) {
  const MetricsEvent event(mutex_);
  series_->in_flight->Increment(requests);
}

void LoadedMetrics::AddQueued(int requests, int64_t tokens) {
  const MetricsEvent event(mutex_);
  series_->queue_requests->Increment(requests);
  series_->queue_tokens->Increment(static_cast<double>(tokens));
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

}  // namespace edgewise::server
