// attention_bench [--json FILE] [--threads N] [--isa NAME] [--heads H] [--repeats R] [--n N] [--d D]
//
// Sparse attention, drawing included, against dense attention of the same backend: the calls that Predict makes, timed
// in turns, medians. Memberships are made up, of rank 32, or those of a membership network of 128 clusters, scaled to
// the density. The network runs right before the attention that reads its memberships, as in a layer, and is timed on
// its own.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "bench/attention_calls.h"
#include "bench/flags.h"
#include "bench/fma_peak.h"
#include "bench/provenance.h"
#include "bench/row_errors.h"
#include "bench/timing.h"
#include "kernels/backend.h"
#include "kernels/cpu/simd/isa.h"
#include "selfcheck/synthetic.h"

namespace edgewise::bench {
namespace {

using selfcheck::Operands;
using selfcheck::SyntheticMemberships;

struct Options : RunOptions {
  int heads = 1;
  int only_n = 0, only_d = 0;  // 0: those of the tables
};

struct Row {
  int64_t n;
  int d, rank;
  double target_density, density;
  double milliseconds, dense_milliseconds, membership_milliseconds;
  double dense_peak_share, error;
};

template <typename Function>
double Seconds(const Function& function) {
  const double start = Now();
  function();
  return Now() - start;
}

// Largest |out - float64 attention| over some rows of every head.
double LargestError(const AttentionInputs& inputs, const DrawnRows& drawn, ConstMatrix out) {
  const int64_t n = inputs.q.rows;
  const Memberships& m = inputs.memberships;
  RowErrors errors;
  for (int h = 0; h < inputs.num_heads; ++h) {
    std::vector<int64_t> some;
    for (int64_t i = 5; i < n; i += n / 8) some.push_back(i);
    const auto keys =
        DrawnKeys(drawn, static_cast<uint32_t>(h), some, m.x + h * n * m.rank, m.y + h * n * m.rank, n, m.rank);
    for (size_t r = 0; r < some.size(); ++r) CompareRow(inputs, h, some[r], keys[r], out, errors);
  }
  return errors.largest_difference;
}

std::vector<Row> RunShape(Backend& backend, int64_t n, int d, const Options& options, double peak) {
  const double densities[] = {0.0025, 0.01, 0.025, 0.10, 0.25, 0.999};
  const Operands operands(n, options.heads, d);
  AttendCall dense(backend, operands, {}, AllPairs{});
  MembershipCall memberships(backend, operands);
  DrawnRows drawn;
  drawn.key.seed = 2026;
  std::vector<std::unique_ptr<SyntheticMemberships>> synthetic;
  std::vector<float> scales;  // of the network's memberships
  std::vector<std::unique_ptr<AttendCall>> sparse;
  for (double density : densities) {
    synthetic.push_back(std::make_unique<SyntheticMemberships>(n, options.heads, density));
    sparse.push_back(std::make_unique<AttendCall>(backend, operands, synthetic.back()->memberships, drawn));
  }
  memberships.Run();
  for (double density : densities) {
    scales.push_back(ScaleToDensity(memberships.memberships(), options.heads, density));
    sparse.push_back(std::make_unique<AttendCall>(backend, operands, memberships.memberships(), drawn));
  }
  // Computes the memberships of call i, if they are the network's. Returns the network's seconds.
  const auto compute = [&](size_t i) {
    if (i < synthetic.size()) return -1.0;
    const double seconds = Seconds([&] { memberships.Run(); });
    memberships.Scale(scales[i - synthetic.size()]);
    return seconds;
  };
  std::vector<double> dense_times, membership_times;
  std::vector<std::vector<double>> sparse_times(sparse.size());
  for (int repeat = -1; repeat < options.repeats; ++repeat) {  // the first warms up
    // Dense between the sparse calls, so that a slow moment of the machine meets both.
    for (size_t i = 0; i < sparse.size(); ++i) {
      const double membership_seconds = compute(i);
      const double seconds = Seconds([&] { sparse[i]->Run(); });
      const double dense_seconds = i % 2 == 0 ? Seconds([&] { dense.Run(); }) : -1.0;
      if (repeat < 0) continue;
      sparse_times[i].push_back(seconds);
      if (dense_seconds > 0.0) dense_times.push_back(dense_seconds);
      if (membership_seconds > 0.0) membership_times.push_back(membership_seconds);
    }
  }
  std::vector<Row> rows;
  const double pairs = static_cast<double>(n) * static_cast<double>(n) * options.heads;
  for (size_t i = 0; i < sparse.size(); ++i) {
    Row row;
    row.n = n;
    row.d = d;
    row.rank = sparse[i]->inputs.memberships.rank;
    row.target_density = densities[i % std::size(densities)];
    row.density = static_cast<double>(sparse[i]->edges()) / pairs;
    row.milliseconds = 1e3 * Median(sparse_times[i]);
    row.dense_milliseconds = 1e3 * Median(dense_times);
    row.membership_milliseconds = 1e3 * Median(membership_times);
    row.dense_peak_share = 4.0 * pairs * d / Median(dense_times) / peak;
    compute(i);
    row.error = LargestError(sparse[i]->inputs, drawn,
                             ConstMatrix(sparse[i]->out.data(), n, static_cast<int64_t>(options.heads) * d));
    rows.push_back(row);
  }
  return rows;
}

void PrintRow(const Row& row) {
  std::printf("%5ld %3d %4d %8.3f %8.4f  fp32 %9.2f %9.2f %10.2f %10.2f %9.2f %9.1e\n", static_cast<long>(row.n), row.d,
              row.rank, row.target_density, row.density, row.dense_milliseconds, row.milliseconds,
              row.dense_milliseconds / row.milliseconds,
              row.dense_milliseconds / (row.milliseconds + row.membership_milliseconds), row.dense_peak_share,
              row.error);
  std::fflush(stdout);
}

void WriteJson(const std::string& path, const std::vector<Row>& rows, const Options& options, const std::string& device,
               double peak, const std::string& provenance) {
  std::ofstream file(path);
  file << "{" << provenance << ", \"device\": \"" << device << "\", \"threads\": " << options.threads
       << ", \"heads\": " << options.heads << ", \"fma_peak_flops\": " << peak << ", \"rows\": [";
  const char* separator = "\n";
  for (const Row& row : rows) {
    file << separator << "  {\"n\": " << row.n << ", \"d\": " << row.d << ", \"rank\": " << row.rank
         << ", \"target_density\": " << row.target_density << ", \"density\": " << row.density
         << ", \"precision\": \"fp32\", \"speedup_over_dense\": " << row.dense_milliseconds / row.milliseconds
         << ", \"speedup_with_memberships\": "
         << row.dense_milliseconds / (row.milliseconds + row.membership_milliseconds)
         << ", \"dense_peak_share\": " << row.dense_peak_share << ", \"error\": " << row.error
         << ", \"milliseconds\": " << row.milliseconds << ", \"dense_milliseconds\": " << row.dense_milliseconds
         << ", \"membership_milliseconds\": " << row.membership_milliseconds << "}";
    separator = ",\n";
  }
  file << "\n]}\n";
  if (!file) Check(absl::UnavailableError("cannot write " + path));
}

int Run(const Options& options, const std::string& provenance) {
  auto backend = CreateBackend({"cpu", options.threads, options.isa, "fp32"});
  Check(backend.status());
  const auto isa = SelectIsa(options.isa);
  Check(isa.status());
  const double peak = FmaPeak(*isa, options.threads);
  std::printf("%s, %d threads, %d head%s, multiply-add peak %.1f GFLOP/s; medians of %d runs; law bernoulli\n\n",
              (*backend)->device().c_str(), options.threads, options.heads, options.heads == 1 ? "" : "s", peak / 1e9,
              options.repeats);
  std::printf("%5s %3s %4s %8s %8s %5s %9s %9s %10s %10s %9s %9s\n", "", "", "", "target", "", "", "dense", "sparse",
              "speedup", "with mem-", "dense", "");
  std::printf("%5s %3s %4s %8s %8s %5s %9s %9s %10s %10s %9s %9s\n", "n", "d", "rank", "density", "density", "prec",
              "ms", "ms", "", "berships", "of peak", "error");
  std::vector<Row> rows;
  const auto of = [](int only, std::vector<int> all) { return only != 0 ? std::vector<int>{only} : all; };
  for (const int64_t n : of(options.only_n, {1024, 2048, 4096})) {
    for (const int d : of(options.only_d, {32, 64})) {
      for (const Row& row : RunShape(**backend, n, d, options, peak)) {
        PrintRow(row);
        rows.push_back(row);
      }
    }
  }
  if (!options.json.empty()) WriteJson(options.json, rows, options, (*backend)->device(), peak, provenance);
  return 0;
}

}  // namespace
}  // namespace edgewise::bench

int main(int argc, char** argv) {
  using namespace edgewise::bench;
  Options options;
  edgewise::FlagSet flags("attention_bench [flags]",
                          "Time and error of sparse attention on the CPU, beside dense attention.");
  options.Register(flags);
  flags.Add("heads", "H", "attention heads", &options.heads, {1});
  flags.Add("n", "N", "only this length; 0: all of the table", &options.only_n, {0});
  flags.Add("d", "D", "only this size of a head; 0: all of the table", &options.only_d, {0});
  ParseOrExit(flags, argc, argv);
  return Run(options, Provenance(argc, argv));
}
