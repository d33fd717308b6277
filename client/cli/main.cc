// The command line of Edgewise. See commands.h.
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "client/cli/commands.h"

int main(int argc, char** argv) {
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);  // what fails is said once, by the commands
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return edgewise::cli::RunCommand(arguments, std::cout, std::cerr);
}
