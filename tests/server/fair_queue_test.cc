#include "server/schedule/fair_queue.h"

#include <gtest/gtest.h>

namespace edgewise::server {
namespace {

constexpr size_t kOwnLevel = kDefaultPriority - 1;

RequestPtr RequestOf(const std::string& principal, uint64_t cost = 1, double predicted = 0.0, uint32_t priority = 2) {
  auto request = std::make_unique<Request>();
  request->ticket.principal.name = principal;
  request->work.cost = cost;
  request->forecast.seconds = predicted;
  request->ticket.priority = priority;
  return request;
}

TEST(LineTest, SharesAreWhatWaitsOnAllLevels) {
  FairQueue line;
  line.Push(RequestOf("a", 3));
  line.Push(RequestOf("a", 4, 0.0, 1));
  line.Push(RequestOf("b", 5));
  EXPECT_EQ(line.size(), 3u);
  EXPECT_EQ(line.cost(), 12u);
  EXPECT_EQ(line.UsageOf("a").requests, 2u);
  EXPECT_EQ(line.UsageOf("a").cost, 7u);
  EXPECT_EQ(line.Take(0, "a", 0)->work.cost, 4u);
  EXPECT_EQ(line.UsageOf("a").requests, 1u);
  EXPECT_EQ(line.TakeAll().size(), 2u);
  EXPECT_EQ(line.UsageOf("a").requests + line.UsageOf("b").cost + line.size() + line.cost(), 0u);
}

TEST(LineTest, ANewcomerBeginsAtTheClockThatAllShare) {
  FairQueue line;
  line.Push(RequestOf("a"));
  line.Charge(kOwnLevel, "a", 2.0);
  line.Push(RequestOf("b"));
  EXPECT_EQ(line.accounts(kOwnLevel).at("b").served, 2.0) << "the clock went with the only one";
  line.Charge(kOwnLevel, "a", 2.0);
  EXPECT_EQ(line.clock(kOwnLevel), 3.0) << "half as fast for two";
  EXPECT_EQ(line.Open(kOwnLevel, "c").served, 3.0);
}

TEST(LineTest, PrincipalsWithoutWorkAreForgotten) {
  FairQueue line;
  for (int i = 0; i < 1000; ++i) {
    line.Push(RequestOf(std::to_string(i)));
    line.Take(kOwnLevel, std::to_string(i), 0);
    line.CloseIdle(kOwnLevel, [](const std::string& principal) { return principal == "7"; });
  }
  ASSERT_EQ(line.accounts(kOwnLevel).size(), 1u);
  EXPECT_EQ(line.accounts(kOwnLevel).begin()->first, "7");
}

TEST(LineTest, TheNewestOfTheLargestMakeRoom) {
  FairQueue line;
  for (uint64_t cost : {1, 2, 3}) line.Push(RequestOf("large", cost));
  line.Push(RequestOf("large", 4, 0.0, 1));
  line.Push(RequestOf("small", 5));
  const std::vector<RequestPtr> taken = line.MakeRoom("new", 1, 5, 100);
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0]->work.cost, 3u) << "of the lowest level first";
  EXPECT_EQ(line.size(), 4u);
}

TEST(LineTest, NobodyMakesRoomForOneThatWouldHaveMore) {
  FairQueue line;
  for (int i = 0; i < 2; ++i) line.Push(RequestOf("a"));
  line.Push(RequestOf("b"));
  EXPECT_TRUE(line.MakeRoom("a", 1, 3, 100).empty()) << "it is the largest itself";
  EXPECT_TRUE(line.MakeRoom("b", 1, 3, 100).empty()) << "the two would change places";
  EXPECT_EQ(line.MakeRoom("c", 1, 3, 100).size(), 1u);
}

TEST(LineTest, RoomIsMadeByCostToo) {
  FairQueue line;
  for (int i = 0; i < 10; ++i) line.Push(RequestOf("a", 10));
  EXPECT_TRUE(line.MakeRoom("b", 60, 100, 100).empty()) << "a would have less";
  EXPECT_EQ(line.MakeRoom("b", 45, 100, 100).size(), 5u);
  EXPECT_EQ(line.cost(), 50u);
}

TEST(LineTest, RequestsThatEndLeaveTheSums) {
  FairQueue line;
  line.Push(RequestOf("a", 1, 0.5));
  line.Push(RequestOf("a", 2, 0.25));
  std::vector<EndedRequest> ended;
  line.TakeIf(
      [](const Request& request) { return request.work.cost == 1 ? absl::CancelledError("") : absl::OkStatus(); },
      ended);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(ended[0].reason));
  EXPECT_EQ(line.accounts(kOwnLevel).at("a").seconds, 0.25);
  EXPECT_EQ(line.cost(), 2u);
  EXPECT_EQ(line.Take(kOwnLevel, "a", 0)->work.cost, 2u);
}

}  // namespace
}  // namespace edgewise::server
