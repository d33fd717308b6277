// Does what time alone asks for: ends calls whose message does not come, bounds what gRPC holds of messages that are on
// their way, measures how late calls are read, reads changed tokens and certificates.
#ifndef EDGEWISE_SERVER_GUARD_WATCHDOG_H_
#define EDGEWISE_SERVER_GUARD_WATCHDOG_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>

#include "kernels/backend.h"
#include "server/base/memory.h"
#include "server/base/options.h"
#include "server/guard/auth.h"
#include "server/guard/awaited.h"
#include "server/guard/certificates.h"
#include "server/guard/listener.h"
#include "server/guard/secret_file.h"
#include "server/guard/unread_age.h"
#include "server/observe/metrics.h"

namespace edgewise::server {

// gRPC collects a message whole, however long it says it is, before anybody sees its size. So no limit of a message
// bounds what senders make it hold; the memory of the process does. Where that is a third of the ledger (16 MiB
// at least) more than models, calls and generations explain, the calls whose message is on its way end. Where clients
// have given up many calls the connection that sends most ends too, and further connections wait where the memory is
// twice as much over: calls that are begun and reset make gRPC hold a thousand times what was sent.
//
// A stream may be silent for as long as it likes, until somebody lacks memory who has not his part of it: then calls of
// those that have more end, where no message has come within the time that a first one has.
//
// Where more calls come than can be read, all that is read is late. Then some connections end, so that the others are
// read in time (LostCalls). Clients of HTTP may need a connection for each request, so their number is not rationed.
class Watchdog {
 public:
  // All must outlive the watchdog; the backend is there from Start on.
  Watchdog(const ServerOptions& options, AwaitedCalls& awaited, MemoryLedger& memory,
           const std::unique_ptr<Backend>& backend, Gate& gate, Metrics& metrics);
  ~Watchdog() { Stop(); }

  // `listener` must live until Stop. Null `certificates`: there are none.
  void Start(Listener& listener, std::shared_ptr<Certificates> certificates);
  // The port of HTTP, too. Before Start; both must live until Stop. `counts`: come, and late, which are lost.
  void WatchHttp(Listener& listener, const CallCounts& counts);
  void Stop();
  // The models have changed: what is resident now, without what calls hold, is theirs. Any thread.
  void MeasureModels();

 private:
  void Run(const std::stop_token& stop);
  // `times` as much as gRPC may hold.
  bool OverTheBound(uint64_t times = 1) const;
  void ReleaseUnused();  // memory, to the system
  void BoundMemory();
  void EndGreedyCalls(uint64_t part);
  void EndLateConnections();
  void EndLate(Listener& listener, double part);
  void ReadTokens();
  void ReadCertificates();
  // Logs that tokens or certificates (`what`) were read again, or stay as they were.
  void Tell(const char* what, const absl::Status& status);

  AwaitedCalls& awaited_;
  MemoryLedger& memory_;
  const Clock::duration message_timeout_;
  const std::unique_ptr<Backend>& backend_;
  Gate& gate_;
  Metrics& metrics_;
  Listener *listener_ = nullptr, *http_ = nullptr;
  const CallCounts* http_counts_ = nullptr;
  std::shared_ptr<Certificates> certificates_;
  std::optional<FileWatch> token_file_;
  std::atomic<uint64_t> of_models_ = 0;
  uint64_t behind_ = 0;  // calls that have come but were not begun, at the last second; some never are
  uint64_t abandoned_before_ = 0, abandoned_ = 0;  // CallCounts a second before the last one, and at it; of thread_
  LostCalls lost_, lost_http_;                     // of thread_
  std::jthread thread_;
};

// Bytes of this process that are in memory and belong to no file: the pages of programs and libraries come and go.
uint64_t ResidentMemory();

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_GUARD_WATCHDOG_H_
