// edgewise evaluate: settings that override the attention, and rows that become profiles.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
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

class SaveTest : public EvaluateTest {
 protected:
  SaveTest() { Write(kConfig); }
  ~SaveTest() override { std::remove(config_.c_str()); }

  void Write(const std::string& text) { std::ofstream(config_) << text; }
  std::string Read() {
    std::ifstream file(config_);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  EvaluateOutcome Save(std::vector<std::string> arguments, const std::string& row) {
    arguments.insert(arguments.end(), {"--model=toy", "--save=quick", "--config=" + config_, "--row=" + row});
    return Run(arguments);
  }

  static constexpr char kConfig[] = "{\"vocab_size\": 7, \"eps\": 1e-12, \"model_type\": \"bert\"}\n";
  std::string config_ = ::testing::TempDir() + "edgewise_save_" +
                        ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".json";
};

TEST_F(SaveTest, RowBecomesAProfileAndTheRestStays) {
  const EvaluateOutcome run =
      Save({"--block_size=16", "--block_pattern=local", "--caps=12.5%", "--samples=4", "--keep_edges=probable"}, "3");
  EXPECT_EQ(run.status, kExitOk) << run.err;
  EXPECT_EQ(nlohmann::ordered_json::parse(Read()).dump(),
            "{\"vocab_size\":7,\"eps\":1e-12,\"model_type\":\"bert\",\"profiles\":{\"quick\":{\"max_density\":0.125,"
            "\"keep\":\"probable\",\"samples\":4,\"override\":{\"kind\":\"block\",\"block_size\":16,\"pattern\":"
            "\"local\"}}}}");
  EXPECT_HAS(run.err, "profile \"quick\" in " + config_ + ": {\"max_density\":0.125,");
  EXPECT_FALSE(std::filesystem::exists(config_ + ".new"));
}

TEST_F(SaveTest, OtherProfilesStay) {
  Write("{\"profiles\": {\"slow\": {\"samples\": 16}}}");
  EXPECT_EQ(Save({"--caps=10%"}, "3").status, kExitOk);
  EXPECT_EQ(nlohmann::ordered_json::parse(Read()).dump(),
            "{\"profiles\":{\"slow\":{\"samples\":16},\"quick\":{\"max_density\":0.1}}}");
}

TEST_F(SaveTest, WhatCannotBeAProfileIsRefusedBeforeItAsks) {
  const std::pair<std::vector<std::string>, const char*> kCases[] = {
      {{"--save=quick"}, "--save needs --row, a row of the table, and --config, the model's config.json"},
      {{"--row=1"}, "--row and --config go with --save"},
      {{"--save=quick", "--config=" + config_, "--row=4"}, "--row is 4; expected 1 to 3"},
      {{"--save=quick", "--config=" + config_, "--row=1"}, "a profile cannot ask for dense attention"},
      {{"--save=quick", "--config=" + config_, "--row=2"}, "the model does this without a profile"},
      {{"--save=Quick", "--config=" + config_, "--row=3"}, "--save is \"Quick\"; expected 1 to 64 characters of a-z"},
      {{"--save=none", "--config=" + config_, "--row=3"}, "--save is \"none\""},
      {{"--save=quick", "--config=/nonexistent/c", "--row=3"}, "--config: cannot read \"/nonexistent/c\""},
  };
  for (const auto& [arguments, message] : kCases) {
    std::vector<std::string> all = {"--model=toy", "--caps=10%"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const EvaluateOutcome run = Run(all);
    EXPECT_EQ(run.status, kExitUsage) << message;
    EXPECT_HAS(run.err, message);
  }
  const std::pair<const char*, const char*> kFiles[] = {
      {"[1]", "is not a JSON object"},
      {"{\"profiles\": []}", "is not an object"},
      {"{\"profiles\": {\"quick\": {}}}", "has this profile already; choose another name, or remove it"}};
  for (const auto& [text, message] : kFiles) {
    Write(text);
    EXPECT_HAS(Save({"--caps=10%"}, "3").err, message);
    EXPECT_EQ(Read(), text);
  }
  EXPECT_TRUE(calls_.empty());
}

TEST_F(SaveTest, RefusedRowIsNotSaved) {
  const EvaluateOutcome run = Save({"--caps=0.1%"}, "3");
  EXPECT_EQ(run.status, kExitServer);
  EXPECT_HAS(run.err, "--save: row 3 was never answered");
  EXPECT_EQ(Read(), kConfig);
}

}  // namespace
}  // namespace edgewise::cli
