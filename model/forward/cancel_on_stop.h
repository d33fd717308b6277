// Connects the stop that a caller requests with the flag that kernels read.
#ifndef EDGEWISE_MODEL_FORWARD_CANCEL_ON_STOP_H_
#define EDGEWISE_MODEL_FORWARD_CANCEL_ON_STOP_H_

#include <memory>
#include <stop_token>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cancel_flag.h"

namespace edgewise {

// Status of work whose caller requested a stop. Kernels see the flag only after the request, so work is whole where its
// token shows no request after a wait for the backend.
inline absl::Status CancelledByCaller() { return absl::CancelledError("the caller stopped it"); }

// Raises a flag of the backend when a stop is requested, on the requesting thread. Must outlive the work that names the
// flag; the destructor waits while the flag is being raised.
class CancelOnStop {
 public:
  // Null where a stop can never be requested. Errors as Backend::MakeCancelFlag.
  static absl::StatusOr<std::unique_ptr<CancelOnStop>> Create(Backend& backend, std::stop_token token) {
    if (!token.stop_possible()) return nullptr;
    absl::StatusOr<std::unique_ptr<CancelFlag>> flag = backend.MakeCancelFlag();
    if (!flag.ok()) return flag.status();
    return std::unique_ptr<CancelOnStop>(new CancelOnStop(*std::move(flag), std::move(token)));
  }

  const CancelFlag* flag() const { return flag_.get(); }

 private:
  struct Raise {
    CancelFlag* flag;
    void operator()() const { flag->Cancel(); }
  };

  CancelOnStop(std::unique_ptr<CancelFlag> flag, std::stop_token token)
      : flag_(std::move(flag)), on_stop_(std::move(token), Raise{flag_.get()}) {}

  std::unique_ptr<CancelFlag> flag_;  // outlives on_stop_
  std::stop_callback<Raise> on_stop_;
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_CANCEL_ON_STOP_H_
