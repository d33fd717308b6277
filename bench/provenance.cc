#include "bench/provenance.h"

#include <ctime>
#include <fstream>
#include <thread>

namespace edgewise::bench {
namespace {

std::string Escaped(const std::string& text) {
  std::string escaped;
  for (char c : text) {
    if (c == '"' || c == '\\') escaped += '\\';
    escaped += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return escaped;
}

// The processor's name in /proc/cpuinfo.
std::string Processor() {
  std::ifstream file("/proc/cpuinfo");
  std::string line, name, family, model;
  while (std::getline(file, line) && !line.empty()) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const std::string key = line.substr(0, line.find_first_of("\t:")), value = line.substr(colon + 2);
    if (key == "model name") name = value;
    if (key == "cpu family") family = value;
    if (key == "model") model = value;
  }
  return name.empty() ? "unknown" : name + " (family " + family + ", model " + model + ")";
}

}  // namespace

std::string Provenance(int argc, char** argv) {
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  std::string command;
  for (int i = 0; i < argc; ++i) {
    const std::string argument = argv[i];
    command += i == 0 ? argument.substr(argument.rfind('/') + 1) : " " + argument;
  }
  return "\"date\": \"" + std::string(date) + "\", \"machine\": \"" + Escaped(Processor()) + ", " +
         std::to_string(std::thread::hardware_concurrency()) + " cores\", \"command\": \"" + Escaped(command) + "\"";
}

}  // namespace edgewise::bench
