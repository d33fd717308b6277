// edgewise evaluate: its settings, its rows and what it says of caps.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <vector>

#include "client/cli/commands.h"
#include "client/cli/evaluate/evaluation.h"
#include "tests/client/evaluate_fixture.h"

namespace edgewise::cli {
namespace {

TEST_F(EvaluateTest, RowsAreDenseThenNoCapThenTheCapsAsGiven) {
  const nlohmann::json json = RunJson({"--model=toy", "--caps=50%,0.1,3.125%"});
  EXPECT_EQ(Names(json), (std::vector<std::string>{"dense", "no cap", "cap 50 %", "cap 10 %", "cap 3.125 %"}));
  EXPECT_EQ(json["measure"], "accuracy");
  EXPECT_EQ(json["inputs"], 4);
  EXPECT_EQ(json["seed"], "1");
  const double quality[] = {0.25, 0.75, 0.75, 0.75, 0.75}, edges[] = {256, 40, 40, 25, 8}, speed[] = {1, 2, 4, 4, 4};
  const int capped[] = {0, 0, 0, 4, 4};
  for (size_t r = 0; r < 5; ++r) {
    const nlohmann::json& row = json["settings"][r];
    EXPECT_EQ(row["answered"], 4);
    EXPECT_EQ(row["quality"], quality[r]);
    EXPECT_EQ(row["known"], 4);
    EXPECT_EQ(row["edges"], edges[r]);
    EXPECT_EQ(row["density"], edges[r] / kPairs);
    EXPECT_EQ(row["most_edges"], edges[r]);
    EXPECT_EQ(row["speed"], speed[r]) << "the median of four, of which one is twice that";
    EXPECT_EQ(row["capped"], capped[r]);
    EXPECT_EQ(row["over_cap"], 0);
  }
  EXPECT_EQ(json["settings"][0]["cap"], nullptr);
  EXPECT_EQ(json["settings"][4]["cap"], 0.03125);
  EXPECT_EQ(json["settings"][4]["most_of_cap"], 1.0);
  EXPECT_EQ(json["settings"][0]["compute_ms"]["mean"], 5.0);
  EXPECT_EQ(json["settings"][0]["compute_ms"]["median"], 4.0);
}

TEST_F(EvaluateTest, WithoutCapsDenseAttentionIsComparedAllTheSame) {
  EXPECT_EQ(Names(RunJson({"--model=toy"})), (std::vector<std::string>{"dense", "no cap"}));
}

TEST_F(EvaluateTest, TableShowsThemToPeople) {
  const EvaluateOutcome run = Run({"--model=toy", "--caps=50%,10%"});
  EXPECT_EQ(run.status, kExitOk) << run.err;
  std::istringstream lines(run.out);
  std::vector<std::string> words;  // of the line of the cap of 10 %
  for (std::string line; std::getline(lines, line);) {
    if (line.find("cap 10 %") == std::string::npos || line.find("4.00x") == std::string::npos) continue;
    std::istringstream cells(line);
    for (std::string word; cells >> word;) words.push_back(word);
  }
  EXPECT_EQ(words, (std::vector<std::string>{"4", "cap", "10", "%", "1", "4", "75.00", "%", "9.77", "%", "25", "25",
                                             "4", "0", "1.00", "ms", "1.00", "ms", "4.00x"}));
  EXPECT_HAS(run.out, "over cap     8 answers under a cap, none above it");
  EXPECT_EQ(run.out.find("mutual information"), std::string::npos);
}

TEST_F(EvaluateTest, SettingsTakeTurnsInputByInput) {
  RunJson({"--model=toy", "--caps=50%,10%"});
  ASSERT_EQ(calls_.size(), 4u * (1 + 4));  // once to warm up
  std::set<std::string> first;
  for (size_t i = 0; i < 5; ++i) {
    std::set<std::string> ways, texts;
    for (size_t s = 0; s < 4; ++s) {
      v1::PredictRequest way = calls_[4 * i + s];
      texts.insert(way.inputs(0).sequence().text());
      way.clear_inputs();
      ways.insert(way.SerializeAsString());
      if (s == 0 && i > 0) first.insert(way.SerializeAsString());
    }
    EXPECT_EQ(ways.size(), 4u) << i;
    EXPECT_EQ(texts.size(), 1u) << i;
  }
  EXPECT_EQ(first.size(), 4u) << "each is first in turn";
}

TEST_F(EvaluateTest, RefusedCapIsSaidAndTheOthersGoOn) {
  const EvaluateOutcome run = Run({"--model=toy", "--caps=0.1%,10%"});
  EXPECT_EQ(run.status, kExitOk) << run.err;
  EXPECT_HAS(run.out,
             "refused every time; input 1: budget.max_density is too low for the input; it needs at least 4 e");
  const nlohmann::json json = RunJson({"--model=toy", "--caps=0.1%,10%"});
  EXPECT_EQ(json["settings"][2]["answered"], 0);
  EXPECT_EQ(json["settings"][2]["refused"], 4);
  EXPECT_EQ(json["settings"][2]["quality"], nullptr) << "not 0";
  EXPECT_EQ(json["settings"][3]["answered"], 4);
}

TEST_F(EvaluateTest, RefusalOfOneInputLeavesOutThatInputOnly) {
  answer_ = [](const v1::PredictRequest& request) -> absl::StatusOr<v1::PredictResponse> {
    if (request.budget().max_density() == 0.1 && request.inputs(0).sequence().text() == "dddd") {
      return absl::InvalidArgumentError("budget.max_density: inputs[0] needs more");
    }
    return Answer(request);
  };
  const nlohmann::json json = RunJson({"--model=toy", "--caps=10%,20%"});
  EXPECT_EQ(json["settings"][2]["answered"], 3);
  EXPECT_EQ(json["settings"][2]["quality"], 1.0);
  EXPECT_EQ(json["settings"][2]["refusal"], "input 4: budget.max_density: the input needs more");
  EXPECT_EQ(json["settings"][3]["answered"], 4);
}

TEST_F(EvaluateTest, AnswerOneEdgeAboveItsCapIsAFault) {
  for (const uint64_t more : {0, 1}) {
    answer_ = [more](const v1::PredictRequest& request) {
      absl::StatusOr<v1::PredictResponse> response = Answer(request);
      if (request.budget().max_density() == 0.25 && request.inputs(0).sequence().text() == "ccc") {
        response->mutable_predictions(0)->mutable_edges()->set_max_sample_edges(64 + more);  // the mean stays below
      }
      return response;
    };
    const EvaluateOutcome run = Run({"--model=toy", "--caps=10%,25%"});
    EXPECT_EQ(run.status, more ? kExitServer : kExitOk);
    EXPECT_EQ(RunJson({"--model=toy", "--caps=10%,25%"}, run.status)["settings"][3]["over_cap"], more);
    if (more == 0) continue;
    EXPECT_HAS(run.err, "FAULT: 1 answer above \"cap 25 %\"; first input 3: a sample has 65 edges of 256 pairs");
    EXPECT_HAS(run.out, "8 answers under a cap, 1 above it");
  }
}

TEST_F(EvaluateTest, InputThatFailsWithoutACapIsInNoRow) {
  const std::string data = std::string("{\"text\": \"too long\", \"label\": 1}\n") + kLabelled;
  const nlohmann::json json = RunJson({"--model=toy", "--caps=10%"}, kExitServer, data);
  EXPECT_EQ(json["failed"], 1);
  for (const auto& row : json["settings"]) EXPECT_EQ(row["answered"], 4);
  EXPECT_HAS(Run({"--model=toy", "--caps=10%"}, data).err, "first input 1: the input.sequence has 9 tokens");
}

TEST_F(EvaluateTest, OnlyCapsSayWhichEdgesTheyKeep) {
  RunJson({"--model=toy", "--caps=50%", "--keep_edges=probable"});
  for (const v1::PredictRequest& call : calls_) {
    EXPECT_EQ(call.budget().keep(), call.budget().has_max_density() ? v1::PROBABLE : v1::KEEP_MODEL_DEFAULT);
  }
  EXPECT_HAS(Run({"--model=toy", "--keep_edges=probable"}).err, "--keep_edges goes with --caps");
}

TEST_F(EvaluateTest, RefusalWithoutACapIsAnErrorAndNoRow) {
  answer_ = [](const v1::PredictRequest& request) -> absl::StatusOr<v1::PredictResponse> {
    if (request.has_override()) return absl::InvalidArgumentError("override: the model samples edges already");
    return Answer(request);
  };
  const EvaluateOutcome run = Run({"--model=toy", "--caps=10%", "--keep=4"});
  EXPECT_EQ(run.status, kExitServer);
  EXPECT_EQ(run.out, "");
  EXPECT_EQ(
      run.err,
      "edgewise: failed 4 times, left out of every row; first input 1: override: the model samples edges already\n");
}

TEST_F(EvaluateTest, ErrorThatEveryInputWouldMeetEndsIt) {
  const EvaluateOutcome run = Run({"--model=ghost", "--caps=10%"});
  EXPECT_EQ(run.status, kExitServer);
  EXPECT_EQ(run.err, "edgewise: NOT_FOUND: model: no model is named \"ghost\"\n");
  EXPECT_TRUE(calls_.empty());
  answer_ = [](const v1::PredictRequest&) { return absl::PermissionDeniedError("the token may not ask"); };
  EXPECT_EQ(Run({"--model=toy", "--caps=10%"}).err, "edgewise: PERMISSION_DENIED: the token may not ask\n");
  EXPECT_EQ(calls_.size(), 2u);  // to warm up, and the first input
}

TEST_F(EvaluateTest, EachNumberOfSamplesHasItsRows) {
  const nlohmann::json json = RunJson({"--model=toy", "--caps=10%", "--samples=1,8"});
  EXPECT_EQ(Names(json), (std::vector<std::string>{"dense", "no cap", "cap 10 %", "no cap", "cap 10 %"}));
  EXPECT_EQ(json["settings"][4]["samples"], 8);
  EXPECT_DOUBLE_EQ(json["settings"][4]["mutual_information"].get<double>(), 0.0123);
  EXPECT_EQ(json["settings"][2]["mutual_information"], 0.0);
  const EvaluateOutcome run = Run({"--model=toy", "--caps=10%", "--samples=1,8"});
  EXPECT_HAS(run.out, "mutual information");
  EXPECT_HAS(run.out, "0.0123");
}

TEST_F(EvaluateTest, RepeatsTakeTheNextSeedsAndAreToldApart) {
  answer_ = [](const v1::PredictRequest& request) {
    absl::StatusOr<v1::PredictResponse> response = Answer(request);
    if (request.ensemble().seed() == 6) response->mutable_predictions(0)->set_label_id(1);
    return response;
  };
  const nlohmann::json json = RunJson({"--model=toy", "--caps=10%", "--seed=5", "--repeats=2", "--limit=2"});
  EXPECT_EQ(json["inputs"], 2);
  EXPECT_EQ(json["settings"][1]["answered"], 4);
  EXPECT_EQ(json["settings"][1]["quality_by_repeat"], (std::vector<double>{1.0, 0.5}));
  EXPECT_EQ(json["settings"][1]["quality"], 0.75);
}

TEST_F(EvaluateTest, OverrideReachesAllButDenseAttention) {
  RunJson({"--model=toy", "--caps=10%", "--keep=4"});
  for (const v1::PredictRequest& call : calls_) {
    EXPECT_EQ(call.has_override(), call.attention() != v1::DENSE);
    EXPECT_EQ(call.override().keep(), call.has_override() ? 4u : 0u);
  }
  calls_.clear();
  RunJson({"--model=toy", "--caps=10%", "--block_pattern=diagonal", "--block_size=8"});
  for (const v1::PredictRequest& call : calls_) {
    EXPECT_EQ(call.override().block_size(), call.attention() != v1::DENSE ? 8u : 0u);
  }
}

TEST_F(EvaluateTest, NoProfileSetsWhatARowLeavesOpen) {
  RunJson({"--model=toy", "--caps=10%"});
  ASSERT_FALSE(calls_.empty());
  for (const v1::PredictRequest& call : calls_) EXPECT_EQ(call.profile(), "none");
}

TEST_F(EvaluateTest, QualityIsWhatTheDataAndTheModelAllow) {
  const nlohmann::json unknown = RunJson({"--model=toy", "--caps=10%"}, kExitOk, "{\"text\": \"a\"}\n");
  EXPECT_EQ(unknown["measure"], "");
  EXPECT_EQ(unknown["settings"][0]["quality"], nullptr);
  EXPECT_HAS(Run({"--model=toy", "--caps=10%"}, "{\"text\": \"a\"}\n").out, "the data has no labels");
  answer_ = [](const v1::PredictRequest& request) {
    absl::StatusOr<v1::PredictResponse> response = Answer(request);
    response->mutable_predictions(0)->add_values(2.5f);
    return response;
  };
  const nlohmann::json error = RunJson({"--model=toy", "--caps=10%"}, kExitOk,
                                       "{\"text\": \"a\", \"value\": 2}\n{\"text\": \"b\", \"value\": 4}\n");
  EXPECT_EQ(error["measure"], "error");
  EXPECT_EQ(error["settings"][2]["quality"], 1.0);
  answer_ = [](const v1::PredictRequest& request) {
    absl::StatusOr<v1::PredictResponse> response = Answer(request);
    const bool longer = request.inputs(0).sequence().text().size() > 1;
    response->mutable_predictions(0)->set_log_likelihood(longer ? -6.0 : -3.0);
    response->mutable_predictions(0)->set_scored_tokens(longer ? 5 : 1);
    return response;
  };
  const nlohmann::json loss =
      RunJson({"--model=toy", "--caps=10%"}, kExitOk, "{\"text\": \"a\"}\n{\"text\": \"bb\"}\n");
  EXPECT_EQ(loss["measure"], "loss");
  EXPECT_EQ(loss["settings"][1]["quality"], 1.5) << "of tokens, not of texts";
}

TEST_F(EvaluateTest, WrongUsageIsNamedAndAsksNothing) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> kCases = {
      {{"--caps=1%"}, "--model is missing"},
      {{"--model=toy", "--caps=1%,5"},
       "--caps[1] is \"5\"; expected a density above 0 and at most 100 %, as 5% or 0.05"},
      {{"--model=toy", "--caps=0"}, "--caps[0] is \"0\""},
      {{"--model=toy", "--caps=-1%"}, "--caps[0] is \"-1%\""},
      {{"--model=toy", "--caps=101%"}, "--caps[0] is \"101%\""},
      {{"--model=toy", "--caps=nan"}, "--caps[0] is \"nan\""},
      {{"--model=toy", "--caps=1%,"}, "--caps[1] is \"\""},
      {{"--model=toy", "--caps=1%", "--samples=0"}, "--samples[0] is \"0\"; expected numbers from 1 up, as 1 or 1,16"},
      {{"--model=toy", "--caps=1%", "--samples=1,x"}, "--samples[1] is \"x\""},
      {{"--model=toy", "--caps=1%", "--repeats=0"}, "--repeats is 0; expected 1 to 10000"},
      {{"--model=toy", "--caps=1%", "--truncate=middle"}, "--truncate is \"middle\""},
  };
  for (const auto& [arguments, message] : kCases) {
    const EvaluateOutcome run = Run(arguments);
    EXPECT_EQ(run.status, kExitUsage) << message;
    EXPECT_HAS(run.err, "edgewise evaluate: " + message);
  }
  EXPECT_HAS(Run({"--model=toy", "--caps=1%"}, "{\"text\": 1}\n").err, ".jsonl:1: text is not a string");
  EXPECT_HAS(Run({"--model=toy", "--caps=1%"}, "\n").err, "--data: no input in");
  EXPECT_TRUE(calls_.empty());
}

TEST(QuantileTest, LiesBetweenTheNeighbours) {
  EXPECT_EQ(Quantile({}, 0.5), 0.0);
  EXPECT_EQ(Quantile({7.0}, 0.25), 7.0);
  EXPECT_EQ(Quantile({4.0, 1.0, 3.0, 2.0}, 0.5), 2.5);
  EXPECT_EQ(Quantile({5.0, 1.0, 3.0, 2.0, 4.0}, 0.25), 2.0);
  EXPECT_EQ(Quantile({1.0, 2.0}, 1.0), 2.0);
}

}  // namespace
}  // namespace edgewise::cli
