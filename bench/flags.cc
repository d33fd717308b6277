#include "bench/flags.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace edgewise::bench {

void RunOptions::Register(FlagSet& flags) {
  flags.Add("json", "FILE", "also write the result as JSON", &json);
  flags.Add("threads", "N", "CPU threads", &threads, {1});
  flags.Add("isa", "NAME", "CPU instruction set: auto, amx, avx512, avx2 or generic", &isa);
  flags.Add("repeats", "R", "timed runs of each call", &repeats, {1});
}

void ParseOrExit(FlagSet& flags, int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (FlagSet::AsksForHelp(arguments)) {
    std::fputs(flags.Help().c_str(), stdout);
    std::exit(0);
  }
  flags.LetLastWin();
  const absl::Status status = flags.Parse(arguments);
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n`%s --help` shows the flags.\n", argv[0], std::string(status.message()).c_str(),
               argv[0]);
  std::exit(2);
}

}  // namespace edgewise::bench
