// Simulations of many seeds. EDGEWISE_SIMULATIONS says how many (1000), EDGEWISE_FIRST_SEED the first (1): to run one
// again, as a violation says, 1 and its seed.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/server/simulator/simulation.h"

namespace edgewise::server {
namespace {

constexpr size_t kTraceLines = 80;

int64_t FromEnvironment(const char* name, int64_t fallback) {
  const char* value = std::getenv(name);
  return value == nullptr ? fallback : std::atoll(value);
}

volatile uint64_t current_seed = 0;

// A process that dies still names its seed.
void NameSeed(int signal) {
  std::fprintf(stderr, "died in the simulation of seed %llu\n", static_cast<unsigned long long>(current_seed));
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

std::string LastLines(const std::vector<std::string>& trace) {
  std::string lines;
  for (size_t i = trace.size() - std::min(trace.size(), kTraceLines); i < trace.size(); ++i) lines += trace[i] + "\n";
  return lines;
}

// Several tests, so that they run side by side.
class SimulatorTest : public ::testing::TestWithParam<int64_t> {
 public:
  static constexpr int64_t kParts = 4;
};

TEST_P(SimulatorTest, WhatMustHoldHoldsAfterEveryTurnOfEverySeed) {
  const int64_t first = FromEnvironment("EDGEWISE_FIRST_SEED", 1),
                seeds = FromEnvironment("EDGEWISE_SIMULATIONS", 1000);
  for (const int signal : {SIGABRT, SIGSEGV}) std::signal(signal, NameSeed);
  Catalogue catalogue;
  Simulation::Counts sum;
  for (int64_t seed = first + GetParam(); seed < first + seeds; seed += kParts) {
    current_seed = static_cast<uint64_t>(seed);
    Simulation simulation(current_seed, catalogue);
    simulation.Run();
    ASSERT_EQ(simulation.violation(), "")
        << "seed " << seed << "; again: EDGEWISE_SIMULATIONS=1 EDGEWISE_FIRST_SEED=" << seed << " simulator_test\n"
        << LastLines(simulation.trace());
    sum += simulation.counts();
  }
  std::printf(
      "%lld arrivals, %lld refused, %lld answered (%lld degraded, %lld in edges), %lld shadows, %lld failed, %lld "
      "tokens, %lld loads, "
      "%lld faults, %lld turns\n",
      static_cast<long long>(sum.arrivals), static_cast<long long>(sum.refused), static_cast<long long>(sum.answered),
      static_cast<long long>(sum.degraded), static_cast<long long>(sum.fewer_edges),
      static_cast<long long>(sum.shadows), static_cast<long long>(sum.failed), static_cast<long long>(sum.tokens),
      static_cast<long long>(sum.loads), static_cast<long long>(sum.faults), static_cast<long long>(sum.turns));
}

INSTANTIATE_TEST_SUITE_P(Part, SimulatorTest, ::testing::Range(int64_t{0}, SimulatorTest::kParts));

}  // namespace
}  // namespace edgewise::server
