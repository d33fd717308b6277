#include "base/cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <thread>

#include "absl/strings/numbers.h"
#include "base/cgroup.h"

namespace edgewise {
namespace {

int CoresToRunOn() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
  return static_cast<int>(std::thread::hardware_concurrency());  // more cores than a cpu_set_t holds
}

}  // namespace

int UsableCores() { return static_cast<int>(std::max(1.0, std::min<double>(CoresToRunOn(), CpuQuota()))); }

double CpuQuota(const std::string& root) {
  double least = std::numeric_limits<double>::infinity();
  for (const Cgroup& group : CgroupsOf("cpu", root)) {
    // Microseconds of each period. Without a limit the quota is "max", or -1 in version 1.
    std::ifstream quota_file(group.folder + (group.unified ? "/cpu.max" : "/cpu.cfs_quota_us"));
    std::ifstream other_file(group.unified ? "" : group.folder + "/cpu.cfs_period_us");
    std::string quota_text, period_text;
    double quota, period;
    quota_file >> quota_text;
    (group.unified ? quota_file : other_file) >> period_text;
    if (!absl::SimpleAtod(quota_text, &quota) || !absl::SimpleAtod(period_text, &period)) continue;
    if (quota > 0.0 && period > 0.0) least = std::min(least, quota / period);
  }
  return least;
}

}  // namespace edgewise
