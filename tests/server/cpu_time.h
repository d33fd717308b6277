// The CPU time of threads by their name.
#ifndef EDGEWISE_TESTS_SERVER_CPU_TIME_H_
#define EDGEWISE_TESTS_SERVER_CPU_TIME_H_

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace edgewise::server {

// That of this process's threads of that name, in ns.
inline uint64_t CpuTimeOf(const std::string& name) {
  uint64_t sum = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string comm;
    uint64_t ran = 0;
    std::getline(std::ifstream(thread.path() / "comm"), comm);
    std::ifstream(thread.path() / "schedstat") >> ran;
    if (comm == name) sum += ran;
  }
  return sum;
}

}  // namespace edgewise::server

#endif  // EDGEWISE_TESTS_SERVER_CPU_TIME_H_
