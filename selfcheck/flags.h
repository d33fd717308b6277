// The command line of edgewise-selfcheck.
#ifndef EDGEWISE_SELFCHECK_FLAGS_H_
#define EDGEWISE_SELFCHECK_FLAGS_H_

#include <string>

#include "base/flag_set.h"

namespace edgewise::selfcheck {

struct Flags {
  std::string device = "auto";
  std::string precision = "fp32";
  std::string weights = "float32";
  std::string model;  // empty: none
  int tokens = 1024;
  int repeats = 5;

  void Register(FlagSet& set);
};

}  // namespace edgewise::selfcheck

#endif  // EDGEWISE_SELFCHECK_FLAGS_H_
