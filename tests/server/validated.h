// The request that a message becomes.
#ifndef EDGEWISE_TESTS_SERVER_VALIDATED_H_
#define EDGEWISE_TESTS_SERVER_VALIDATED_H_

#include <limits>

#include "absl/status/statusor.h"
#include "server/validate/validate.h"
#include "tests/server/test_models.h"

namespace edgewise::server {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

template <typename Message>
absl::StatusOr<Request> Validated(const Message& message, const Model& model, const RequestLimits& limits) {
  Request request;
  absl::Status status = Validate(message, model, model.config().profiles, limits, request);
  if (!status.ok()) return status;
  return request;
}

}  // namespace edgewise::server

#endif  // EDGEWISE_TESTS_SERVER_VALIDATED_H_
