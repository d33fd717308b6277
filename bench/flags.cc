#include "bench/flags.h"

#include <cstdio>
#include <cstdlib>

namespace edgewise::bench {

void Flags::Add(const char* name, const char* value, std::string* variable) {
  flags_.push_back({name, value, [variable](const char* text) { *variable = text; }});
}

void Flags::Add(const char* name, const char* value, int* variable, int least) {
  flags_.push_back({name, value, [=](const char* text) { *variable = std::max(least, std::atoi(text)); }});
}

void Flags::AddSwitch(const char* name, bool* variable) {
  flags_.push_back({name, "", [variable](const char*) { *variable = true; }});
}

void Flags::Parse(int argc, char** argv) const {
  const auto usage = [this] {
    std::fprintf(stderr, "usage: %s", program_.c_str());
    for (const Flag& flag : flags_) {
      std::fprintf(stderr, " [--%s%s%s]", flag.name.c_str(), flag.value.empty() ? "" : " ", flag.value.c_str());
    }
    std::fprintf(stderr, "\n");
    std::exit(2);
  };
  for (int i = 1; i < argc; ++i) {
    const std::string given = argv[i];
    const size_t equals = given.find('=');
    const auto flag = std::find_if(flags_.begin(), flags_.end(), [name = given.substr(0, equals)](const Flag& known) {
      return name == "--" + known.name;
    });
    if (flag == flags_.end()) usage();
    if (!flag->value.empty() && equals == std::string::npos && ++i == argc) usage();
    flag->set(equals == std::string::npos ? argv[i] : argv[i] + equals + 1);
  }
}

void RunOptions::Register(Flags& flags) {
  flags.Add("json", "FILE", &json);
  flags.Add("threads", "N", &threads);
  flags.Add("isa", "NAME", &isa);
  flags.Add("repeats", "R", &repeats);
}

}  // namespace edgewise::bench
