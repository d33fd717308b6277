// Limits the preparation of a request: it ends at the deadline or a cancellation, and when it has used its bytes of the
// memory for calls. On a thread of calls it also ends after little work.
#ifndef EDGEWISE_SERVER_HANDLER_REQUEST_BOUNDS_H_
#define EDGEWISE_SERVER_HANDLER_REQUEST_BOUNDS_H_

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "base/work_bounds.h"
#include "server/request/request.h"

namespace edgewise::server {

// One thread at a time.
class RequestBounds final : public WorkBounds {
 public:
  // The ticket must outlive it. `wanted`: OK as long as somebody waits for it.
  RequestBounds(const Ticket& ticket, std::function<absl::Status()> wanted)
      : ticket_(ticket), wanted_(std::move(wanted)) {}

  // After kPiecesOfCalls pieces of work the rest goes to another thread, unless the request is prepared apart already.
  absl::Status Continue() override {
    if (!ticket_.apart && ++pieces_ > kPiecesOfCalls) {
      exceeded_ = true;
      return absl::AbortedError("the message is checked on another thread");
    }
    return wanted_();
  }
  absl::Status Reserve(uint64_t bytes) override {
    return ticket_.memory == nullptr ? absl::OkStatus() : ticket_.memory->Resize(ticket_.memory->bytes() + bytes);
  }
  void Release(uint64_t bytes) override {
    if (ticket_.memory != nullptr) ticket_.memory->Shrink(ticket_.memory->bytes() - bytes);
  }

  // The work ended for this alone, and must begin again on a thread of LongWorkThreads.
  bool exceeded() const { return exceeded_; }

 private:
  // A short message (kShortMessage) of a usual model has fewer: it is cut, split and looked up, a piece each.
  static constexpr int kPiecesOfCalls = 8;

  const Ticket& ticket_;
  const std::function<absl::Status()> wanted_;
  int pieces_ = 0;
  bool exceeded_ = false;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HANDLER_REQUEST_BOUNDS_H_
