#include "server/schedule/line.h"

#include <gtest/gtest.h>

namespace edgewise::server {
namespace {

constexpr size_t kLevel = kDefaultPriority - 1;

RequestPtr Of(const std::string& principal, uint64_t cost = 1, double predicted = 0.0, uint32_t priority = 2) {
  auto request = std::make_unique<Request>();
  request->principal.name = principal;
  request->cost = cost;
  request->predicted_seconds = predicted;
  request->priority = priority;
  return request;
}

TEST(LineTest, SharesAreWhatWaitsOnAllLevels) {
  Line line;
  line.Push(Of("a", 3));
  line.Push(Of("a", 4, 0.0, 1));
  line.Push(Of("b", 5));
  EXPECT_EQ(line.size(), 3u);
  EXPECT_EQ(line.cost(), 12u);
  EXPECT_EQ(line.ShareOf("a").requests, 2u);
  EXPECT_EQ(line.ShareOf("a").cost, 7u);
  EXPECT_EQ(line.Take(0, "a", 0)->cost, 4u);
  EXPECT_EQ(line.ShareOf("a").requests, 1u);
  EXPECT_EQ(line.TakeAll().size(), 2u);
  EXPECT_EQ(line.ShareOf("a").requests + line.ShareOf("b").cost + line.size() + line.cost(), 0u);
}

TEST(LineTest, ANewcomerBeginsAtTheClockThatAllShare) {
  Line line;
  line.Push(Of("a"));
  line.Charge(kLevel, "a", 2.0);
  line.Push(Of("b"));
  EXPECT_EQ(line.accounts(kLevel).at("b").served, 2.0) << "the clock went with the only one";
  line.Charge(kLevel, "a", 2.0);
  EXPECT_EQ(line.clock(kLevel), 3.0) << "half as fast for two";
  EXPECT_EQ(line.Open(kLevel, "c").served, 3.0);
}

TEST(LineTest, PrincipalsWithoutWorkAreForgotten) {
  Line line;
  for (int i = 0; i < 1000; ++i) {
    line.Push(Of(std::to_string(i)));
    line.Take(kLevel, std::to_string(i), 0);
    line.CloseIdle(kLevel, [](const std::string& principal) { return principal == "7"; });
  }
  ASSERT_EQ(line.accounts(kLevel).size(), 1u);
  EXPECT_EQ(line.accounts(kLevel).begin()->first, "7");
}

TEST(LineTest, TheNewestOfTheLargestMakeRoom) {
  Line line;
  for (uint64_t cost : {1, 2, 3}) line.Push(Of("large", cost));
  line.Push(Of("large", 4, 0.0, 1));
  line.Push(Of("small", 5));
  const std::vector<RequestPtr> taken = line.MakeRoom(*Of("new"), 5, 100);
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0]->cost, 3u) << "of the lowest level first";
  EXPECT_EQ(line.size(), 4u);
}

TEST(LineTest, NobodyMakesRoomForOneThatWouldHaveMore) {
  Line line;
  for (int i = 0; i < 2; ++i) line.Push(Of("a"));
  line.Push(Of("b"));
  EXPECT_TRUE(line.MakeRoom(*Of("a"), 3, 100).empty()) << "it is the largest itself";
  EXPECT_TRUE(line.MakeRoom(*Of("b"), 3, 100).empty()) << "the two would change places";
  EXPECT_EQ(line.MakeRoom(*Of("c"), 3, 100).size(), 1u);
}

TEST(LineTest, RoomIsMadeByCostToo) {
  Line line;
  for (int i = 0; i < 10; ++i) line.Push(Of("a", 10));
  EXPECT_TRUE(line.MakeRoom(*Of("b", 60), 100, 100).empty()) << "a would have less";
  EXPECT_EQ(line.MakeRoom(*Of("b", 45), 100, 100).size(), 5u);
  EXPECT_EQ(line.cost(), 50u);
}

TEST(LineTest, RequestsThatEndLeaveTheSums) {
  Line line;
  line.Push(Of("a", 1, 0.5));
  line.Push(Of("a", 2, 0.25));
  std::vector<EndedRequest> ended;
  line.TakeIf([](const Request& request) { return request.cost == 1 ? absl::CancelledError("") : absl::OkStatus(); },
              ended);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(ended[0].reason));
  EXPECT_EQ(line.accounts(kLevel).at("a").seconds, 0.25);
  EXPECT_EQ(line.cost(), 2u);
  EXPECT_EQ(line.Take(kLevel, "a", 0)->cost, 2u);
}

}  // namespace
}  // namespace edgewise::server
