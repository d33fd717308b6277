#include "server/guard/connection_table.h"

#include <algorithm>

namespace edgewise::server {
namespace {

constexpr uint32_t kPartOfPeer = 8, kLeastOfPeer = 64;
constexpr Ipv6Address kMappedIpv4 = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
constexpr size_t kMappedBytes = 12, kPrefixBytes = 8;

}  // namespace

Network NetworkOf(const Ipv6Address& address) {
  if (std::equal(kMappedIpv4.begin(), kMappedIpv4.begin() + kMappedBytes, address.begin())) return address;
  Network prefix{};
  std::copy_n(address.begin(), kPrefixBytes, prefix.begin());
  return prefix;
}

ConnectionTable::ConnectionTable(ConnectionLimits limits)
    : limits_{limits.in_all,
              limits.per_peer > 0 ? limits.per_peer : std::max(limits.in_all / kPartOfPeer, kLeastOfPeer)} {}

ConnectionTable::Room ConnectionTable::RoomFor(const Network& peer) const {
  const absl::MutexLock lock(&mutex_);
  const auto same = peers_.find(peer);
  if (same != peers_.end() && same->second.connections >= limits_.per_peer) return Room::kNoneForPeer;
  return connections_.size() < limits_.in_all ? Room::kFree : Room::kNone;
}

uint64_t ConnectionTable::Add(const Endpoint& client) {
  const absl::MutexLock lock(&mutex_);
  Connection& connection = connections_[++last_];
  connection.client = client;
  numbers_[client] = last_;
  connection.peer = peers_.try_emplace(NetworkOf(client.first)).first;
  ++connection.peer->second.connections;
  BecomeIdle(last_, connection);
  return last_;
}

uint64_t ConnectionTable::NumberOf(const Endpoint& client) const {
  const auto found = numbers_.find(client);
  return found == numbers_.end() ? 0 : found->second;
}

uint64_t ConnectionTable::Find(const Endpoint& client) const {
  const absl::MutexLock lock(&mutex_);
  return NumberOf(client);
}

void ConnectionTable::Remove(uint64_t connection) {
  const absl::MutexLock lock(&mutex_);
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  const auto peer = found->second.peer;
  if (found->second.calls == 0) peer->second.idle.erase(found->second.turn);
  if (--peer->second.connections == 0) peers_.erase(peer);
  if (NumberOf(found->second.client) == connection) numbers_.erase(found->second.client);
  connections_.erase(found);
}

void ConnectionTable::BecomeIdle(uint64_t number, Connection& connection) {
  connection.turn = ++turns_;
  connection.peer->second.idle.emplace_hint(connection.peer->second.idle.end(), connection.turn, number);
}

void ConnectionTable::Begin(uint64_t connection) {
  const absl::MutexLock lock(&mutex_);
  BeginLocked(connection);
}

uint64_t ConnectionTable::Begin(const Endpoint& client) {
  const absl::MutexLock lock(&mutex_);
  const uint64_t connection = NumberOf(client);
  BeginLocked(connection);
  return connection;
}

void ConnectionTable::BeginLocked(uint64_t connection) {
  const auto found = connections_.find(connection);
  if (found == connections_.end() || found->second.calls++ > 0) return;
  found->second.peer->second.idle.erase(found->second.turn);
}

void ConnectionTable::End(uint64_t connection) {
  const absl::MutexLock lock(&mutex_);
  const auto found = connections_.find(connection);
  if (found != connections_.end() && --found->second.calls == 0) BecomeIdle(connection, found->second);
}

bool ConnectionTable::busy(uint64_t connection) const {
  const absl::MutexLock lock(&mutex_);
  const auto found = connections_.find(connection);
  return found != connections_.end() && found->second.calls > 0;
}

std::optional<uint64_t> ConnectionTable::NextToGiveWay() const {
  const absl::MutexLock lock(&mutex_);
  const std::map<uint64_t, uint64_t>* most = nullptr;
  for (const auto& [_, peer] : peers_) {
    const auto& idle = peer.idle;
    if (idle.empty()) continue;
    const bool as_many = most != nullptr && idle.size() == most->size();
    if (most == nullptr || idle.size() > most->size() || (as_many && idle.begin()->first < most->begin()->first)) {
      most = &idle;
    }
  }
  return most == nullptr ? std::nullopt : std::optional(most->begin()->second);
}

void ConnectionTable::Renew(uint64_t connection) {
  const absl::MutexLock lock(&mutex_);
  const auto found = connections_.find(connection);
  if (found == connections_.end() || found->second.calls > 0) return;
  found->second.peer->second.idle.erase(found->second.turn);
  BecomeIdle(connection, found->second);
}

size_t ConnectionTable::size() const {
  const absl::MutexLock lock(&mutex_);
  return connections_.size();
}

}  // namespace edgewise::server
