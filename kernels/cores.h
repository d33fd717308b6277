// The cores of this process, which may be fewer than the machine has: in a container, or under taskset.
#ifndef EDGEWISE_KERNELS_CORES_H_
#define EDGEWISE_KERNELS_CORES_H_

#include <sched.h>

#include <algorithm>
#include <thread>

namespace edgewise {

// At least 1. (std::thread::hardware_concurrency counts those of the machine.)
inline int UsableCores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return std::max(1, CPU_COUNT(&cores));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));  // more cores than a cpu_set_t holds
}

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CORES_H_
