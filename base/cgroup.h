// The control groups of this process, which limit what it may use of the machine: in a container, or in a systemd unit.
#ifndef EDGEWISE_BASE_CGROUP_H_
#define EDGEWISE_BASE_CGROUP_H_

#include <string>
#include <vector>

namespace edgewise {

struct Cgroup {
  std::string folder;    // of its files
  bool unified = false;  // version 2: its files have other names than those of version 1
};

// The groups whose limits of `controller`, "cpu" or "memory", hold for this process: its own and all above. Some may
// not be there: in a container a path can be that of the host. `root`: of the file system.
std::vector<Cgroup> CgroupsOf(const std::string& controller, const std::string& root = "");

}  // namespace edgewise

#endif  // EDGEWISE_BASE_CGROUP_H_
