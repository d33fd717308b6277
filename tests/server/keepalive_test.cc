// Takes 50 seconds: gRPC counts pings by the real clock.
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "tests/server/test_server.h"

namespace edgewise::server {
namespace {

constexpr int kPingMilliseconds = 11000;  // the server allows one in 10 s
constexpr auto kFourPings = std::chrono::milliseconds(4 * kPingMilliseconds + 6000);

// gRPC's answer to the third ping too many is GOAWAY.
TEST(KeepaliveTest, AnIdleClientThatPingsKeepsItsConnection) {
  TestServer server;
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMilliseconds);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_MIN_SENT_PING_INTERVAL_WITHOUT_DATA_MS, kPingMilliseconds);
  const auto channel = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(server.server().port()),
                                                 grpc::InsecureChannelCredentials(), arguments);
  ASSERT_TRUE(channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(30)));
  EXPECT_FALSE(channel->WaitForStateChange(GRPC_CHANNEL_READY, std::chrono::system_clock::now() + kFourPings))
      << "the connection ended; the channel is in state " << channel->GetState(false);
}

}  // namespace
}  // namespace edgewise::server
