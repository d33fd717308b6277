#include "server/http/message.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "server/base/status_details.h"
#include "server/http/json_out.h"

namespace edgewise::server {

int HttpCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kResourceExhausted:  // it may come again, or is too large for ever
      return RetryDelayOf(status) ? 429 : 413;
    case absl::StatusCode::kCancelled:
      return 499;  // nobody reads it, as a rule
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kFailedPrecondition:  // a model that has not loaded
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

HttpAnswer ErrorAnswer(const HttpRefusal& refusal, ErrorBody body) {
  HttpAnswer answer{.code = refusal.code, .body = body(refusal.status, refusal.code)};
  if (refusal.code == 429 || refusal.code == 503) {
    const double seconds = RetryDelayOf(refusal.status).value_or(1.0);
    answer.fields.emplace_back("Retry-After", absl::StrCat(static_cast<int64_t>(std::max(1.0, std::ceil(seconds)))));
  }
  if (refusal.code == 401) answer.fields.emplace_back("WWW-Authenticate", "Bearer");
  return answer;
}

std::string PlainError(const absl::Status& status, int) {
  JsonOut json;
  json.BeginObject().Key("error").String(std::string(status.message())).EndObject();
  return json.Take();
}

}  // namespace edgewise::server
