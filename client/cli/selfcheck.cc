// `edgewise selfcheck`: a program of its own, since it runs kernels and the command line only talks to servers.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "client/cli/commands.h"

namespace edgewise::cli {

int RunSelfcheck(Arguments arguments, std::ostream&, std::ostream& err) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  std::string program = (self.parent_path() / "edgewise-selfcheck").string();
  std::vector<std::string> words(arguments.begin(), arguments.end());
  std::vector<char*> argv = {program.data()};
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  if (errno == ENOENT) {
    err << "edgewise selfcheck: not part of this installation: there is no " << program << "\n";
    return kExitServer;
  }
  err << "edgewise selfcheck: " << program << ": " << std::strerror(errno) << "\n";
  return kExitServer;
}

}  // namespace edgewise::cli
