// Accepts the connections of a port and bounds them, for gRPC and for HTTP alike. gRPC by itself takes any number of
// them, and stops for good when the process runs out of file descriptors.
#ifndef EDGEWISE_SERVER_GUARD_LISTENER_H_
#define EDGEWISE_SERVER_GUARD_LISTENER_H_

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/guard/connection_table.h"
#include "server/guard/unread_age.h"

namespace edgewise::server {

// A connection over the limit of its peer is closed at once. If there is no room for another, or no file descriptor, an
// idle one gives way (ConnectionTable). If none is idle, a connection over the limit of all is closed at once, and
// connections without a descriptor wait in the kernel's queue. A connection whose client has left before it was
// accepted is closed unread.
class Listener {
 public:
  struct Accepted {
    int listener = -1;         // the descriptor that it was accepted on
    int descriptor = -1;       // does not block; whoever takes the connection owns it
    uint64_t connection = 0;   // its number in table()
    bool is_ipv6 = false;      // the socket; the client may have an IPv4 address all the same
    Ipv6Address address = {};  // of the client
  };

  // Who takes the connections. HTTP has one request of a connection at a time, so what comes behind it is not read
  // late, and tells when it closes one. gRPC does not: closed connections are searched for.
  enum class Front { kGrpc, kHttp };

  // Listens on HOST:PORT, on every address of the host. Port 0: any, the same for all. ALREADY_EXISTS: the port is
  // taken, or the address is not usable; INVALID_ARGUMENT: `address` is not HOST:PORT. `flag` names it in errors.
  static absl::StatusOr<std::unique_ptr<Listener>> Open(const std::string& address, ConnectionLimits limits,
                                                        const std::string& flag = "--listen",
                                                        Front front = Front::kGrpc);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const { return port_; }
  // Accepts from now on, on a thread of its own, which calls `take`. Call once.
  void Start(std::function<void(const Accepted&)> take);
  // Accepts what waits in the kernel's queue, if there is room, and closes the ports. Connections stay.
  void Stop();

  // These may be called from any thread.
  size_t connections();  // open now
  // Which of them are busy. Whoever takes connections tells it.
  ConnectionTable& table() { return table_; }
  // The owner of the descriptor is about to close it.
  void Closing(uint64_t connection);
  // A call is open on the connection with this name, as grpc::ServerContextBase::peer() gives it, until
  // table().End(number). Returns the number.
  uint64_t Begin(const std::string& peer);
  // Remembers what each connection has received so far.
  void MarkTraffic();
  // While this is set, connections wait.
  void Hold(bool hold) { hold_.store(hold); }
  // Ends the connection that has received most since the last mark, and drops what gRPC has not read of it yet. False:
  // none has received anything.
  bool CloseBusiest();
  // Ends the connections with the most unread bytes until this part of all unread bytes is dropped with them. It spares
  // those with less than 1 KiB, and those whose oldest unread byte has been there for less than `limit`. At most 16 KiB
  // of each count. Returns how many have ended.
  int CloseLate(double part, Clock::duration limit);
  // Accepts at most `count` connections until the next call, and none in which 4 KiB wait already: they end. LostCalls.
  void Ration(int connections) { ration_.store(connections); }
  // Bytes that gRPC has written and that the peer's kernel has not confirmed, on the connection with this name, or on
  // all. `peer`: as grpc::ServerContextBase::peer() gives it. 0: there is no such connection any more.
  uint64_t Unconfirmed(const std::string& peer);
  uint64_t Unconfirmed();
  // Looks at how long bytes wait in connections; at the next ones of many.
  void MeasureWaits(Time now);
  // How long what has just been read of the peer had waited; 0: less than 5 ms.
  Clock::duration Waited(const std::string& peer);
  Clock::duration LongestWait();

 private:
  struct Connection {
    int descriptor;
    ino_t socket;  // tells it from a later one with the same descriptor
    Endpoint from;
    uint64_t marked = 0;  // bytes received, at the last mark
    UnreadAge unread = {};
    Clock::duration age = {};  // of what was unread at the last look
    bool waits = false;        // is in waits_
  };

  Listener(ConnectionLimits limits, Front front) : front_(front), table_(limits) {}
  absl::Status Listen(const std::string& address, const std::string& flag);
  void Run();
  // How long to wait before more are accepted: while descriptors, memory or room are short, or it is held. 0: none
  // wait.
  std::chrono::milliseconds Accept(int listener);
  // Adds the connection that was accepted. False: there is no room.
  bool Add(Accepted& accepted, uint16_t port);
  // Ends an idle connection. False: none can be ended. One that has ended is open until its owner closes it.
  bool MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // How many of those that have been ended are still open.
  size_t Ending() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(std::map<uint64_t, Connection>::iterator connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets the connections that gRPC has closed: it does not tell.
  void ForgetClosed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same, unless that would take more than a part of the time.
  void ForgetClosedAtTimes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Bytes that are to be read now.
  uint64_t ToBeRead(uint64_t number, const Connection& connection) const;

  const Front front_;
  ConnectionTable table_;
  int port_ = 0;
  int stop_ = -1;  // an eventfd
  std::vector<int> listeners_;
  std::function<void(const Accepted&)> take_;
  std::string out_of_;  // why connections wait; of thread_. Empty: they do not, or not for long
  std::thread thread_;
  std::atomic<bool> hold_ = false;
  std::atomic<int> ration_ = LostCalls::kAnyNumber;
  absl::Mutex mutex_;
  std::map<uint64_t, Connection> connections_ ABSL_GUARDED_BY(mutex_);  // by number
  std::vector<uint64_t> ended_ ABSL_GUARDED_BY(mutex_);  // by MakeRoom: in connections_ until they are closed
  Time next_search_ ABSL_GUARDED_BY(mutex_);             // for closed connections
  uint64_t measured_ ABSL_GUARDED_BY(mutex_) = 0;        // the last connection that MeasureWaits looked at
  absl::flat_hash_map<Endpoint, Clock::duration> waits_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> behind_ = false;  // waits_ has some
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_GUARD_LISTENER_H_
