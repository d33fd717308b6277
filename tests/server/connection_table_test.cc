#include "server/guard/connection_table.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace edgewise::server {
namespace {

using Room = ConnectionTable::Room;

Ipv6Address Address(const std::string& text) {
  Ipv6Address address{};
  const std::string ipv6 = text.find(':') == std::string::npos ? "::ffff:" + text : text;
  EXPECT_EQ(inet_pton(AF_INET6, ipv6.c_str(), address.data()), 1) << text;
  return address;
}

class ConnectionTableTest : public ::testing::Test {
 protected:
  uint64_t Add(ConnectionTable& table, const std::string& address) { return table.Add({Address(address), ++port_}); }
  // Takes away all that give way, in order.
  static std::vector<uint64_t> Order(ConnectionTable& table) {
    std::vector<uint64_t> order;
    while (const auto next = table.NextToGiveWay()) {
      order.push_back(*next);
      table.Remove(*next);
    }
    return order;
  }

  uint16_t port_ = 0;
};

TEST_F(ConnectionTableTest, OnePeerIsAnIpv4AddressOrAnIpv6Prefix) {
  EXPECT_EQ(NetworkOf(Address("192.0.2.1")), NetworkOf(Address("::ffff:192.0.2.1")));
  EXPECT_NE(NetworkOf(Address("192.0.2.1")), NetworkOf(Address("192.0.2.2")));
  EXPECT_EQ(NetworkOf(Address("2001:db8:0:1::1")), NetworkOf(Address("2001:db8:0:1:ffff::2")));
  EXPECT_NE(NetworkOf(Address("2001:db8:0:1::1")), NetworkOf(Address("2001:db8:0:2::1")));
}

TEST_F(ConnectionTableTest, OnePeerHasAnEighthOfAllAtLeast64UnlessALimitIsGiven) {
  for (const auto& [limits, most] :
       {std::pair(ConnectionLimits{4096}, 512u), std::pair(ConnectionLimits{496}, 64u),
        std::pair(ConnectionLimits{1024, 1000}, 1000u), std::pair(ConnectionLimits{1024, 2}, 2u)}) {
    ConnectionTable table(limits);
    for (uint32_t i = 0; i < most; ++i) {
      ASSERT_EQ(table.RoomFor(NetworkOf(Address("192.0.2.1"))), Room::kFree) << i << " of " << most;
      Add(table, "192.0.2.1");
    }
    EXPECT_EQ(table.RoomFor(NetworkOf(Address("192.0.2.1"))), Room::kNoneForPeer) << most;
    EXPECT_EQ(table.RoomFor(NetworkOf(Address("192.0.2.2"))), Room::kFree) << most;
  }
}

TEST_F(ConnectionTableTest, AllTogetherHaveALimitAndARemovedOneMakesRoom) {
  ConnectionTable table({2, 2});
  const uint64_t first = Add(table, "192.0.2.1"), second = Add(table, "192.0.2.2");
  EXPECT_EQ(table.RoomFor(NetworkOf(Address("192.0.2.3"))), Room::kNone);
  table.Begin(second);
  for (const uint64_t connection : {second, first, first, uint64_t{0}, uint64_t{99}}) table.Remove(connection);
  EXPECT_EQ(table.RoomFor(NetworkOf(Address("192.0.2.3"))), Room::kFree);
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.NextToGiveWay(), std::nullopt);
}

TEST_F(ConnectionTableTest, TheOldestIdleOneOfThePeerWithMostGivesWay) {
  ConnectionTable table({});
  const uint64_t a1 = Add(table, "192.0.2.1"), b1 = Add(table, "192.0.2.2"), b2 = Add(table, "192.0.2.2"),
                 a2 = Add(table, "192.0.2.1"), b3 = Add(table, "192.0.2.2"), c1 = Add(table, "2001:db8::1"),
                 c2 = Add(table, "2001:db8::2");
  EXPECT_EQ(Order(table), (std::vector{b1, a1, b2, c1, a2, b3, c2})) << "of as many, the oldest";
}

TEST_F(ConnectionTableTest, ABusyOneDoesNotGiveWayAndIsTheYoungestOnceItIsIdle) {
  ConnectionTable table({});
  const uint64_t first = Add(table, "192.0.2.1"), second = Add(table, "192.0.2.1"), third = Add(table, "192.0.2.1"),
                 other = Add(table, "192.0.2.2");
  table.Begin(first);
  table.Begin(first);  // two calls
  table.Begin(third);
  EXPECT_TRUE(table.busy(first));
  EXPECT_EQ(table.NextToGiveWay(), second);
  table.Begin(second);
  EXPECT_EQ(table.NextToGiveWay(), other) << "the one with most connections has no idle ones";
  table.End(first);
  table.End(second);
  EXPECT_TRUE(table.busy(first)) << "its second call is open";
  table.End(first);
  EXPECT_FALSE(table.busy(first));
  EXPECT_EQ(Order(table), (std::vector{second, other, first}));
  EXPECT_EQ(table.size(), 1u) << "the one that is busy";
  table.End(second);  // its call ends late
  EXPECT_EQ(table.size(), 1u);
}

TEST_F(ConnectionTableTest, ARenewedOneIsTheYoungest) {
  ConnectionTable table({});
  const uint64_t first = Add(table, "192.0.2.1"), second = Add(table, "192.0.2.1");
  table.Renew(first);
  EXPECT_EQ(table.NextToGiveWay(), second);
  table.Begin(second);
  table.Renew(second);
  EXPECT_EQ(Order(table), std::vector{first}) << "a busy one stays busy";
}

TEST_F(ConnectionTableTest, KnowsTheLastConnectionOfAClient) {
  ConnectionTable table({});
  const Endpoint client(Address("192.0.2.1"), 1000), other(Address("192.0.2.1"), 1001);
  const uint64_t first = table.Add(client);
  EXPECT_EQ(table.Find(client), first);
  EXPECT_EQ(table.Find(other), 0u);
  EXPECT_EQ(table.Begin(other), 0u);
  const uint64_t second = table.Add(client);  // its first one has ended, and nobody has noticed
  EXPECT_EQ(table.Begin(client), second);
  EXPECT_EQ(table.NextToGiveWay(), first);
  table.Remove(first);
  EXPECT_EQ(table.Find(client), second);
  table.Remove(second);
  EXPECT_EQ(table.Find(client), 0u);
}

}  // namespace
}  // namespace edgewise::server
