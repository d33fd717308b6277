// The commands as a user runs them, against a server in the same process.
#ifndef EDGEWISE_TESTS_CLIENT_CLI_FIXTURE_H_
#define EDGEWISE_TESTS_CLIENT_CLI_FIXTURE_H_

#include <gtest/gtest.h>

#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "client/cli/commands.h"
#include "tests/client/fake_service.h"

namespace edgewise::cli {

struct Outcome {
  int status;
  std::string out;
  std::string err;
};

inline Outcome RunCli(const std::vector<std::string>& arguments) {
  std::ostringstream out, err;
  const int status = RunCommand(arguments, out, err);
  return {status, out.str(), err.str()};
}

#define EXPECT_HAS(text, part) EXPECT_NE(std::string(text).find(part), std::string::npos) << (text)

// A server that answers, and the last it was asked.
class CliTest : public ::testing::Test {
 protected:
  CliTest()
      : server_([this](const v1::PredictRequest& request, const testing::CallInfo&) { return Predict(request); }) {}

  absl::StatusOr<v1::PredictResponse> Predict(const v1::PredictRequest& request) {
    std::lock_guard lock(mutex_);
    ++calls_;
    last_ = request;
    if (request.model() == "ghost") return absl::NotFoundError("model: no model is named \"ghost\"");
    if (request.inputs(0).sequence().text() == "too long") {
      return absl::InvalidArgumentError("inputs[0].sequence has 9 tokens; the model takes 8");
    }
    return testing::PlausibleAnswer(request);
  }
  Outcome RunHere(std::vector<std::string> arguments) {
    arguments.push_back("--server=" + server_.address());
    return RunCli(arguments);
  }
  std::string WriteFile(const std::string& lines) {
    const std::string path = ::testing::TempDir() + "edgewise_cli_" +
                             ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".jsonl";
    std::ofstream(path) << lines;
    return path;
  }

  std::mutex mutex_;
  int calls_ = 0;
  v1::PredictRequest last_;
  testing::FakeServer server_;
};

}  // namespace edgewise::cli

#endif  // EDGEWISE_TESTS_CLIENT_CLI_FIXTURE_H_
