#include "server/guard/watchdog.h"

#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status_details.h"
#include "server/observe/log.h"

namespace edgewise::server {
namespace {

constexpr auto kTick = std::chrono::milliseconds(10);
constexpr int kTicksOfFiles = 100, kTicksOfCalls = 10, kTicksOfMemory = 1000;
// A message of a usual size is there long before this.
constexpr auto kSlow = std::chrono::milliseconds(100);
constexpr double kRetrySeconds = 1.0;
constexpr uint64_t kPartOfGrpc = 3;                    // gRPC itself may hold 1/kPartOfGrpc of the memory for calls
constexpr uint64_t kLeastOfGrpc = uint64_t{16} << 20;  // what the allocator keeps comes and goes by megabytes
constexpr uint64_t kManyAbandoned = 500, kSomeAbandoned = 20;  // calls in one or two seconds
constexpr uint64_t kListsOfBuffers = 4;  // a pass has at least this many bytes in buffers for each in lists
constexpr int kClosedAtOnce = 4;         // connections
constexpr auto kLate = std::chrono::milliseconds(50);

absl::Status OutOfMemory() {
  absl::Status status = absl::ResourceExhaustedError(
      "the message of the call did not arrive before messages took all the memory that they may (--max_memory)");
  SetRetryDelay(status, kRetrySeconds);
  return WithRejection(std::move(status), Rejection::kOutOfMemory);
}

}  // namespace

uint64_t ResidentMemory() {
  // Kept open: it is needed most when no descriptor is left.
  static const int statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  char text[128] = {};
  unsigned long long resident = 0, shared = 0;
  if (pread(statm, text, sizeof text - 1, 0) > 0) std::sscanf(text, "%*u %llu %llu", &resident, &shared);
  return (resident - shared) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

Watchdog::Watchdog(const ServerOptions& options, AwaitedCalls& awaited, MemoryLedger& memory,
                   const std::unique_ptr<Backend>& backend, Gate& gate, Metrics& metrics)
    : awaited_(awaited),
      memory_(memory),
      message_timeout_(options.message_timeout),
      backend_(backend),
      gate_(gate),
      metrics_(metrics) {
  if (!options.security.auth_token_file.empty()) token_file_.emplace(options.security.auth_token_file);
}

void Watchdog::Start(Listener& listener, std::shared_ptr<Certificates> certificates) {
  listener_ = &listener;
  certificates_ = std::move(certificates);
  MeasureModels();
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
}

void Watchdog::WatchHttp(Listener& listener, const CallCounts& counts) {
  http_ = &listener;
  http_counts_ = &counts;
}

void Watchdog::Stop() { thread_ = {}; }

void Watchdog::MeasureModels() {
  const uint64_t resident = ResidentMemory();
  of_models_ = resident - std::min(resident, memory_.used() + backend_->WorkingBytes());
}

void Watchdog::Run(const std::stop_token& stop) {
  for (int tick = 1; !stop.stop_requested(); ++tick) {
    std::this_thread::sleep_for(kTick);
    listener_->MeasureWaits(Clock::now());
    if (http_ != nullptr) http_->MeasureWaits(Clock::now());
    awaited_.EndExpired();
    BoundMemory();
    if (const uint64_t part = memory_.TakeWanting(); part > 0) EndGreedyCalls(part);
    if (tick % kTicksOfCalls == 0) EndLateConnections();
    if (tick % kTicksOfFiles != 0) continue;
    if (tick % kTicksOfMemory == 0) ReleaseUnused();
    listener_->MarkTraffic();
    abandoned_before_ = std::exchange(abandoned_, gate_.counts.abandoned.load());
    behind_ = gate_.counts.come - gate_.counts.begun;
    if (token_file_) ReadTokens();
    if (certificates_) ReadCertificates();
  }
}

bool Watchdog::OverTheBound(uint64_t times) const {
  const uint64_t used = memory_.used();
  // Passes have lists of their own beside the buffers that the backend counts. Memory that a pass has just freed may
  // still be resident.
  const uint64_t before = backend_->WorkingBytes(), resident = ResidentMemory();
  const uint64_t working = std::max(before, backend_->WorkingBytes());
  const uint64_t explained = of_models_ + used + working + working / kListsOfBuffers;
  return resident > explained + times * std::max(memory_.limit() / kPartOfGrpc, kLeastOfGrpc);
}

void Watchdog::ReleaseUnused() {
  backend_->ReleaseUnused();
  malloc_trim(0);
}

void Watchdog::BoundMemory() {
  if (OverTheBound()) malloc_trim(0);  // what earlier calls have freed is nobody's
  const uint64_t abandoned = gate_.counts.abandoned - abandoned_before_;
  // Calls that have come since and that no thread has looked at yet.
  const uint64_t more = gate_.counts.come - gate_.counts.begun - behind_;
  const bool late = more >= kManyAbandoned && more < uint64_t{1} << 63;  // else there are fewer
  const bool floods = (late || abandoned >= kSomeAbandoned) && OverTheBound(2);
  listener_->Hold(floods);
  if (!floods && !OverTheBound()) return;
  const size_t ended = awaited_.EndWaiting(kSlow, OutOfMemory());
  if (ended > 0) Log(LogLevel::kWarning, "slow calls ended for memory", {{"calls", static_cast<int64_t>(ended)}});
  const int most = floods ? kClosedAtOnce : abandoned >= kManyAbandoned ? 1 : 0;
  int closed = 0;
  while (closed < most && listener_->CloseBusiest()) ++closed;
  if (closed > 0) Log(LogLevel::kWarning, "connections closed for memory", {{"connections", closed}});
}

void Watchdog::EndGreedyCalls(uint64_t part) {
  absl::Status status = absl::ResourceExhaustedError(
      "the call was silent while others lacked the memory that calls of this client hold (--max_memory)");
  SetRetryDelay(status, kRetrySeconds);
  const size_t ended =
      awaited_.EndGreedy(message_timeout_, part, WithRejection(std::move(status), Rejection::kOutOfMemory));
  if (ended > 0) Log(LogLevel::kWarning, "silent calls ended for memory", {{"calls", static_cast<int64_t>(ended)}});
}

void Watchdog::EndLateConnections() {
  const CallCounts& counts = gate_.counts;
  const LostCalls::Remedy remedy =
      lost_.Look(counts.come, counts.begun, counts.late, listener_->LongestWait() >= kLate);
  listener_->Ration(remedy.accept);
  EndLate(*listener_, remedy.drop);
  if (http_ == nullptr) return;
  const uint64_t come = http_counts_->come;
  const LostCalls::Remedy of_http = lost_http_.Look(come, come, http_counts_->late, http_->LongestWait() >= kLate);
  http_->Ration(of_http.accept == LostCalls::kAnyNumber ? of_http.accept : LostCalls::kAnyNumber - 1);
  EndLate(*http_, of_http.drop);
}

void Watchdog::EndLate(Listener& listener, double part) {
  const int closed = part > 0.0 ? listener.CloseLate(part, kLate) : 0;
  if (closed > 0)
    Log(LogLevel::kWarning, "connections closed: their calls are read too late", {{"connections", closed}});
}

void Watchdog::ReadTokens() {
  if (token_file_->Changed()) Tell("tokens", gate_.ReadTokens(token_file_->path()));
}

void Watchdog::ReadCertificates() {
  const absl::StatusOr<bool> read = certificates_->ReadAgain();
  if (!read.ok() || *read) Tell("certificates", read.status());
}

void Watchdog::Tell(const char* what, const absl::Status& status) {
  metrics_.CountSecretLoad(what, status.ok());
  if (status.ok()) {
    Log(LogLevel::kInfo, absl::StrCat(what, " read again"), {});
  } else {
    Log(LogLevel::kError, absl::StrCat(what, " not read; those from before stay"),
        {{"error", std::string(status.message())}});
  }
}

}  // namespace edgewise::server
