// edgewise evaluate: settings that override the attention, and rows that become profiles.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "tests/client/evaluate_fixture.h"

namespace edgewise::cli {
namespace {

using EvaluateSweepTest = EvaluateTest;

TEST_F(EvaluateSweepTest, EveryOverrideHasItsRowsWithEachCapAndNumberOfSamples) {
  const nlohmann::json json =
      RunJson({"--model=toy", "--windows=4,8", "--sigma=0.1,0.2", "--keep=3", "--block_size=16",
               "--block_pattern=local", "--block_width=2", "--last_layers=1", "--caps=10%", "--samples=1,2"});
  const std::vector<std::string> once = {"windows 4, last 1",
                                         "windows 4, last 1, cap 10 %",
                                         "windows 8, last 1",
                                         "windows 8, last 1, cap 10 %",
                                         "keep 3, last 1",
                                         "keep 3, last 1, cap 10 %",
                                         "local blocks of 16, last 1",
                                         "local blocks of 16, last 1, cap 10 %"};
  std::vector<std::string> expected = {"dense"};
  for (int i = 0; i < 2; ++i) expected.insert(expected.end(), once.begin(), once.end());
  EXPECT_EQ(Names(json), expected);
  EXPECT_EQ(json["settings"][16]["samples"], 2);
  EXPECT_EQ(json["settings"][0]["override"], nullptr);
  EXPECT_EQ(json["settings"][3]["override"].dump(),
            "{\"kind\":\"ssa\",\"last_layers\":1,\"sigma\":[0.1,0.2],\"windows\":8}");
  std::set<std::string> overrides;
  for (const v1::PredictRequest& call : calls_) {
    EXPECT_EQ(call.has_override(), call.attention() != v1::DENSE);
    if (call.has_override()) overrides.insert(call.override().ShortDebugString());
  }
  EXPECT_EQ(overrides.size(), 4u);
  for (const std::string& override : overrides) {  // each flag goes where it belongs
    EXPECT_EQ(override.find("sigma") != std::string::npos, override.find("windows") != std::string::npos) << override;
    EXPECT_EQ(override.find("width") != std::string::npos, override.find("pattern") != std::string::npos) << override;
  }
}

TEST_F(EvaluateSweepTest, PatternWithoutASizeIsOneSetting) {
  const nlohmann::json json = RunJson(
      {"--model=toy", "--block_pattern=learned", "--block_threshold=0.25", "--window_tokens=16,32", "--sigma=8"});
  EXPECT_EQ(Names(json), (std::vector<std::string>{"dense", "window_tokens 16", "window_tokens 32", "learned blocks"}));
  EXPECT_EQ(json["settings"][3]["override"].dump(), "{\"kind\":\"block\",\"pattern\":\"learned\",\"threshold\":0.25}");
}

TEST_F(EvaluateSweepTest, WrongListIsNamed) {
  const std::pair<std::vector<std::string>, const char*> kCases[] = {
      {{"--windows=4,x", "--sigma=0.1"}, "--windows[1] is \"x\"; expected numbers from 1 up, as 4 or 4,8"},
      {{"--block_size=0", "--block_pattern=local"}, "--block_size[0] is \"0\""},
      {{"--window_tokens=4"}, "--window_tokens needs --sigma"},
      {{"--block_size=16"}, "--block_size goes with --block_pattern"},
      {{"--sigma=0.1"}, "--sigma goes with"},
      {{"--windows=4", "--window_tokens=16", "--sigma=1"}, "--windows and --window_tokens exclude each other"},
  };
  for (const auto& [arguments, message] : kCases) {
    std::vector<std::string> all = {"--model=toy"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const EvaluateOutcome run = Run(all);
    EXPECT_EQ(run.status, kExitUsage) << message;
    EXPECT_HAS(run.err, std::string("edgewise evaluate: ") + message);
  }
  EXPECT_TRUE(calls_.empty());
}

TEST_F(EvaluateSweepTest, RowsHaveTheProfileThatAsksForThem) {
  const nlohmann::json settings =
      nlohmann::json::parse(Run({"--model=toy", "--json", "--block_size=16", "--block_pattern=local", "--caps=12.5%",
                                 "--samples=4", "--keep_edges=probable"})
                                .out)["settings"];
  ASSERT_EQ(settings.size(), 3u);
  EXPECT_EQ(settings[0]["profile"], nullptr) << "none asks for dense attention";
  const nlohmann::json blocks = {{"kind", "block"}, {"block_size", 16}, {"pattern", "local"}};
  EXPECT_EQ(settings[1]["profile"], nlohmann::json({{"samples", 4}, {"override", blocks}}));
  EXPECT_EQ(settings[2]["profile"],
            nlohmann::json({{"max_density", 0.125}, {"keep", "probable"}, {"samples", 4}, {"override", blocks}}));
  EXPECT_EQ(nlohmann::json::parse(Run({"--model=toy", "--json", "--caps=10%"}).out)["settings"][1]["profile"],
            nlohmann::json::object());
}

}  // namespace
}  // namespace edgewise::cli
