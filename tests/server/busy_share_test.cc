#include "server/observe/busy_share.h"

#include <gtest/gtest.h>

namespace edgewise::server {
namespace {

using std::chrono::milliseconds;

constexpr Time kStart = Time() + std::chrono::seconds(1000);

TEST(BusyShareTest, IsTheTimeThatTheDeviceWorkedOverThatLookedBackOn) {
  BusyShare busy;
  EXPECT_EQ(busy.At(kStart), 0.0);
  for (int step = 1; step <= 2000; ++step) busy.Add(kStart + milliseconds(10 * step), 0.0025);
  EXPECT_NEAR(busy.At(kStart + milliseconds(20000)), 0.25, 0.002);
  EXPECT_NEAR(busy.At(kStart + milliseconds(24500)), 0.25 * 5.0 / 9.5, 0.002) << "idle since then";
  EXPECT_EQ(busy.At(kStart + milliseconds(30001)), 0.0);
}

TEST(BusyShareTest, AStepBelongsToTheSecondsInWhichItRan) {
  BusyShare busy;
  busy.Add(kStart + milliseconds(100), 0.6);
  EXPECT_NEAR(busy.At(kStart + milliseconds(8500)), 0.6 / 9.5, 1e-9);
  EXPECT_NEAR(busy.At(kStart + milliseconds(9500)), 0.1 / 9.5, 1e-9) << "half a second of it is longer ago";
}

TEST(BusyShareTest, ADeviceThatAlwaysWorksIsBusyAndNotMore) {
  BusyShare busy;
  for (int step = 1; step <= 1000; ++step) {
    const Time end = kStart + milliseconds(23 * step);
    busy.Add(end, 0.023);
    if (step > 600) {
      EXPECT_NEAR(busy.At(end), 1.0, 1e-6) << step;
    }
  }
}

}  // namespace
}  // namespace edgewise::server
