// Tells a client that is alone on the server from several.
#ifndef EDGEWISE_SERVER_WIRE_LONE_CLIENT_H_
#define EDGEWISE_SERVER_WIRE_LONE_CLIENT_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>

#include "server/request/request.h"

namespace edgewise::server {

// Any thread.
class LoneClient {
 public:
  // A call of `peer` has come. True: for 5 ms at least all have come from there.
  bool Observe(const std::string& peer, Time now) {
    const size_t hash = std::hash<std::string>()(peer);
    if (last_.exchange(hash, std::memory_order_relaxed) != hash) since_.store(now, std::memory_order_relaxed);
    return now - since_.load(std::memory_order_relaxed) >= kAWhile;
  }

 private:
  static constexpr std::chrono::milliseconds kAWhile{5};
  std::atomic<size_t> last_ = 0;
  std::atomic<Time> since_ = Time::max();
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_WIRE_LONE_CLIENT_H_
