// The command line of edgewise-selfcheck; written and read as edgewise-server's.
#ifndef EDGEWISE_SELFCHECK_FLAGS_H_
#define EDGEWISE_SELFCHECK_FLAGS_H_

#include <span>
#include <string>

namespace edgewise::selfcheck {

struct Flags {
  std::string device = "auto";
  std::string precision = "fp32";
  std::string weights = "float32";
  std::string model;  // empty: none
  int tokens = 1024;
  int repeats = 5;
};

// --name=value, --name value; the last one counts. Returns what is wrong, or "".
std::string ParseFlags(std::span<const std::string> arguments, Flags& flags);

// Every flag with its default, and the exit codes.
std::string Help();

}  // namespace edgewise::selfcheck

#endif  // EDGEWISE_SELFCHECK_FLAGS_H_
