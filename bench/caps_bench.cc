// caps_bench [--isa NAME] [--repeats R] [--n N] [--models] [--examples FOLDER] [--json FILE]
//
// What a cap saves: attention over drawn edges under caps of a share of the edges that it has without one, as a share
// of its time without one; with --models the forward pass of each bundled model instead. CPU time of one thread;
// medians of paired runs, in turns.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bench/attention_calls.h"
#include "bench/caps_models.h"
#include "bench/flags.h"
#include "bench/provenance.h"
#include "kernels/reference/reference.h"

namespace edgewise::bench {
namespace {

using selfcheck::Operands;
using selfcheck::SyntheticMemberships;

constexpr int kHeadDim = 64;
constexpr double kCaps[] = {2.0, 1.0, 0.99, 0.97, 0.95, 0.9, 0.5, 0.1, 0.01};  // of the edges; the first is slack
constexpr int kNumCaps = static_cast<int>(std::size(kCaps));

struct Options : RunOptions {
  int only_n = 0;  // 0: all
  bool models = false;
  std::string examples = "examples";
};

struct Row {
  int64_t n;
  int rank;
  std::string memberships, way;
  double density, milliseconds;
  double shares[kNumCaps];  // of the time without a cap
};

// Milliseconds of CPU time of one call.
double Milliseconds(AttendCall& call) {
  const double start = CpuSeconds();
  call.Run();
  return 1e3 * (CpuSeconds() - start);
}

Row Measure(Backend& backend, const Operands& operands, const Memberships& memberships, const char* name,
            const Options& options) {
  DrawnRows drawn;
  drawn.key.seed = 2026;
  AttendCall free(backend, operands, memberships, drawn);
  free.Run();
  const auto n = static_cast<double>(operands.inputs.q.rows), edges = static_cast<double>(free.edges());
  std::vector<std::unique_ptr<AttendCall>> capped;
  for (const double cap : kCaps) {
    capped.push_back(std::make_unique<AttendCall>(backend, operands, memberships, drawn));
    capped.back()->Cap(static_cast<uint64_t>(cap * edges));
    capped.back()->Run();
  }
  std::vector<double> times, shares[kNumCaps];
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    for (int c = 0; c < kNumCaps; ++c) {
      const double before = Milliseconds(free), under = Milliseconds(*capped[c]), after = Milliseconds(free);
      times.push_back(before);
      shares[c].push_back(2.0 * under / (before + after));
    }
  }
  Row row = {operands.inputs.q.rows,
             memberships.rank,
             name,
             reference::UsesEvents(free.inputs, free.problem, 0) ? "events" : "pairs",
             edges / n / n,
             Median(times),
             {}};
  for (int c = 0; c < kNumCaps; ++c) row.shares[c] = Median(shares[c]);
  return row;
}

void PrintShares(std::span<const double> shares) {
  for (const double share : shares) std::printf(" %7.3f", share);
  std::printf("\n");
  std::fflush(stdout);
}

void PrintRow(const Row& row) {
  std::printf("%6ld %4d %-9s %8.4f %6s %9.2f", static_cast<long>(row.n), row.rank, row.memberships.c_str(), row.density,
              row.way.c_str(), row.milliseconds);
  PrintShares(row.shares);
}

void PrintCaps() {
  for (const double cap : kCaps) std::printf(" %7g", cap);
  std::printf("\n");
}

// The end of a row of JSON.
std::string CapsJson(double milliseconds, std::span<const double> shares) {
  std::string json = absl::StrCat(", \"milliseconds\": ", milliseconds, ", \"time_by_cap\": {");
  for (int c = 0; c < kNumCaps; ++c) {
    absl::StrAppend(&json, c > 0 ? ", \"" : "\"", kCaps[c], "\": ", absl::SixDigits(shares[c]));
  }
  return json + "}}";
}

std::string RowJson(const Row& row) {
  return absl::StrCat("{\"n\": ", row.n, ", \"rank\": ", row.rank, ", \"memberships\": \"", row.memberships,
                      "\", \"density\": ", row.density, ", \"way\": \"", row.way, "\"",
                      CapsJson(row.milliseconds, row.shares));
}

// Attention alone. Returns the rows as JSON.
std::vector<std::string> RunAttention(Backend& backend, const Options& options) {
  std::printf("law bernoulli, d = %d\n\n%6s %4s %-9s %8s %6s %9s", kHeadDim, "n", "rank", "", "density", "drawn",
              "free ms");
  PrintCaps();
  std::vector<std::string> rows;
  for (const int64_t n : {1024, 4096, 16384}) {
    if (options.only_n != 0 && options.only_n != n) continue;
    const Operands operands(n, 1, kHeadDim);
    MembershipCall network(backend, operands);
    network.Run();
    for (const double density : {0.0025, 0.01, 0.025, 0.1}) {
      const SyntheticMemberships synthetic(n, 1, density);
      const ScaledMemberships scaled(network.memberships(), 1, density);
      for (const bool cosine : {true, false}) {
        const Row row = Measure(backend, operands, cosine ? synthetic.memberships : scaled.memberships,
                                cosine ? "cosine .9" : "network", options);
        PrintRow(row);
        rows.push_back(RowJson(row));
      }
    }
  }
  return rows;
}

std::vector<std::string> RunModels(Backend& backend, const Options& options) {
  std::printf("\n%-18s %6s %9s %9s", "model", "tokens", "edges", "free ms");
  PrintCaps();
  std::vector<std::string> rows;
  TimeModels(backend, options.examples, kCaps, options.repeats, [&](const ModelRow& row) {
    std::printf("%-18s %6d %9lu %9.3f", row.name.c_str(), row.tokens, static_cast<unsigned long>(row.edges),
                row.milliseconds);
    PrintShares(row.shares);
    rows.push_back(absl::StrCat("{\"model\": \"", row.name, "\", \"tokens\": ", row.tokens, ", \"edges\": ", row.edges,
                                CapsJson(row.milliseconds, row.shares)));
  });
  return rows;
}

void Run(const Options& options, const std::string& provenance) {
  auto backend = CreateBackend({"cpu", 1, options.isa, "fp32"});
  Check(backend.status());
  std::printf("%s, one thread, medians of %d paired runs; time as a share of that without cap\n",
              (*backend)->device().c_str(), options.repeats);
  const std::vector<std::string> rows =
      options.models ? RunModels(**backend, options) : RunAttention(**backend, options);
  if (options.json.empty()) return;
  std::ofstream file(options.json);
  file << "{" << provenance << ", \"rows\": [\n  " << absl::StrJoin(rows, ",\n  ") << "\n]}\n";
  if (!file) Check(absl::UnavailableError("cannot write " + options.json));
}

}  // namespace
}  // namespace edgewise::bench

int main(int argc, char** argv) {
  using namespace edgewise::bench;
  Options options;
  options.repeats = 9;
  options.threads = 1;
  edgewise::FlagSet flags("caps_bench [flags]", "What caps on the edges cost, against drawing without one.");
  options.Register(flags);
  flags.Add("n", "N", "only this length; 0: all of the table", &options.only_n, {0});
  flags.AddSwitch("models", "the example models instead of made-up operands", &options.models);
  flags.Add("examples", "FOLDER", "with --models: where they lie", &options.examples);
  ParseOrExit(flags, argc, argv);
  Run(options, Provenance(argc, argv));
  return 0;
}
