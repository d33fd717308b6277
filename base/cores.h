// The cores of this process, which may be fewer than the machine has: in a container, or under taskset.
#ifndef EDGEWISE_BASE_CORES_H_
#define EDGEWISE_BASE_CORES_H_

#include <string>

namespace edgewise {

// The cores that the thread may run on (taskset, cpusets), but no more than its control groups let it use all the time
// (CPU limits of containers). At least 1. (std::thread::hardware_concurrency counts those of the machine.)
int UsableCores();

// The CPU seconds in a second that control groups leave this process; infinity: no limit. `root`: of the file system.
double CpuQuota(const std::string& root = "");

}  // namespace edgewise

#endif  // EDGEWISE_BASE_CORES_H_
