// Accepts connections for gRPC, which by itself takes any number of them and stops for good when the process runs out
// of file descriptors.
#ifndef EDGEWISE_SERVER_GUARD_LISTENER_H_
#define EDGEWISE_SERVER_GUARD_LISTENER_H_

#include <grpcpp/server_builder.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
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
#include "server/guard/unread_age.h"

namespace edgewise::server {

struct ConnectionLimits {
  uint32_t in_all = 4096;
  uint32_t per_peer = 1024;  // connections of one IP address
};

// To be called before ports are closed: no connection of theirs begins any more, and those that were about to begin
// wait to be accepted. The kernel resets all that wait when a port closes. Takes 10 ms.
void EndHandshakes(const std::vector<int>& listeners);

// A connection over a limit is closed at once. While no file descriptor or memory is left, connections wait in the
// kernel's queue.
class Listener {
 public:
  // Listens on HOST:PORT, on every address of the host. Port 0: any, the same for all. ALREADY_EXISTS: the port is
  // taken, or the address is not usable; INVALID_ARGUMENT: `address` is not HOST:PORT.
  static absl::StatusOr<std::unique_ptr<Listener>> Open(const std::string& address, ConnectionLimits limits);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const { return port_; }
  // Accepts for `server` from now on, on a thread of its own. Call once, after the gRPC server has started.
  void Start(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server);
  // Accepts the connections that wait, and closes the ports. Connections stay.
  void Stop();

  // These may be called from any thread.
  size_t connections();  // open now
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
  using Peer = std::array<uint8_t, 16>;  // IPv6, or IPv4 mapped
  using PeerPort = std::pair<Peer, uint16_t>;
  struct Connection {
    ino_t socket;  // tells it from a later one with the same descriptor
    PeerPort from;
    uint64_t marked = 0;  // bytes received, at the last mark
    UnreadAge unread = {};
    Clock::duration age = {};  // of what was unread at the last look
    bool waits = false;        // is in waits_
  };

  explicit Listener(ConnectionLimits limits) : limits_(limits) {}
  absl::Status Listen(const std::string& address);
  void Run();
  // False: out of descriptors or memory, or held.
  bool Accept(int listener);
  // Whether one more connection of the peer is within the limits.
  bool HasRoom(const Peer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets the connections that gRPC has closed: it does not tell.
  void Forget(std::map<int, Connection>::iterator connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetClosed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ConnectionLimits limits_;
  int port_ = 0;
  int stop_ = -1;  // an eventfd
  std::vector<int> listeners_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server_;
  std::string out_of_;  // the error of the last accept; of thread_
  std::thread thread_;
  std::atomic<bool> hold_ = false;
  std::atomic<int> ration_ = LostCalls::kAnyNumber;
  absl::Mutex mutex_;
  std::map<int, Connection> connections_ ABSL_GUARDED_BY(mutex_);  // by descriptor, which gRPC owns
  std::map<Peer, uint32_t> peers_ ABSL_GUARDED_BY(mutex_);
  int measured_ ABSL_GUARDED_BY(mutex_) = -1;  // the last descriptor that MeasureWaits looked at
  absl::flat_hash_map<PeerPort, Clock::duration> waits_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> behind_ = false;  // waits_ has some
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_GUARD_LISTENER_H_
