// edgewise evaluate against a server in the same process that answers by the budget it is asked with.
#ifndef EDGEWISE_TESTS_CLIENT_EVALUATE_FIXTURE_H_
#define EDGEWISE_TESTS_CLIENT_EVALUATE_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "tests/client/fake_service.h"

namespace edgewise::cli {

#define EXPECT_HAS(text, part) EXPECT_NE(std::string(text).find(part), std::string::npos) << (text)

inline constexpr uint64_t kPairs = 256, kDrawn = 40;  // of every input; edges without a cap

struct EvaluateOutcome {
  int status;
  std::string out;
  std::string err;
};

class EvaluateTest : public ::testing::Test {
 protected:
  EvaluateTest()
      : server_([this](const v1::PredictRequest& request, const auto&) {
          std::lock_guard lock(mutex_);
          calls_.push_back(request);
          return answer_(request);
        }) {}

  // Dense attention calls everything negative and takes 4 ms, or 8 for long texts; without a cap 2 ms; with one 1 ms.
  static absl::StatusOr<v1::PredictResponse> Answer(const v1::PredictRequest& request) {
    const std::string& text = request.inputs(0).sequence().text();
    if (request.model() == "ghost") return absl::NotFoundError("model: no model is named \"ghost\"");
    if (text == "too long") return absl::InvalidArgumentError("inputs[0].sequence has 9 tokens; the model takes 8");
    v1::PredictResponse response = edgewise::testing::PlausibleAnswer(request);
    v1::Prediction& prediction = *response.mutable_predictions(0);
    const bool dense = request.attention() == v1::DENSE;
    const double cap = request.budget().max_density();
    const auto allowed = static_cast<uint64_t>((cap > 0 ? cap : 1.0) * kPairs);
    if (allowed < 4) {
      return absl::InvalidArgumentError("budget.max_density is too low for inputs[0]; it needs at least 4 edges");
    }
    const uint64_t edges = dense ? kPairs : std::min(kDrawn, allowed);
    v1::EdgeReport& report = *prediction.mutable_edges();
    report.set_pairs(kPairs);
    report.set_edges(static_cast<double>(edges));
    report.set_density(static_cast<double>(edges) / kPairs);
    report.set_max_sample_edges(edges);
    report.set_capped(allowed < kDrawn);
    response.mutable_timing()->set_compute_us(dense ? (text.size() > 3 ? 8000 : 4000) : cap > 0 ? 1000 : 2000);
    if (dense) prediction.set_label_id(0);
    return response;
  }

  EvaluateOutcome Run(std::vector<std::string> arguments, const std::string& data = kLabelled) {
    path_ = ::testing::TempDir() + "edgewise_evaluate_" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".jsonl";
    std::ofstream(path_) << data;
    for (const std::string& more : {std::string("evaluate"), "--data=" + path_, "--server=" + server_.address()}) {
      arguments.insert(arguments.begin() + (more == "evaluate" ? 0 : 1), more);
    }
    std::ostringstream out, err;
    const int status = RunCommand(arguments, out, err);
    std::remove(path_.c_str());
    return {status, out.str(), err.str()};
  }
  nlohmann::json RunJson(std::vector<std::string> arguments, int status = kExitOk,
                         const std::string& data = kLabelled) {
    arguments.push_back("--json");
    const EvaluateOutcome run = Run(std::move(arguments), data);
    EXPECT_EQ(run.status, status) << run.err;
    nlohmann::json json = nlohmann::json::parse(run.out, nullptr, false);
    EXPECT_FALSE(json.is_discarded()) << run.out;
    return json.is_discarded() ? nlohmann::json::object() : json;
  }

  // The fake server's labels are odd lengths positive: three of these are right, dense attention is right in one.
  static constexpr char kLabelled[] =
      "{\"text\": \"a\", \"label\": 1}\n{\"text\": \"bb\", \"label\": 0}\n{\"text\": \"ccc\", \"label\": 1}\n"
      "{\"text\": \"dddd\", \"label\": 1}\n";

  std::mutex mutex_;
  std::vector<v1::PredictRequest> calls_;
  std::function<absl::StatusOr<v1::PredictResponse>(const v1::PredictRequest&)> answer_ = Answer;
  std::string path_;
  edgewise::testing::FakeServer server_;
};

inline std::vector<std::string> Names(const nlohmann::json& json) {
  std::vector<std::string> names;
  for (const auto& row : json["settings"]) names.push_back(row["setting"]);
  return names;
}

}  // namespace edgewise::cli

#endif  // EDGEWISE_TESTS_CLIENT_EVALUATE_FIXTURE_H_
