// Tells a client that is alone on the server from several.
#ifndef EDGEWISE_SERVER_WIRE_LONE_CLIENT_H_
#define EDGEWISE_SERVER_WIRE_LONE_CLIENT_H_

#include <atomic>
#include <chrono>
#include <cstddef>

#include "server/request/request.h"

namespace edgewise::server {

// Any thread.
class LoneClient {
 public:
  // A call has come on a connection, which its number tells from others. True: for 5 ms at least all have come there.
  bool Observe(size_t connection, Time now) {
    if (last_.exchange(connection, std::memory_order_relaxed) != connection)
      since_.store(now, std::memory_order_relaxed);
    return now - since_.load(std::memory_order_relaxed) >= kAWhile;
  }

 private:
  static constexpr std::chrono::milliseconds kAWhile{5};
  std::atomic<size_t> last_ = 0;
  std::atomic<Time> since_ = Time::max();
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_WIRE_LONE_CLIENT_H_
