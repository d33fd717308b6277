#include "server/guard/unread_age.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/server/retry_delay.h"

namespace edgewise::server {
namespace {

using std::chrono::milliseconds;

Time At(int ms) { return Time(milliseconds(ms)); }

TEST(LostCallsTest, AQuarterIsManyWhereTheyAreReadLate) {
  LostCalls calls;
  EXPECT_EQ(calls.Look(10000, 10000, 0, true).drop, 0.0);
  EXPECT_EQ(calls.Look(20000, 17501, 0, true).drop, 0.0) << "less than a quarter is given up";
  EXPECT_EQ(calls.Look(30000, 25001, 0, false).drop, 0.0) << "not since they are read late";
  EXPECT_EQ(calls.Look(30049, 25001, 0, true).drop, 0.0) << "49 are few";
  EXPECT_EQ(calls.Look(30149, 25051, 0, true).drop, 0.5);

  LostCalls others;
  EXPECT_EQ(others.Look(1000, 1000, 249, true).drop, 0.0) << "less than a quarter is refused";
  EXPECT_EQ(others.Look(2000, 2000, 549, true).drop, 0.3);
  LostCalls both;
  EXPECT_EQ(both.Look(1000, 900, 200, true).drop, 0.3) << "given up and refused";
}

TEST(LostCallsTest, ADropShowsAtTheSecondLookAfterIt) {
  LostCalls calls;
  EXPECT_EQ(calls.Look(1000, 500, 0, true).drop, 0.5);
  EXPECT_EQ(calls.Look(2000, 1000, 0, true).drop, 0.0);
  EXPECT_EQ(calls.Look(3000, 1500, 0, true).drop, 0.5);
  EXPECT_EQ(calls.Look(4000, 2500, 0, true).drop, 0.0);
  EXPECT_EQ(calls.Look(5000, 3500, 0, true).drop, 0.0) << "nothing is lost";
  EXPECT_EQ(calls.Look(6000, 4000, 0, true).drop, 0.5) << "that has no drop before it";
}

TEST(LostCallsTest, AQuarterOfWhatWaitsIsKept) {
  LostCalls calls;
  EXPECT_EQ(calls.Look(1000, 0, 0, true).drop, 0.75);
  LostCalls refused;
  EXPECT_EQ(refused.Look(0, 0, 60, true).drop, 0.75) << "they came before the look before";
}

TEST(LostCallsTest, ConnectionsAreTakenOneByOneUntilNothingIsLostForASecond) {
  LostCalls calls;
  EXPECT_EQ(calls.Look(1000, 1000, 0, true).accept, LostCalls::kAnyNumber);
  EXPECT_EQ(calls.Look(2000, 1500, 0, true).accept, 1);
  EXPECT_EQ(calls.Look(3000, 2000, 0, true).accept, 1) << "after a drop, too";
  int before = 0;
  for (uint64_t look = 1; look < 10; ++look) {
    const int accept = calls.Look(3000 + 10 * look, 2000 + 10 * look, 0, true).accept;
    EXPECT_GE(accept, before) << look;
    EXPECT_LE(accept, 5) << look;
    before = accept;
  }
  EXPECT_EQ(calls.Look(4000, 3000, 0, true).accept, LostCalls::kAnyNumber);
  EXPECT_EQ(calls.Look(5000, 4000, 0, true).accept, LostCalls::kAnyNumber);
}

TEST(UnreadAgeTest, ASocketThatIsReadHasNoAge) {
  UnreadAge age;
  EXPECT_EQ(age.Observe(At(0), 0, 0), milliseconds(0));
  EXPECT_EQ(age.Observe(At(10), 100, 100), milliseconds(0)) << "these came since the last look";
  EXPECT_FALSE(age.idle());
  EXPECT_EQ(age.Observe(At(20), 100, 0), milliseconds(0));
  EXPECT_TRUE(age.idle());
  EXPECT_EQ(age.Observe(At(5000), 200, 100), milliseconds(0)) << "the pause was not a wait";
}

TEST(UnreadAgeTest, BytesAgeUntilTheyAreRead) {
  UnreadAge age;
  EXPECT_EQ(age.Observe(At(0), 100, 100), milliseconds(0));
  EXPECT_EQ(age.Observe(At(10), 150, 150), milliseconds(10));
  EXPECT_EQ(age.Observe(At(20), 150, 150), milliseconds(20));
  EXPECT_EQ(age.Observe(At(30), 150, 40), milliseconds(30))
      << "the first 100 are read, 10 of those that came by 10 too";
  EXPECT_EQ(age.Observe(At(40), 180, 30), milliseconds(10)) << "all that had come by 30 are read";
}

// 1,000 bytes a second, of which each is read `wait` later: whatever the wait, the age is that to within 15 %, or two
// looks.
TEST(UnreadAgeTest, FollowsAnyWait) {
  for (const int wait : {20, 100, 400, 3000}) {
    UnreadAge age;
    for (int now = 0; now < 10000; now += 10) {
      const auto received = static_cast<uint64_t>(now);
      const uint64_t read = now > wait ? static_cast<uint64_t>(now - wait) : 0;
      const Clock::duration found = age.Observe(At(now), received, received - read);
      if (now <= wait) continue;
      EXPECT_GE(found, milliseconds(wait)) << "at " << now;
      EXPECT_LE(found, milliseconds(wait + std::max(20, wait * 15 / 100))) << "at " << now;
    }
  }
}

TEST(CheckWaitTest, HalfOfTheTimeMayBeGone) {
  EXPECT_TRUE(CheckWait(milliseconds(0), milliseconds(0), true).ok()) << "the queue says what is too late";
  EXPECT_TRUE(CheckWait(milliseconds(100), milliseconds(200), true).ok());
  const absl::Status late = CheckWait(milliseconds(101), milliseconds(200), true);
  EXPECT_EQ(late.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(late.message(), "the server reads calls 101 ms late, more than half of the 200 ms that this one may take");
  EXPECT_GT(RetryDelay(late), 0.0);
  EXPECT_EQ(CheckWait(milliseconds(200), milliseconds(200), true).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(CheckWait(milliseconds(3000), milliseconds(2000), false).code(), absl::StatusCode::kResourceExhausted)
      << "a call without a deadline cannot miss it";
}

}  // namespace
}  // namespace edgewise::server
