// The checks that make a message Work that can be computed, or an error. Nothing is computed, and
// nothing large is allocated before its size is checked. Any thread.
#ifndef EDGEWISE_SERVER_VALIDATE_VALIDATE_H_
#define EDGEWISE_SERVER_VALIDATE_VALIDATE_H_

#include <optional>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/civil_time.h"
#include "base/work_bounds.h"
#include "edgewise/v1/inference.pb.h"
#include "model/model.h"
#include "server/base/options.h"
#include "server/request/request.h"

namespace edgewise::server {

// The part of a call that its message does not have.
struct CallTerms {
  Time deadline = Time::max();
  std::stop_token stopping;
  std::optional<std::string> profile;  // instead of the message's
  absl::CivilSecond local_time;        // of messages, for their chat template (ServerOptions::local_time)
};

// The work that a message asks for. `profiles`: of the model, now. They check everything but the model's name, the
// version, request_id and, for Generate, whether each row can keep its budget (Generation::Create). INVALID_ARGUMENT
// with the field (base/field_error.h), the value found and the values allowed. RESOURCE_EXHAUSTED: a text has too many
// windows, or the answer would be larger than limits.max_response_bytes. Texts and images end where `bounds` say so,
// with the status that they give.
absl::StatusOr<Work> Validate(const v1::PredictRequest& message, const Model& model, const Profiles& profiles,
                              const RequestLimits& limits, const CallTerms& terms = {},
                              WorkBounds& bounds = NoBounds());
absl::StatusOr<Work> Validate(const v1::GenerateRequest& message, const Model& model, const Profiles& profiles,
                              const RequestLimits& limits, const CallTerms& terms = {},
                              WorkBounds& bounds = NoBounds());

// How tokens are chosen and where texts end, as far as the message says it. Validate checks it too.
absl::Status CheckSampling(const v1::GenerateRequest& message);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_VALIDATE_VALIDATE_H_
