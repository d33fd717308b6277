// kinds_bench [--json FILE] [--threads N] [--isa NAME] [--repeats R] [--n N] [--d D]
//
// Attention of grouped keys (SSA windows, block-sparse rows) and causal attention against dense attention of the same
// backend, and products of one row against reading their weights. Timed in turns, medians; one thread: its processor
// time, which other programs of the machine do not count in.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/flags.h"
#include "bench/provenance.h"
#include "bench/row_errors.h"
#include "bench/timing.h"
#include "kernels/backend.h"
#include "selfcheck/synthetic.h"

namespace edgewise::bench {
namespace {

using selfcheck::Floats;
using selfcheck::Operands;

struct Options : RunOptions {
  int n = 4096, d = 64;
};

double Seconds(int threads) { return threads == 1 ? CpuSeconds() : Now(); }

void AddGroup(std::vector<int32_t> keys, int32_t end, GroupedKeys& groups) {
  std::sort(keys.begin(), keys.end());
  if (groups.group_begin.empty()) {
    groups.group_begin.push_back(0);
    groups.key_offsets.push_back(0);
  }
  groups.keys.insert(groups.keys.end(), keys.begin(), keys.end());
  groups.key_offsets.push_back(static_cast<int64_t>(groups.keys.size()));
  groups.group_begin.push_back(end);
}

// Windows of n / w queries; their keys are a part of the places in the order of j + sigma n z_j. Causal: of the places
// up to the window's end, the last n / w.
GroupedKeys Windows(int32_t n, int windows, bool causal) {
  constexpr double kSigma = 0.1;
  std::mt19937 random(31);
  std::normal_distribution<double> normal;
  GroupedKeys groups;
  groups.causal = causal;
  std::vector<std::pair<double, int32_t>> order(n);
  const int32_t size = n / windows;
  for (int32_t a = 0; a < windows; ++a) {
    const int32_t begin = a * size, end = a + 1 == windows ? n : begin + size;
    const int32_t places = causal ? end : n;
    if (causal || a == 0) {
      order.resize(places);
      for (int32_t j = 0; j < places; ++j) order[j] = {j + kSigma * n * normal(random), j};
      std::sort(order.begin(), order.end());
    }
    std::vector<int32_t> keys;
    for (int32_t place = begin; place < end; ++place) keys.push_back(order[place].second);
    AddGroup(std::move(keys), end, groups);
  }
  return groups;
}

// Each block of queries sees the `width` blocks of keys around its own.
GroupedKeys LocalBlocks(int32_t n, int32_t block, int32_t width) {
  GroupedKeys groups;
  const int32_t blocks = n / block;
  for (int32_t b = 0; b < blocks; ++b) {
    const int32_t first = std::clamp(b - width / 2, 0, blocks - width);
    std::vector<int32_t> keys(static_cast<size_t>(width) * block);
    std::iota(keys.begin(), keys.end(), first * block);
    AddGroup(std::move(keys), (b + 1) * block, groups);
  }
  return groups;
}

// Largest |out - float64 attention| over some rows.
double Error(const AttentionInputs& inputs, const AttentionPattern& pattern, ConstMatrix out) {
  const auto n = static_cast<int32_t>(inputs.q.rows);
  const auto* grouped = std::get_if<GroupedKeys>(&pattern);
  const bool causal = grouped != nullptr ? grouped->causal : std::get<AllPairs>(pattern).causal;
  RowErrors errors;
  for (int32_t i = 3; i < n; i += n / 16) {
    std::vector<int32_t> keys = AllKeys(n);
    if (grouped != nullptr) {
      const auto& begins = grouped->group_begin;
      const auto g = std::upper_bound(begins.begin(), begins.end(), i) - begins.begin() - 1;
      keys.assign(grouped->keys.begin() + grouped->key_offsets[g], grouped->keys.begin() + grouped->key_offsets[g + 1]);
    }
    if (causal) std::erase_if(keys, [&](int32_t key) { return key > i; });
    CompareRow(inputs, 0, i, keys, out, errors);
  }
  return errors.largest_difference;
}

// A pattern, what it is compared with, and the share of that which it should take at most (0: none).
struct Row {
  std::string name;
  AttentionPattern pattern;
  int base;
  double target;
  double milliseconds = 0.0, ratio = 0.0, error = 0.0;
  uint64_t edges = 0;
};

std::vector<Row> MakeRows(int32_t n) {
  std::vector<Row> rows = {{"dense", AllPairs{}, 0, 0.0}, {"causal dense", AllPairs{true}, 0, 0.0}};
  for (const bool causal : {false, true}) {
    for (const int w : {4, 8, 16}) {
      rows.push_back({std::string(causal ? "causal " : "") + "windows " + std::to_string(w), Windows(n, w, causal),
                      causal ? 1 : 0, (causal ? 2.3 : 1.15) / w});
    }
  }
  // The base of the widths of one size of block is the first of them: time in proportion to blocks.
  for (const int32_t block : {16, 32, 64}) {
    const int base = static_cast<int>(rows.size());
    for (const int32_t keys : {128, 256, 512, 1024}) {
      rows.push_back({"blocks " + std::to_string(block) + " width " + std::to_string(keys / block),
                      LocalBlocks(n, block, keys / block), base, keys == 128 ? 0.0 : 1.15 * keys / 128});
    }
  }
  return rows;
}

void RunRows(Backend& backend, const Options& options, std::vector<Row>& rows) {
  const Operands operands(options.n, 1, options.d);
  std::vector<std::vector<double>> times(rows.size());
  Floats out(operands.q.size());
  const Matrix out_matrix(out.data(), options.n, options.d);
  for (int repeat = -1; repeat < options.repeats; ++repeat) {  // the first warms up
    for (size_t i = 0; i < rows.size(); ++i) {
      AttentionReport report;
      AttentionProblem problem;
      problem.tokens = options.n;
      problem.pattern = rows[i].pattern;
      problem.report = &report;
      const double start = Seconds(options.threads);
      Check(backend.Attend(operands.inputs, {&problem, 1}, {}, out_matrix));
      Check(backend.Synchronize());
      if (repeat >= 0) times[i].push_back(Seconds(options.threads) - start);
      if (repeat >= 0) continue;
      rows[i].edges = report.heads[0].edges;
      rows[i].error = Error(operands.inputs, rows[i].pattern, out_matrix);
    }
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<double> ratios;
    for (size_t r = 0; r < times[i].size(); ++r) ratios.push_back(times[i][r] / times[rows[i].base][r]);
    rows[i].milliseconds = 1e3 * Median(times[i]);
    rows[i].ratio = Median(ratios);
    std::printf("%-24s %10lu %9.3f %8.4f of %-20s", rows[i].name.c_str(), static_cast<unsigned long>(rows[i].edges),
                rows[i].milliseconds, rows[i].ratio, rows[rows[i].base].name.c_str());
    if (rows[i].target > 0.0) std::printf(" (at most %.4f)", rows[i].target);
    std::printf("  error %.1e\n", rows[i].error);
  }
}

// Gigabytes a second of the products of one row through the layers of a 10.6M-parameter nanoGPT, and of reading as many
// floats.
std::pair<double, double> GemvBandwidth(Backend& backend, const Options& options) {
  constexpr int kLayers = 6;
  const std::pair<int64_t, int64_t> shapes[] = {{1152, 384}, {384, 384}, {1536, 384}, {384, 1536}};
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<std::pair<std::unique_ptr<LinearWeights>, std::pair<int64_t, int64_t>>> layers;
  double bytes = 0.0;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const auto& [out, in] : shapes) {
      std::vector<float> weight(static_cast<size_t>(out * in));
      for (float& value : weight) value = normal(random);
      auto made = backend.PrepareLinear(weight, {}, out, in, Activation::kNone);
      Check(made.status());
      layers.emplace_back(*std::move(made), std::pair(out, in));
      bytes += 4.0 * static_cast<double>(out * in);
    }
  }
  Floats x(1536, 1.0f), y(1536);
  std::vector<float> plain(static_cast<size_t>(bytes / 4.0), 1.0f);
  std::vector<double> products, reads;
  volatile float sink = 0.0f;
  for (int repeat = 0; repeat < 3 * options.repeats; ++repeat) {
    double start = Seconds(options.threads);
    for (const auto& [weights, shape] : layers) {
      Check(backend.Linear(*weights, {x.data(), 1, shape.second}, {y.data(), 1, shape.first}, false, Phase::kDecode));
    }
    products.push_back(Seconds(options.threads) - start);
    start = Seconds(options.threads);
    const auto read = [&](size_t part) {
      float sum[64] = {};
      const size_t begin = plain.size() * part / options.threads, end = plain.size() * (part + 1) / options.threads;
      for (size_t i = begin; i + 64 <= end; i += 64) {
        for (int l = 0; l < 64; ++l) sum[l] += plain[i + l];
      }
      sink = std::accumulate(sum, sum + 64, 0.0f);
    };
    std::vector<std::thread> threads;
    for (int t = 1; t < options.threads; ++t) threads.emplace_back(read, t);
    read(0);
    for (std::thread& thread : threads) thread.join();
    reads.push_back(Seconds(options.threads) - start);
  }
  return {bytes / Median(products) / 1e9, bytes / Median(reads) / 1e9};
}

