// generate_bench [--threads N] [--isa NAME] [--tokens T] [--samples S] [--repeats R] [--torch PYTHON] [--json FILE]
//
// Generation of T tokens within the context by a model of nanoGPT's shakespeare_char size (6 layers, 6 heads, 384,
// context 256, 65 characters; 10.6 million random weights) at batch 1: tokens a second, and their share of the bound
// that reading the weights sets, at the bandwidth measured in this run: from memory, and of a buffer of the weights'
// size read again and again. With --torch: nanoGPT's way of generating, in that Python's PyTorch, on as many threads,
// in turns with ours.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "bench/flags.h"
#include "bench/provenance.h"
#include "bench/random_model.h"
#include "bench/timing.h"
#include "kernels/backend.h"
#include "model/forward/generation.h"
#include "model/model.h"

namespace edgewise::bench {
namespace {

struct Options : RunOptions {
  Options() { repeats = 5; }
  std::string torch;
  int tokens = 255;
  int samples = 1;
};

constexpr char kConfig[] = R"({
  "task": "causal-lm", "vocab_size": 65, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6,
  "intermediate_size": 1536, "max_position_embeddings": 256, "pad_token_id": -1, "attention": {"kind": "dense"}
})";
constexpr int64_t kReadBytes = int64_t{1} << 29;  // beyond any cache

// Bytes a second that `threads` threads read from `bytes` in turns, best of a few.
double ReadBandwidth(int threads, int64_t bytes) {
  const int64_t each = bytes / 4 / threads / 64 * 64;
  std::vector<std::vector<float>> parts(threads);
  double best = 0.0;
  std::vector<float> sums(threads * 16, 0.0f);
  const auto on_all = [&](const auto& body) {
    std::vector<std::thread> workers;
    for (int t = 0; t < threads; ++t) workers.emplace_back(body, t);
    for (std::thread& worker : workers) worker.join();
  };
  on_all([&](int t) { parts[t].assign(each, 1.0f); });
  const int rounds = static_cast<int>(std::max<int64_t>(1, kReadBytes / bytes));
  for (int repeat = 0; repeat < 7; ++repeat) {
    const double start = Now();
    on_all([&](int t) {
      float lanes[64] = {};
      for (int round = 0; round < rounds; ++round) {
        for (int64_t i = 0; i < each; i += 64) {
          for (int l = 0; l < 64; ++l) lanes[l] += parts[t][i + l];
        }
      }
      for (float lane : lanes) sums[t * 16] += lane;
    });
    best = std::max(best, static_cast<double>(each * 4 * threads) * rounds / (Now() - start));
  }
  if (sums[0] == 0.0f) std::printf(" ");  // so that the reads are not for nothing
  return best;
}

double GenerateSeconds(const Model& model, const Options& options) {
  GenerationOptions generation_options;
  generation_options.max_new_tokens = options.tokens;
  generation_options.temperature = 0.8;
  generation_options.top_k = 65;
  generation_options.samples = options.samples;
  const auto prompt = model.Prepare({0}, TruncateMode::kRefuse);
  Check(prompt.status());
  const double start = Now();
  auto generation = Generation::Create(model, *prompt, generation_options);
  Check(generation.status());
  while (!(*generation)->done()) Check((*generation)->Step());
  return Now() - start;
}

// Seconds of one run of the peer.
double PeerSeconds(const Options& options) {
  const std::string script = std::filesystem::path(__FILE__).parent_path() / "nanogpt_peer.py";
  std::ostringstream line;
  line << options.torch << " " << script << " --threads " << options.threads << " --tokens " << options.tokens
       << " --repeats 1";
  const std::string command = line.str();
  FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  for (int c = 0; pipe != nullptr && (c = std::fgetc(pipe)) != EOF;) output += static_cast<char>(c);
  double seconds = 0.0;
  if (pipe == nullptr || pclose(pipe) != 0 || std::sscanf(output.c_str(), "[%lf]", &seconds) != 1) {
    std::fprintf(stderr, "the peer failed: %s\n", command.c_str());
    std::exit(1);
  }
  return seconds;
}

int Run(const Options& options, const std::string& provenance) {
  BackendOptions backend_options;
  backend_options.isa = options.isa;
  backend_options.num_threads = options.threads;
  auto backend = CreateBackend(backend_options);
  Check(backend.status());
  const RandomModel random = MakeRandomModel(kConfig, **backend);  // the word embedding is the output layer
  const Model& model = *random.model;
  const int64_t weight_bytes = random.matrix_bytes;

  const double memory = ReadBandwidth(options.threads, kReadBytes);
  const double resident = ReadBandwidth(options.threads, weight_bytes);
  GenerateSeconds(model, options);  // warm up
  std::vector<double> ours, peers;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    ours.push_back(options.tokens / GenerateSeconds(model, options));
    if (!options.torch.empty()) peers.push_back(options.tokens / PeerSeconds(options));
  }
  const double rate = Median(ours);
  const double bytes = static_cast<double>(weight_bytes);
  const double bound = memory / bytes, resident_bound = resident / bytes;
  std::printf("%s, %d threads, %d tokens, %d samples, %.1f M parameters\n", (*backend)->device().c_str(),
              options.threads, options.tokens, options.samples, static_cast<double>(model.parameters()) / 1e6);
  std::printf("tokens/s               %10.1f\n", rate);
  std::printf("weights read a token   %10.1f MB\n", static_cast<double>(weight_bytes) / 1e6);
  std::printf("read from memory       %10.2f GB/s: bound %.1f tokens/s, share %.2f\n", memory / 1e9, bound,
              rate / bound);
  std::printf("read again and again   %10.2f GB/s (as much as the weights, which caches may hold): share %.2f\n",
              resident / 1e9, rate / resident_bound);
  const double peer = peers.empty() ? 0.0 : Median(peers);
  if (!peers.empty()) std::printf("nanoGPT in PyTorch     %10.1f tokens/s, ratio %.2f\n", peer, rate / peer);
  if (!options.json.empty()) {
    std::ofstream(options.json) << "{" << provenance << ", \"device\": \"" << (*backend)->device()
                                << "\", \"threads\": " << options.threads << ", \"tokens\": " << options.tokens
                                << ", \"samples\": " << options.samples << ", \"tokens_per_second\": " << rate
                                << ", \"weight_bytes\": " << weight_bytes
                                << ", \"memory_read_bytes_per_second\": " << memory
                                << ", \"resident_read_bytes_per_second\": " << resident
                                << ", \"share_of_memory_bound\": " << rate / bound
                                << ", \"share_of_resident_bound\": " << rate / resident_bound
                                << ", \"peer_tokens_per_second\": " << peer << "}\n";
  }
  return 0;
}

}  // namespace
}  // namespace edgewise::bench

int main(int argc, char** argv) {
  using namespace edgewise::bench;
  Options options;
  edgewise::FlagSet flags(
      "generate_bench [flags]",
      "Tokens per second of generation, beside the memory bandwidth and, where it is there, PyTorch.");
  options.Register(flags);
  flags.Add("tokens", "T", "tokens to generate", &options.tokens, {1});
  flags.Add("samples", "S", "samples of an ensemble", &options.samples, {1});
  flags.Add("torch", "PYTHON", "a Python with PyTorch, to compare with", &options.torch);
  ParseOrExit(flags, argc, argv);
  return Run(options, Provenance(argc, argv));
}
