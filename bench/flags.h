// The command line of a benchmark.
#ifndef EDGEWISE_BENCH_FLAGS_H_
#define EDGEWISE_BENCH_FLAGS_H_

#include <algorithm>
#include <string>
#include <thread>

#include "base/flag_set.h"

namespace edgewise::bench {

// The flags of every benchmark.
struct RunOptions {
  std::string json;  // empty: none is written
  std::string isa = "auto";
  int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  int repeats = 15;

  void Register(FlagSet& flags);
};

// A flag that is given twice takes its last value. Ends the program where help is asked for, with status 0, and at a
// wrong flag, with 2.
void ParseOrExit(FlagSet& flags, int argc, char** argv);

}  // namespace edgewise::bench

#endif  // EDGEWISE_BENCH_FLAGS_H_
