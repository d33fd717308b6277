// The metrics of the process agree with the kernel's own numbers, in the units that their names promise.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "server/observe/metrics.h"

namespace edgewise::server {
namespace {

std::map<std::string, double> ProcessSeries() {
  std::map<std::string, double> values;
  std::istringstream lines(Metrics().Render());
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("process_", 0) == 0 || line.rfind("edgewise_allocator_", 0) == 0)
      values[line.substr(0, line.find(' '))] = std::stod(line.substr(line.find(' ')));
  }
  return values;
}

// A field of /proc/self/status, in bytes.
double StatusBytes(const std::string& field) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(field + ":", 0) == 0) return std::stod(line.substr(field.size() + 1)) * 1024;
  }
  return -1.0;
}

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double Now(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

TEST(ProcessMetricsTest, MemoryIsInBytes) {
  const std::map<std::string, double> series = ProcessSeries();
  const double resident = StatusBytes("VmRSS"), all = StatusBytes("VmSize");
  EXPECT_NEAR(series.at("process_resident_memory_bytes"), resident, resident / 2);
  EXPECT_NEAR(series.at("process_virtual_memory_bytes"), all, all / 2);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they have allocators of their own
TEST(ProcessMetricsTest, AllocatorsMemoryIsUsedWhileItIsHeldAndThenFreeOrGone) {
  constexpr size_t kLarge = size_t{64} << 20, kSmall = 1 << 10, kMany = 4096;
  constexpr char kUsed[] = "edgewise_allocator_used_bytes", kFree[] = "edgewise_allocator_free_bytes";
  const std::map<std::string, double> before = ProcessSeries();
  std::vector<std::unique_ptr<char[]>> blocks;
  blocks.push_back(std::make_unique_for_overwrite<char[]>(kLarge));
  for (size_t i = 0; i < kMany; ++i) blocks.push_back(std::make_unique_for_overwrite<char[]>(kSmall));
  const std::map<std::string, double> held = ProcessSeries();
  EXPECT_NEAR(held.at(kUsed) - before.at(kUsed), kLarge + kMany * kSmall, 1 << 20);
  blocks.erase(blocks.begin(), blocks.end() - 1);  // the last one keeps the others' place
  const std::map<std::string, double> after = ProcessSeries();
  EXPECT_NEAR(after.at(kUsed), before.at(kUsed), 1 << 20);
  EXPECT_NEAR(after.at(kFree) - held.at(kFree), kMany * kSmall, 1 << 20) << "a block alone goes back to the system";
}
#endif

TEST(ProcessMetricsTest, CpuTimeIsInSeconds) {
  while (CpuSeconds() < 0.1) {
  }
  const double before = CpuSeconds(), told = ProcessSeries().at("process_cpu_seconds_total"), after = CpuSeconds();
  EXPECT_GT(told, before - 0.05);  // the kernel counts whole ticks
  EXPECT_LT(told, after + 0.05);
}

TEST(ProcessMetricsTest, StartIsSecondsSinceTheEpoch) {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string field;
  for (int number = 3; number <= 22; ++number) fields >> field;  // proc(5): starttime, in ticks since the boot
  const double after_boot = std::stod(field) / static_cast<double>(sysconf(_SC_CLK_TCK));
  ASSERT_GT(after_boot, 5.0);
  const double start = Now(CLOCK_REALTIME) - Now(CLOCK_BOOTTIME) + after_boot;
  EXPECT_NEAR(ProcessSeries().at("process_start_time_seconds"), start, 2.0);
}

TEST(ProcessMetricsTest, FileDescriptorsAreThoseThatAreOpen) {
  const double before = ProcessSeries().at("process_open_fds");
  const int more[] = {dup(0), dup(0), dup(0)};
  const std::map<std::string, double> series = ProcessSeries();
  EXPECT_EQ(series.at("process_open_fds"), before + 3);
  for (const int descriptor : more) close(descriptor);
  rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_EQ(series.at("process_max_fds"), static_cast<double>(limit.rlim_cur));
}

}  // namespace
}  // namespace edgewise::server
