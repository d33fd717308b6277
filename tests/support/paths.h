// Folders and programs that tests read. Each can be moved by an environment variable, for tests that were carried to
// another machine.
#pragma once

#include <string>

namespace edgewise::tests {

std::string TestdataFolder();    // tests/testdata, or EDGEWISE_TESTDATA
std::string TokenizersFolder();  // tests/testdata_tokenizers, or EDGEWISE_TOKENIZERS
std::string ExamplesFolder();    // examples/models, or EDGEWISE_EXAMPLES
std::string ServerBinary();      // build/bin/edgewise-server, or EDGEWISE_SERVER_BINARY

}  // namespace edgewise::tests
