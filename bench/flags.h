// The command line of a benchmark: --name value, or --name=value.
#ifndef EDGEWISE_BENCH_FLAGS_H_
#define EDGEWISE_BENCH_FLAGS_H_

#include <algorithm>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace edgewise::bench {

// The bound variables keep their values where a flag is not given. What they are bound to must outlive Parse().
class Flags {
 public:
  explicit Flags(std::string program) : program_(std::move(program)) {}

  // `value` names the flag's value in the usage.
  void Add(const char* name, const char* value, std::string* variable);
  void Add(const char* name, const char* value, int* variable, int least = 1);  // smaller ones become `least`
  void AddSwitch(const char* name, bool* variable);

  // Ends the program with the usage and status 2 for anything else.
  void Parse(int argc, char** argv) const;

 private:
  struct Flag {
    std::string name, value;  // value empty: a switch
    std::function<void(const char*)> set;
  };
  std::string program_;
  std::vector<Flag> flags_;
};

// The flags of every benchmark.
struct RunOptions {
  std::string json;  // empty: none is written
  std::string isa = "auto";
  int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  int repeats = 15;

  void Register(Flags& flags);
};

}  // namespace edgewise::bench

#endif  // EDGEWISE_BENCH_FLAGS_H_
