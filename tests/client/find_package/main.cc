// The C++ of docs/cli.md, with the installed headers and libraries: asks the server that is named, and one that is not
// there.
#include <edgewise/client/ensemble.h>

#include <iostream>
#include <string>

#include "readme_includes.h"

absl::StatusOr<edgewise::v1::PredictResponse> Ask(const std::string& address) {
#include "readme_statements.inc"
  return response;
}

int main(int, char** arguments) {
  const auto response = Ask(arguments[1]);
  if (!response.ok() || response->predictions(0).label() != "positive") {
    std::cerr << response.status() << "\n";
    return 1;
  }
  const auto refused = Ask("127.0.0.1:1");
  std::cout << refused.status() << "\n";
  if (refused.status().code() != absl::StatusCode::kUnavailable) return 1;
  return edgewise::MergeEnsembleParts({}).ok() ? 1 : 0;
}
