#include "tests/support/paths.h"

#include <cstdlib>

namespace edgewise::tests {
namespace {

std::string Variable(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

}  // namespace

// The only source that is compiled with paths of this machine, so that compiled tests are the same in every checkout.
std::string TestdataFolder() { return Variable("EDGEWISE_TESTDATA", EDGEWISE_TESTDATA); }
std::string TokenizersFolder() { return Variable("EDGEWISE_TOKENIZERS", EDGEWISE_TOKENIZERS); }
std::string ExamplesFolder() { return Variable("EDGEWISE_EXAMPLES", EDGEWISE_EXAMPLES); }
std::string ServerBinary() { return Variable("EDGEWISE_SERVER_BINARY", EDGEWISE_SERVER_BINARY); }

}  // namespace edgewise::tests
