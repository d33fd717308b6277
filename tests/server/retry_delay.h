// The delay that SetRetryDelay added to a status, in seconds; < 0: none.
#ifndef EDGEWISE_TESTS_SERVER_RETRY_DELAY_H_
#define EDGEWISE_TESTS_SERVER_RETRY_DELAY_H_

#include "absl/status/status.h"
#include "server/base/status_details.h"

namespace edgewise::server {

inline double RetryDelay(const absl::Status& status) { return RetryDelayOf(status).value_or(-1.0); }

}  // namespace edgewise::server

#endif  // EDGEWISE_TESTS_SERVER_RETRY_DELAY_H_
