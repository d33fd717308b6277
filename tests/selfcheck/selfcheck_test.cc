// The self-check on a device that computes something wrong. The rest is in tests/e2e/test_selfcheck.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "model/load/load.h"
#include "model/model.h"
#include "selfcheck/attention_check.h"
#include "selfcheck/difference.h"
#include "selfcheck/flags.h"
#include "selfcheck/model_check.h"
#include "tests/model/deferred_backend.h"
#include "tests/support/paths.h"

namespace edgewise::selfcheck {
namespace {

using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const std::string kModel = tests::ExamplesFolder() + "/sentiment/1";

// The CPU, with what it tells changed by hand.
class WrongBackend : public edgewise::testing::DeferredBackend {
 public:
  WrongBackend() : DeferredBackend(*CreateBackend({})) {}
  std::function<void(std::span<float>)> spoil_values;
  std::function<void(AttentionReport&)> spoil_report;

  absl::Status Download(const float* device, std::span<float> host) override {
    const absl::Status status = DeferredBackend::Download(device, host);
    if (spoil_values) spoil_values(host);
    return status;
  }
  absl::Status Attend(const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                      std::span<EdgeCap> caps, Matrix out) override {
    const absl::Status status = DeferredBackend::Attend(inputs, problems, caps, out);
    AttentionReport* report = problems[0].report;
    if (spoil_report && report != nullptr && report->wanted.graph) spoil_report(*report);
    return status;
  }
};

std::vector<AttentionRow> AttentionRows(Backend& device) {
  const auto cpu = *CreateBackend({});
  AttentionCheckOptions options;
  options.tokens = 96;
  options.repeats = 1;
  std::vector<AttentionRow> rows;
  EXPECT_TRUE(CheckAttention(options, device, *cpu, [&](const AttentionRow& row) { rows.push_back(row); }).ok());
  EXPECT_EQ(rows.size(), 12u);
  return rows;
}

TEST(DifferenceTest, IsRelativeToTheLargestValue) {
  EXPECT_EQ(RelativeError({}, {}), 0.0);
  EXPECT_DOUBLE_EQ(RelativeError(std::vector{1.0f, -4.0f}, std::vector{2.0f, -4.0f}), 0.25);
  EXPECT_DOUBLE_EQ(RelativeError(std::vector{0.5f}, std::vector{0.0f}), 0.5);
}

TEST(DifferenceTest, WhatIsNotANumberIsBelowNoTolerance) {
  const std::vector<float> want = {1.0f, 2.0f, 3.0f};
  for (size_t i = 0; i < want.size(); ++i) {
    std::vector<float> got = want;
    got[i] = kNan;
    EXPECT_FALSE(RelativeError(got, want) <= 1.0) << i;
    EXPECT_FALSE(RelativeError(want, got) <= 1.0) << i;
    got[i] = std::numeric_limits<float>::infinity();
    EXPECT_FALSE(RelativeError(got, want) <= 1.0) << i;
    EXPECT_FALSE(RelativeError(got, got) <= 1.0) << i;
  }
  EXPECT_FALSE(RelativeError(std::vector{1.0f, 2.0f}, want) <= 1.0);
}

TEST(DifferenceTest, GraphsAreComparedEdgeByEdge) {
  AttentionReport want;
  want.heads.resize(2);
  for (HeadReport& head : want.heads) {
    head.edges = 2;
    head.graph = {{0, 1, 2}, {1, 0}, {1, 2}, {}};
  }
  EXPECT_TRUE(SameGraph(want, want));
  const std::vector<std::function<void(AttentionReport&)>> changes = {
      [](AttentionReport& report) { report.heads.pop_back(); },
      [](AttentionReport& report) { report.heads.emplace_back(); },
      [](AttentionReport& report) { report.heads[1].edges = 3; },
      [](AttentionReport& report) { report.heads[1].isolated = 1; },
      [](AttentionReport& report) { report.heads[1].graph.keys[0] = 0; },
      [](AttentionReport& report) { report.heads[1].graph.row_offsets[1] = 2; },
      [](AttentionReport& report) { report.heads[1].graph.multiplicity.clear(); }};
  for (size_t i = 0; i < changes.size(); ++i) {
    AttentionReport got = want;
    changes[i](got);
    EXPECT_FALSE(SameGraph(got, want)) << i;
  }
}

TEST(AttentionCheckTest, AGoodDevicePasses) {
  WrongBackend device;
  EXPECT_THAT(AttentionRows(device), Each(Field(&AttentionRow::passed, true)));
}

TEST(AttentionCheckTest, WrongValuesAreSeen) {
  WrongBackend device;
  for (const float value : {kNan, 0.1f}) {
    device.spoil_values = [&](std::span<float> host) { host[5] += value; };
    EXPECT_THAT(AttentionRows(device), Each(Field(&AttentionRow::passed, false)));
  }
}

TEST(AttentionCheckTest, AWrongEdgeIsSeen) {
  WrongBackend device;
  device.spoil_report = [](AttentionReport& report) { ++report.heads.back().graph.keys.back(); };
  const std::vector<AttentionRow> rows = AttentionRows(device);
  EXPECT_THAT(rows, Each(Field(&AttentionRow::same_graph, false)));
  EXPECT_THAT(rows, Each(Field(&AttentionRow::passed, false)));
}

TEST(AttentionCheckTest, AFailureNamesDeviceAndPattern) {
  WrongBackend device;
  const auto cpu = *CreateBackend({});
  device.FailAfter(4);
  AttentionCheckOptions options;
  options.tokens = 32;
  options.repeats = 1;
  const absl::Status status = CheckAttention(options, device, *cpu, [](const AttentionRow&) {});
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(device.device() + ": causal: "));
}

TEST(ModelCheckTest, WrongLogitsAreSeen) {
  WrongBackend device;
  const auto cpu = *CreateBackend({});
  const auto on_device = *LoadModel(kModel, device);
  const auto on_cpu = *LoadModel(kModel, *cpu);
  for (const auto& [value, own_edges_pass] : {std::pair{0.0f, true}, {0.1f, true}, {kNan, false}}) {
    device.spoil_values = [value = value](std::span<float> host) { host[0] += value; };
    const auto rows = CheckModel(*on_device, *on_cpu, 96, 1e-3);
    ASSERT_TRUE(rows.ok()) << rows.status();
    ASSERT_EQ(rows->size(), 3u);
    EXPECT_EQ((*rows)[0].passed, value == 0.0f) << value;
    EXPECT_EQ((*rows)[1].passed, own_edges_pass) << value;
    EXPECT_EQ((*rows)[2].passed, value == 0.0f) << value;
  }
}

TEST(FlagsTest, AreWrittenAsTheServers) {
  Flags flags;
  const std::vector<std::string> arguments = {"--device=cuda:1", "--tokens", "7", "--model=a=b", "--repeats=1000"};
  const auto parse = [&flags](const std::vector<std::string>& given) {
    FlagSet set("edgewise-selfcheck", "");
    flags.Register(set);
    return set.Parse(given);
  };
  EXPECT_TRUE(parse(arguments).ok()) << parse(arguments);
  EXPECT_EQ(flags.device, "cuda:1");
  EXPECT_EQ(flags.tokens, 7);
  EXPECT_EQ(flags.model, "a=b");
  EXPECT_EQ(flags.repeats, 1000);
  for (const char* wrong : {"--tokens", "--tokens=0", "--tokens=8193", "--tokens=1x", "--repeats=-1", "--repeats=1001",
                            "--repeats=99999999999", "--no", "--", "-device=cpu", "cpu", ""}) {
    EXPECT_EQ(parse({wrong}).code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
}

}  // namespace
}  // namespace edgewise::selfcheck
