// What ties a stop that a caller asks for to the flag that kernels read.
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

// What work ends with that a caller stopped. A kernel sees a flag only after the stop was asked for. So where work has
// been waited for and the token, looked at after that, asks for no stop, the work is whole.
inline absl::Status CancelledByCaller() { return absl::CancelledError("the caller stopped it"); }

// Raises a flag of the backend when a stop is asked for, on the thread that asks. Must outlive the work that names the
// flag; one that is destroyed while it is raised waits for that.
class CancelOnStop {
 public:
  // Null where `token` can never ask for a stop. Errors as Backend::MakeCancelFlag.
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
