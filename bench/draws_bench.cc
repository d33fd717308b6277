// draws_bench [--isa NAME] [--repeats R] [--n N] [--alone]
//
// Attention over drawn edges, drawn by events against pair by pair (docs/random-numbers.md): milliseconds of one
// thread, the least of runs in turns, and which way the rule chooses. The rule's constants were fitted to this table.
// With --alone, events are drawn and counted, and nothing attends.
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "bench/attention_calls.h"
#include "bench/flags.h"
#include "kernels/reference/reference.h"

namespace edgewise::bench {
namespace {

using selfcheck::Operands;
using selfcheck::SyntheticMemberships;

constexpr int kHeadDim = 64;

struct Options : RunOptions {
  int only_n = 0;  // 0: all
  bool alone = false;
};

// Milliseconds of CPU time of one call.
double Milliseconds(AttendCall& call) {
  const double start = CpuSeconds();
  call.Run();
  return 1e3 * (CpuSeconds() - start);
}

void RunCase(Backend& backend, const Operands& operands, const Memberships& memberships, const char* name,
             double density, Law law, AttendCall& dense, const Options& options) {
  DrawnRows drawn;
  drawn.law = law;
  drawn.key.seed = 2026;
  drawn.way = DrawWay::kPairs;
  AttendCall pairs(backend, operands, memberships, drawn);
  drawn.way = DrawWay::kEvents;
  AttendCall events(backend, operands, memberships, drawn);
  drawn.way = DrawWay::kRule;
  const AttendCall rule(backend, operands, memberships, drawn);
  events.Run();
  const auto edges = static_cast<double>(events.edges());
  double least[3] = {1e30, 1e30, 1e30};
  AttendCall* calls[] = {&pairs, &events, &dense};
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    for (int i = 0; i < 3; ++i) least[i] = std::min(least[i], Milliseconds(*calls[i]));
  }
  const auto n = static_cast<double>(operands.inputs.q.rows);
  std::printf("%6.0f %4d %-9s %8.4f %8.4f %9.3f %9.3f %7.2f %9.2f %7s\n", n, memberships.rank, name, density,
              edges / n / n, least[0], least[1], least[0] / least[1], least[2] / std::min(least[0], least[1]),
              reference::UsesEvents(rule.inputs, rule.problem, 0) ? "events" : "pairs");
  std::fflush(stdout);
}

// Milliseconds of a draw of which no query's output is read.
void DrawAlone(Backend& backend, const Operands& operands, const Memberships& memberships, const char* name,
               double density, const Options& options) {
  DrawnRows drawn;
  drawn.key.seed = 2026;
  drawn.way = DrawWay::kEvents;
  AttendCall call(backend, operands, memberships, drawn);
  call.problem.read_queries = 0;
  call.Run();
  double least = 1e30;
  for (int repeat = 0; repeat < options.repeats; ++repeat) least = std::min(least, Milliseconds(call));
  const auto edges = static_cast<double>(call.edges());
  std::printf("%6ld %4d %-9s %8.4f %9.0f %9.3f %8.2f\n", static_cast<long>(operands.inputs.q.rows), memberships.rank,
              name, density, edges, least, 1e6 * least / edges);
  std::fflush(stdout);
}

void DrawLength(Backend& backend, int64_t n, const Options& options) {
  const Operands operands(n, 1, kHeadDim);
  MembershipCall network(backend, operands);
  network.Run();
  for (const double density : {0.0025, 0.01, 0.025}) {
    for (const int rank : {selfcheck::kRank, network.memberships().rank}) {
      const SyntheticMemberships synthetic(n, 1, density, rank);
      DrawAlone(backend, operands, synthetic.memberships, "cosine .9", density, options);
    }
    const ScaledMemberships scaled(network.memberships(), 1, density);
    DrawAlone(backend, operands, scaled.memberships, "network", density, options);
  }
}

void RunLength(Backend& backend, int64_t n, const Options& options) {
  const Operands operands(n, 1, kHeadDim);
  AttendCall dense(backend, operands, {}, AllPairs{});
  MembershipCall network(backend, operands);
  network.Run();
  for (const double density : {0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.1}) {
    const SyntheticMemberships synthetic(n, 1, density);
    RunCase(backend, operands, synthetic.memberships, "cosine .9", density, Law::kBernoulli, dense, options);
    const ScaledMemberships scaled(network.memberships(), 1, density);
    RunCase(backend, operands, scaled.memberships, "network", density, Law::kBernoulli, dense, options);
    if (density == 0.01) {
      RunCase(backend, operands, scaled.memberships, "net. set", density, Law::kPoissonSet, dense, options);
    }
  }
}

}  // namespace
}  // namespace edgewise::bench

int main(int argc, char** argv) {
  using namespace edgewise::bench;
  Options options;
  options.threads = 1;
  edgewise::FlagSet flags("draws_bench [flags]", "Ways to draw the edges of a graph, side by side.");
  options.Register(flags);
  flags.Add("n", "N", "only this length; 0: all of the table", &options.only_n, {0});
  flags.AddSwitch("alone", "draw by events without attention", &options.alone);
  ParseOrExit(flags, argc, argv);
  auto backend = edgewise::CreateBackend({"cpu", 1, options.isa, "fp32"});
  Check(backend.status());
  std::printf("%s, one thread, d = %d, %d runs in turns\n\n", (*backend)->device().c_str(), kHeadDim, options.repeats);
  if (options.alone) {
    std::printf("%6s %4s %-9s %8s %9s %9s %8s\n", "n", "rank", "", "target", "edges", "ms", "ns/edge");
    for (const int64_t n : {4096, 16384}) {
      if (options.only_n == 0 || options.only_n == n) DrawLength(**backend, n, options);
    }
    return 0;
  }
  std::printf("%6s %4s %-9s %8s %8s %9s %9s %7s %9s %7s\n", "n", "rank", "", "target", "density", "pairs ms",
              "events ms", "gain", "of dense", "rule");
  for (const int64_t n : {512, 768, 1024, 2048, 4096, 8192, 16384}) {
    if (options.only_n == 0 || options.only_n == n) RunLength(**backend, n, options);
  }
  return 0;
}
