#include "server/wire/lone_client.h"

#include <gtest/gtest.h>

namespace edgewise::server {
namespace {

Time At(int ms) { return Time(std::chrono::milliseconds(ms)); }

TEST(LoneClientTest, IsAloneWhenNobodyElseHasCalledForAWhile) {
  LoneClient client;
  EXPECT_FALSE(client.Observe(1, At(100)));
  EXPECT_FALSE(client.Observe(1, At(104)));
  EXPECT_TRUE(client.Observe(1, At(105)));
  EXPECT_FALSE(client.Observe(2, At(106))) << "another connection";
  EXPECT_FALSE(client.Observe(1, At(110)));
  EXPECT_FALSE(client.Observe(1, At(114)));
  EXPECT_TRUE(client.Observe(1, At(115)));
}

}  // namespace
}  // namespace edgewise::server
