// ensemble_bench [--threads N] [--isa NAME] [--n N] [--windows W] [--samples S] [--repeats R] [--json FILE]
//
// A language model of 16 layers trained densely, served with SSA in its last 12 (S12-L4 of the SSA paper): S samples
// share the 4 dense layers below. Bound: 1.15 (4 + 12 S c) / 16 dense forwards, where c is what a layer of SSA costs
// next to a dense one, both measured in this run as the forward of the model with that attention in every layer.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bench/flags.h"
#include "bench/provenance.h"
#include "bench/random_model.h"
#include "bench/timing.h"
#include "kernels/backend.h"
#include "model/config/config.h"
#include "model/forward/pass.h"
#include "model/kinds/override.h"

namespace edgewise::bench {
namespace {

constexpr int kLayers = 16;
constexpr int kSampled = 12;
constexpr double kSlack = 1.15;

struct Options : RunOptions {
  Options() { repeats = 5; }
  int n = 2048;
  int windows = 4;
  int samples = 8;
};

std::string Config(int n) {
  return R"({"task": "causal-lm", "vocab_size": 256, "hidden_size": 256, "num_hidden_layers": 16, "num_attention_heads": 4,
    "intermediate_size": 1024, "pad_token_id": -1, "position_embedding": "alibi", "attention": {"kind": "dense"},
    "max_position_embeddings": )" +
         std::to_string(n) + "}";
}

// Attention of the last `layers` layers replaced by SSA; 0: the model's own.
using Attention = std::shared_ptr<const std::vector<AttentionConfig>>;
Attention Override(const Model& model, const Options& options, int layers) {
  if (layers == 0) return nullptr;
  auto made = OverrideAttention(model.config(), {.kind = "ssa",
                                                 .windows = static_cast<uint32_t>(options.windows),
                                                 .sigma = {0.1, 0.2},
                                                 .last_layers = static_cast<uint32_t>(layers)});
  Check(made.status());
  return std::make_shared<const std::vector<AttentionConfig>>(*std::move(made));
}

double ForwardSeconds(const Model& model, const Options& options, const Attention& attention, int samples) {
  std::vector<int32_t> tokens(static_cast<size_t>(options.n));
  std::mt19937_64 random(1);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 256);
  auto sequence = model.Prepare(tokens, TruncateMode::kRefuse);
  Check(sequence.status());
  std::vector<ModelInput> inputs(1);
  inputs[0].sequences.push_back(*std::move(sequence));
  inputs[0].attention = attention;
  inputs[0].samples = static_cast<uint32_t>(samples);
  inputs[0].seed = 1;
  const double start = Now();
  Pass pass(model, inputs, {});
  while (!pass.done()) Check(pass.Step());
  Check(pass.TakeResult(0).status);
  return Now() - start;
}

int Run(const Options& options, const std::string& provenance) {
  BackendOptions backend_options;
  backend_options.isa = options.isa;
  backend_options.num_threads = options.threads;
  auto backend = CreateBackend(backend_options);
  Check(backend.status());
  const RandomModel random = MakeRandomModel(Config(options.n), **backend);
  const Attention all = Override(*random.model, options, kLayers);
  const Attention last = Override(*random.model, options, kSampled);
  std::vector<double> dense, ssa, ensemble;
  for (int repeat = 0; repeat <= options.repeats; ++repeat) {  // the first warms up
    dense.push_back(ForwardSeconds(*random.model, options, nullptr, 1));
    ssa.push_back(ForwardSeconds(*random.model, options, all, 1));
    ensemble.push_back(ForwardSeconds(*random.model, options, last, options.samples));
    if (repeat == 0) dense.clear(), ssa.clear(), ensemble.clear();
  }
  const double c = Median(ssa) / Median(dense);
  const double ratio = Median(ensemble) / Median(dense);
  const double bound = kSlack * (kLayers - kSampled + kSampled * options.samples * c) / kLayers;
  std::printf("%s, %d threads, n = %d, %d windows, S%d-L%d, %d samples\n", (*backend)->device().c_str(),
              options.threads, options.n, options.windows, kSampled, kLayers - kSampled, options.samples);
  std::printf("dense forward      %8.1f ms\n", Median(dense) * 1e3);
  std::printf("SSA layer          %8.3f of a dense one (c)\n", c);
  std::printf("ensemble           %8.1f ms, %.3f dense forwards (at most %.3f)\n", Median(ensemble) * 1e3, ratio,
              bound);
  if (!options.json.empty()) {
    std::ofstream file(options.json);
    file << "{" << provenance << ", \"device\": \"" << (*backend)->device() << "\", \"threads\": " << options.threads
         << ", \"n\": " << options.n << ", \"windows\": " << options.windows << ", \"samples\": " << options.samples
         << ", \"dense_milliseconds\": " << Median(dense) * 1e3 << ", \"c\": " << c << ", \"ratio\": " << ratio
         << ", \"target\": " << bound << "}\n";
    if (!file) Check(absl::UnavailableError("cannot write " + options.json));
  }
  return 0;
}

}  // namespace
}  // namespace edgewise::bench

int main(int argc, char** argv) {
  using namespace edgewise::bench;
  Options options;
  edgewise::FlagSet flags("ensemble_bench [flags]", "Samples of an ensemble, together and one by one.");
  options.Register(flags);
  flags.Add("n", "N", "tokens", &options.n, {1});
  flags.Add("windows", "W", "windows of SSA", &options.windows, {1});
  flags.Add("samples", "S", "samples of an ensemble", &options.samples, {1});
  ParseOrExit(flags, argc, argv);
  return Run(options, Provenance(argc, argv));
}