void WriteJson(const Options& options, const std::string& device, const std::vector<Row>& rows,
               std::pair<double, double> few, const std::string& provenance) {
  std::ofstream file(options.json);
  file << "{" << provenance << ", \"device\": \"" << device << "\", \"threads\": " << options.threads
       << ", \"n\": " << options.n << ", \"d\": " << options.d << ", \"one_row_products_gbps\": " << few.first
       << ", \"read_gbps\": " << few.second << ", \"rows\": [";
  const char* separator = "\n";
  for (const Row& row : rows) {
    file << separator << "  {\"name\": \"" << row.name << "\", \"edges\": " << row.edges
         << ", \"precision\": \"fp32\", \"milliseconds\": " << row.milliseconds << ", \"base\": \""
         << rows[row.base].name << "\", \"ratio\": " << row.ratio << ", \"target\": " << row.target
         << ", \"error\": " << row.error << "}";
    separator = ",\n";
  }
  file << "\n]}\n";
  if (!file) Check(absl::UnavailableError("cannot write " + options.json));
}

int Run(const Options& options, const std::string& provenance) {
  auto backend = CreateBackend({"cpu", options.threads, options.isa, "fp32"});
  Check(backend.status());
  std::printf("%s, %d threads, n = %d, d = %d, one head; medians of %d runs\n\n%-24s %10s %9s\n",
              (*backend)->device().c_str(), options.threads, options.n, options.d, options.repeats, "", "edges", "ms");
  std::vector<Row> rows = MakeRows(options.n);
  RunRows(**backend, options, rows);
  const auto few = GemvBandwidth(**backend, options);
  std::printf("\nproducts of one row: %.1f GB/s of weights; reading alone: %.1f GB/s\n", few.first, few.second);
  if (!options.json.empty()) WriteJson(options, (*backend)->device(), rows, few, provenance);
  return 0;
}

}  // namespace
}  // namespace edgewise::bench

int main(int argc, char** argv) {
  using namespace edgewise::bench;
  Options options;
  edgewise::FlagSet flags("kinds_bench [flags]", "Every kind of sparse attention, beside dense attention.");
  options.Register(flags);
  flags.Add("n", "N", "tokens, 1024 or more", &options.n, {1024});
  flags.Add("d", "D", "size of a head", &options.d, {1});
  ParseOrExit(flags, argc, argv);
  options.n = options.n / 64 * 64;
  return Run(options, Provenance(argc, argv));
}
