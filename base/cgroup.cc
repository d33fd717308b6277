#include "base/cgroup.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace edgewise {

std::vector<Cgroup> CgroupsOf(const std::string& controller, const std::string& root) {
  std::vector<Cgroup> groups;
  std::ifstream lines(absl::StrCat(root, "/proc/self/cgroup"));  // "0::/path", or "4:cpu,cpuacct:/path" of version 1
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() < 3) continue;
    const bool unified = fields[1].empty();
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    if (!unified && std::find(controllers.begin(), controllers.end(), controller) == controllers.end()) continue;
    const std::string mounted = absl::StrCat(root, "/sys/fs/cgroup", unified ? "" : "/", unified ? "" : controller);
    for (std::string path = fields[2] == "/" ? "" : fields[2];; path.resize(path.rfind('/'))) {
      groups.push_back({absl::StrCat(mounted, path), unified});
      if (path.empty() || path[0] != '/') break;
    }
  }
  return groups;
}

}  // namespace edgewise
