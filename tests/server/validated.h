// The work that a message asks for.
#ifndef EDGEWISE_TESTS_SERVER_VALIDATED_H_
#define EDGEWISE_TESTS_SERVER_VALIDATED_H_

#include <limits>

#include "absl/status/statusor.h"
#include "server/validate/validate.h"
#include "tests/server/test_models.h"

namespace edgewise::server {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

template <typename Message>
absl::StatusOr<Work> Validated(const Message& message, const Model& model, const RequestLimits& limits) {
  return Validate(message, model, model.config().profiles, limits);
}

}  // namespace edgewise::server

#endif  // EDGEWISE_TESTS_SERVER_VALIDATED_H_
