#include "tests/model/run_model.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>

#include "model/load/load.h"
#include "tests/model/deferred_backend.h"
#include "tests/model/events_backend.h"
#include "tests/model/toy_kind.h"

namespace edgewise::testing {
namespace {

constexpr int kSkipped = 77;  // no such device or processor: as CMakeLists.txt, gpu.cmake and tools/gpu/run.sh expect

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}

template <typename T>
bool SameVector(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

bool SameHead(const HeadEdges& a, const HeadEdges& b) {
  return SameVector(a.row_offsets, b.row_offsets) && SameVector(a.keys, b.keys) &&
         SameVector(a.multiplicity, b.multiplicity) && SameVector(a.weights, b.weights);
}

}  // namespace

std::unique_ptr<Backend> MakeBackend(int threads) {
  BackendOptions options;
  options.num_threads = threads;
  if (const char* isa = std::getenv("EDGEWISE_TEST_ISA")) options.isa = isa;
  if (const char* device = std::getenv("EDGEWISE_TEST_DEVICE")) options.device = device;
  if (const char* precision = std::getenv("EDGEWISE_TEST_PRECISION")) options.precision = precision;
  if (const char* weights = std::getenv("EDGEWISE_TEST_WEIGHTS")) options.weights = weights;
  auto backend = CreateBackend(options);
  const bool not_built = options.device != "cpu" && absl::IsUnimplemented(backend.status());
  if (absl::IsUnavailable(backend.status()) || not_built) {
    std::fprintf(stderr, "skipped: %s\n", backend.status().ToString().c_str());
    std::_Exit(kSkipped);
  }
  Check(backend.status());
  if (std::getenv("EDGEWISE_TEST_EVENTS") != nullptr) return std::make_unique<EventsBackend>(*std::move(backend));
  if (std::getenv("EDGEWISE_TEST_DEFERRED") == nullptr) return *std::move(backend);
  return std::make_unique<DeferredBackend>(*std::move(backend));
}

LoadedModel LoadModelOn(Backend& backend, const std::string& folder) {
  auto model = LoadModel(folder, backend, KindsWithToy());
  Check(model.status());
  return {nullptr, *std::move(model)};
}

LoadedModel LoadModel(const std::string& folder, std::unique_ptr<Backend> backend) {
  LoadedModel loaded = LoadModelOn(*backend, folder);
  loaded.backend = std::move(backend);
  return loaded;
}

LoadedModel LoadModel(const std::string& folder, int threads) { return LoadModel(folder, MakeBackend(threads)); }

ModelInput MakeInput(const Model& model, const std::vector<int32_t>& token_ids, const std::vector<int32_t>& second) {
  ModelInput input;
  for (const auto* ids : {&token_ids, &second}) {
    if (ids == &second && second.empty()) continue;
    auto sequence = model.Prepare(*ids, TruncateMode::kRefuse);
    Check(sequence.status());
    input.sequences.push_back(*std::move(sequence));
  }
  return input;
}

std::vector<InputResult> RunAll(const Model& model, const std::vector<ModelInput>& inputs, Pass::Options options) {
  Pass pass(model, inputs, options);
  while (!pass.done()) Check(pass.Step());
  std::vector<InputResult> results;
  for (size_t i = 0; i < inputs.size(); ++i) results.push_back(pass.TakeResult(static_cast<int64_t>(i)));
  return results;
}

InputResult RunOne(const Model& model, const ModelInput& input) { return std::move(RunAll(model, {input})[0]); }

std::vector<int32_t> RandomTokens(int32_t count, int32_t vocab_size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(1 + random() % (vocab_size - 1)));
  return ids;
}

bool SameBytes(const InputResult& a, const InputResult& b) {
  bool same = a.status == b.status && a.samples == b.samples && a.edges == b.edges && a.density == b.density &&
              a.capped == b.capped && a.max_sample_edges == b.max_sample_edges &&
              a.isolated_queries == b.isolated_queries && SameVector(a.probabilities, b.probabilities) &&
              SameVector(a.logits, b.logits) && SameVector(a.stddev, b.stddev) && SameVector(a.label_id, b.label_id) &&
              SameVector(a.predictive_entropy, b.predictive_entropy) &&
              SameVector(a.mutual_information, b.mutual_information) && SameVector(a.token_rows, b.token_rows) &&
              a.log_likelihood == b.log_likelihood && a.perplexity == b.perplexity &&
              a.sample_results.size() == b.sample_results.size() && a.graph.has_value() == b.graph.has_value();
  for (size_t s = 0; same && s < a.sample_results.size(); ++s) {
    const SampleResult& x = a.sample_results[s];
    const SampleResult& y = b.sample_results[s];
    same = SameVector(x.probabilities, y.probabilities) && SameVector(x.logits, y.logits) && x.edges == y.edges &&
           SameVector(x.token_probabilities, y.token_probabilities) && x.isolated == y.isolated &&
           x.layers.size() == y.layers.size();
    for (size_t l = 0; same && l < x.layers.size(); ++l) {
      for (size_t h = 0; same && h < x.layers[l].size(); ++h) {
        same = x.layers[l][h].edges == y.layers[l][h].edges && x.layers[l][h].isolated == y.layers[l][h].isolated &&
               SameVector(x.layers[l][h].key_degrees, y.layers[l][h].key_degrees);
      }
    }
  }
  if (!same || !a.graph.has_value()) return same;
  same = a.graph->layers.size() == b.graph->layers.size();
  for (size_t l = 0; same && l < a.graph->layers.size(); ++l) {
    same = a.graph->layers[l].size() == b.graph->layers[l].size();
    for (size_t h = 0; same && h < a.graph->layers[l].size(); ++h) {
      same = SameHead(a.graph->layers[l][h], b.graph->layers[l][h]);
    }
  }
  return same;
}

uint64_t CountEdges(const Graph& graph) {
  uint64_t edges = 0;
  for (const auto& layer : graph.layers) {
    for (const HeadEdges& head : layer) edges += head.keys.size();
  }
  return edges;
}

}  // namespace edgewise::testing
