// The cores that the process may use: those that its thread may run on, within the limits of its control groups.
#include "base/cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <thread>

#include "base/cgroup.h"

namespace edgewise {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// The root of a file system that has these files.
class Root {
 public:
  explicit Root(const std::map<std::string, std::string>& files) {
    for (const auto& [path, text] : files) {
      const std::filesystem::path file = path_ + path;
      std::filesystem::create_directories(file.parent_path());
      std::ofstream(file) << text;
    }
  }
  ~Root() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }

 private:
  const std::string path_ =
      ::testing::TempDir() + "cores_test_" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

double QuotaOf(const std::map<std::string, std::string>& files) { return CpuQuota(Root(files).path()); }

TEST(CoresTest, AreThoseThatTheThreadMayRunOn) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  const double most = std::max(1.0, std::min<double>(CPU_COUNT(&before), CpuQuota()));
  EXPECT_EQ(UsableCores(), static_cast<int>(most));
  std::thread([&] {
    int core = 0;
    while (!CPU_ISSET(core, &before)) ++core;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(UsableCores(), 1);
  }).join();
}

TEST(CoresTest, AQuotaIsTheLeastOfAGroupAndThoseAboveIt) {
  const std::string group = "0::/pods/one\n";
  EXPECT_EQ(QuotaOf({{"/proc/self/cgroup", group},
                     {"/sys/fs/cgroup/pods/cpu.max", "400000 100000\n"},
                     {"/sys/fs/cgroup/pods/one/cpu.max", "150000 100000\n"}}),
            1.5);
  EXPECT_EQ(QuotaOf({{"/proc/self/cgroup", group},
                     {"/sys/fs/cgroup/pods/cpu.max", "50000 100000\n"},
                     {"/sys/fs/cgroup/pods/one/cpu.max", "max 100000\n"}}),
            0.5);
}

TEST(CoresTest, InAContainerTheRootIsTheGroup) {
  EXPECT_EQ(QuotaOf({{"/proc/self/cgroup", "0::/\n"}, {"/sys/fs/cgroup/cpu.max", "200000 100000\n"}}), 2.0);
  EXPECT_EQ(QuotaOf({{"/proc/self/cgroup", "0::/../of/the/host\n"}, {"/sys/fs/cgroup/cpu.max", "200000 100000\n"}}),
            2.0);
}

TEST(CoresTest, AQuotaOfVersionOne) {
  const std::string groups = "9:cpuset:/other\n4:cpu,cpuacct:/one\n3:memory:/two\n0::/\n";
  const std::string folder = "/sys/fs/cgroup/cpu/one";
  EXPECT_EQ(QuotaOf({{"/proc/self/cgroup", groups},
                     {folder + "/cpu.cfs_quota_us", "300000\n"},
                     {folder + "/cpu.cfs_period_us", "100000\n"}}),
            3.0);
  EXPECT_EQ(QuotaOf({{"/proc/self/cgroup", groups},
                     {folder + "/cpu.cfs_quota_us", "-1\n"},
                     {folder + "/cpu.cfs_period_us", "100000\n"}}),
            kNoLimit);
}

TEST(CoresTest, WithoutAGroupThereIsNoLimit) {
  EXPECT_EQ(QuotaOf({}), kNoLimit);
  EXPECT_EQ(QuotaOf({{"/proc/self/cgroup", "nonsense\n0::\n\n"}}), kNoLimit);
  EXPECT_EQ(QuotaOf({{"/proc/self/cgroup", "0::/\n"}, {"/sys/fs/cgroup/cpu.max", "lots 100000\n"}}), kNoLimit);
}

}  // namespace
}  // namespace edgewise
