#include "server/base/address.h"

#include <gtest/gtest.h>

namespace edgewise::server {
namespace {

TEST(AddressTest, HostAndPortAreParted) {
  const auto plain = ParseHostPort("--listen", "localhost:0");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->host, "localhost");
  EXPECT_EQ(plain->port, 0);
  const auto ipv6 = ParseHostPort("--listen", "[::1]:65535");
  ASSERT_TRUE(ipv6.ok()) << ipv6.status();
  EXPECT_EQ(ipv6->host, "::1");
  EXPECT_EQ(ipv6->port, 65535);
}

TEST(AddressTest, AnythingElseIsRefusedWithTheFlag) {
  for (const char* address : {"",
                              ":",
                              "127.0.0.1",
                              "127.0.0.1:",
                              ":8001",
                              ":abc",
                              "127.0.0.1:abc",
                              "127.0.0.1:65536",
                              "127.0.0.1:99999",
                              "127.0.0.1:-1",
                              "127.0.0.1:+1",
                              "127.0.0.1: 1",
                              "127.0.0.1:1 ",
                              "::1:8001",
                              "[::1]",
                              "[::1:8001",
                              "[x]:1",
                              "unix:/tmp/socket",
                              "dns:///localhost:1",
                              "ipv4:127.0.0.1:1"}) {
    const absl::Status status = ParseHostPort("--listen", address).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << address;
    EXPECT_EQ(status.message().find("--listen="), 0u) << status;
  }
}

TEST(AddressTest, LoopbackIsAnAddressNotAPrefix) {
  for (const char* address : {"127.0.0.1:8001", "127.9.9.9:1", "localhost:8001", "[::1]:8001"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address : {"0.0.0.0:8001", "[::]:8001", "10.0.0.1:8001", "example.org:8001", "1270.0.0.1:1",
                              "127.example.org:1", "127.0.0.1.example.org:1", "127.1:1", "localhost.example.org:1"}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

}  // namespace
}  // namespace edgewise::server
