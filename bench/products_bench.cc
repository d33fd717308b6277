// products_bench [--threads N] [--isa NAME] [--weights FORMAT]
//
// Matrix products y = x W^T of the CPU backend, timed one at a time for bench/products.py. Reads lines from standard
// input and answers each with one line:
//
//   peak                      the machine's float32 multiply-add rate with that many threads, FLOP/s
//   ROWS OUT IN REPEATS       seconds of one product, the mean over REPEATS in a row
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "bench/flags.h"
#include "bench/fma_peak.h"
#include "bench/timing.h"
#include "kernels/backend.h"
#include "kernels/cpu/simd/isa.h"
#include "selfcheck/synthetic.h"

namespace edgewise::bench {
namespace {

struct Product {
  int64_t out = 0, in = 0;
  std::unique_ptr<LinearWeights> weights;
};

void Serve(Backend& backend, const RunOptions& options) {
  Product product;
  selfcheck::Floats x, y;
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line == "peak") {
      std::printf("%.9e\n", FmaPeak(*SelectIsa(options.isa), options.threads));
      std::fflush(stdout);
      continue;
    }
    int64_t rows = 0, out = 0, in = 0, repeats = 0;
    if (!(std::istringstream(line) >> rows >> out >> in >> repeats)) break;
    if (out != product.out || in != product.in) {
      const std::vector<float> weight(static_cast<size_t>(out * in), 0.01f);
      auto prepared = backend.PrepareLinear(weight, {}, out, in, Activation::kNone);
      Check(prepared.status());
      product = {out, in, *std::move(prepared)};
    }
    x.assign(static_cast<size_t>(rows * in), 0.5f);
    y.assign(static_cast<size_t>(rows * out), 0.0f);
    const double start = Now();
    for (int64_t r = 0; r < repeats; ++r) {
      Check(backend.Linear(*product.weights, {x.data(), rows, in}, {y.data(), rows, out}, false));
    }
    std::printf("%.9e\n", (Now() - start) / static_cast<double>(repeats));
    std::fflush(stdout);
  }
}

int Main(int argc, char** argv) {
  RunOptions options;
  FlagSet flags("products_bench [flags]", "Answers lines of standard input with the time of a matrix product.");
  options.Register(flags);
  std::string weights = "float32";
  flags.Add("weights", "FORMAT", "float32, bfloat16 or int8", &weights);
  ParseOrExit(flags, argc, argv);
  BackendOptions backend_options;
  backend_options.isa = options.isa;
  backend_options.num_threads = options.threads;
  backend_options.weights = weights;
  auto backend = CreateBackend(backend_options);
  Check(backend.status());
  Serve(**backend, options);
  return 0;
}

}  // namespace
}  // namespace edgewise::bench

int main(int argc, char** argv) { return edgewise::bench::Main(argc, argv); }
