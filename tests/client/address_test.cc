// What an address may be, and what gRPC gets of it.
#include "client/address.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/client/localhost.h"

namespace edgewise::internal {
namespace {

std::vector<std::string> Targets(const std::vector<ServerAddress>& servers) {
  std::vector<std::string> targets;
  for (const ServerAddress& server : servers) targets.push_back(server.target);
  return targets;
}

TEST(AddressTest, OneServerIsWhatItWasAndIsNotBalanced) {
  const std::pair<const char*, const char*> kCases[] = {
      {"host:9", "host:9"},          {"host", "host:8001"},
      {"[::1]:9", "[::1]:9"},        {"::1", "[::1]:8001"},
      {"[::1]", "[::1]:8001"},       {"unix:/run/a,b", "unix:/run/a,b"},
      {"a_b.c-d:1", "a_b.c-d:1"},    {"[fe80::1%lo]:9", "[fe80::1%lo]:9"},
      {"xds:///name", "xds:///name"}};
  for (const auto& [given, target] : kCases) {
    const absl::StatusOr<Address> address = ParseAddress(given);
    ASSERT_TRUE(address.ok()) << given << ": " << address.status();
    EXPECT_EQ(address->target, target);
    EXPECT_FALSE(address->balanced) << given;
    EXPECT_EQ(Targets(address->servers), std::vector<std::string>{target});
  }
}

TEST(AddressTest, SeveralAreOneTargetOfNumbers) {
  const std::pair<const char*, const char*> kCases[] = {{"127.0.0.1:1,127.0.0.1:2", "ipv4:127.0.0.1:1,127.0.0.1:2"},
                                                        {" 10.0.0.1 , 10.0.0.2:7 ", "ipv4:10.0.0.1:8001,10.0.0.2:7"},
                                                        {"ipv4:10.0.0.1:1,10.0.0.2:2", "ipv4:10.0.0.1:1,10.0.0.2:2"},
                                                        {"ipv4:10.0.0.1:1", "ipv4:10.0.0.1:1"},
                                                        {"[::1]:1,[::2]:2", "ipv6:[::1]:1,[::2]:2"},
                                                        {"ipv6:[::1]:1", "ipv6:[::1]:1"},
                                                        {"127.0.0.1:1,[::1]:2", "ipv6:[::ffff:127.0.0.1]:1,[::1]:2"}};
  for (const auto& [given, target] : kCases) {
    const absl::StatusOr<Address> address = ParseAddress(given);
    ASSERT_TRUE(address.ok()) << given << ": " << address.status();
    EXPECT_EQ(address->target, target);
    EXPECT_TRUE(address->balanced) << given;
    EXPECT_EQ(address->authority, address->servers[0].target);
  }
}

TEST(AddressTest, NamesOfAListAreLookedUp) {
  if (!testing::KnowsLocalhost()) GTEST_SKIP() << testing::kNoLocalhost;
  const absl::StatusOr<Address> address = ParseAddress("localhost:1,127.0.0.1,localhost:2");
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(address->target, "ipv4:127.0.0.1:1,127.0.0.1:8001,127.0.0.1:2");
  EXPECT_TRUE(address->balanced);
  EXPECT_EQ(Targets(address->servers), (std::vector<std::string>{"localhost:1", "127.0.0.1:8001", "localhost:2"}));
}

TEST(AddressTest, ANameIsOneTargetAndStandsForItsServers) {
  EXPECT_EQ(ParseAddress("dns://10.0.0.1/host")->target, "dns://10.0.0.1/host:8001");
  if (!testing::KnowsLocalhost()) GTEST_SKIP() << testing::kNoLocalhost;
  for (const char* given : {"dns:///localhost:9", "dns:localhost:9"}) {
    const absl::StatusOr<Address> address = ParseAddress(given);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->target, "dns:///localhost:9");
    EXPECT_TRUE(address->balanced);
    const absl::StatusOr<std::vector<ServerAddress>> servers = FindServers(*address);
    ASSERT_TRUE(servers.ok()) << servers.status();
    EXPECT_EQ(Targets(*servers), std::vector<std::string>{"127.0.0.1:9"});
    EXPECT_EQ((*servers)[0].host, "localhost");
  }
}

TEST(AddressTest, IsLocalWhereEveryServerIs) {
  for (const char* local :
       {"127.0.0.1:1,127.9.9.9:1", "localhost:1", "127.0.0.1:1,[::1]:2", "dns:///localhost", "unix:/a"}) {
    EXPECT_TRUE(ParseAddress(local)->local) << local;
  }
  for (const char* distant : {"127.0.0.1:1,10.0.0.1:1", "dns:///localhost.example.org:1", "ipv4:10.0.0.1:1"}) {
    EXPECT_FALSE(ParseAddress(distant)->local) << distant;
  }
}

TEST(AddressTest, WhatIsNoneIsRefusedWithTheValueAndAnExample) {
  const std::pair<const char*, const char*> kCases[] = {
      {"a:1,,b:1", "\"\"; expected HOST:PORT"},
      {"a:1,", "\"\"; expected HOST:PORT"},
      {":1", "\":1\"; expected HOST:PORT"},
      {"a:", "\"a:\"; expected HOST:PORT with a port from 1 to 65535"},
      {"a:0", "\"a:0\"; expected HOST:PORT with a port"},
      {"a:65536", "\"a:65536\""},
      {"a:+1", "\"a:+1\""},
      {"a b:1", "\"a b:1\""},
      {"http://a:1", "\"http://a:1\"; expected HOST:PORT"},
      {"a:1,unix:/b", "\"unix:/b\"; expected unix: to stand alone"},
      {"a:1,dns:///b", "dns: to stand alone"},
      {"ipv4:a:1", "expected an IPv4 address, such as 127.0.0.1:8001"},
      {"ipv4:[::1]:1", "expected an IPv4 address"},
      {"ipv6:127.0.0.1:1", "expected an IPv6 address"},
      {"[127.0.0.1]:1", "an IPv6 address in the brackets"},
      {"[::1]9", "\"[::1]9\"; expected HOST:PORT"},
      {"dns:///", "expected dns:///HOST:PORT, with one name"},
      {"dns:///a:1,b:1", "expected dns:///HOST:PORT, with one name"},
      {"dns://a:1", "expected dns:///HOST:PORT"}};
  for (const auto& [given, expected] : kCases) {
    const absl::Status status = ParseAddress(given).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << given;
    EXPECT_NE(std::string(status.message()).find(expected), std::string::npos) << given << ": " << status;
  }
}

TEST(AddressTest, AHostOfAListThatIsNotKnownIsNamed) {
  const absl::Status status = ParseAddress("127.0.0.1:1,nowhere.invalid:1").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("the host \"nowhere.invalid\" is not known"), std::string::npos) << status;
  EXPECT_TRUE(ParseAddress("nowhere.invalid:1").ok()) << "gRPC looks one up when it connects";
}

}  // namespace
}  // namespace edgewise::internal
