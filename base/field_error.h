// Errors about a field of a user's request. The field is a payload of the status: no caller reads the message to find
// it.
#ifndef EDGEWISE_BASE_FIELD_ERROR_H_
#define EDGEWISE_BASE_FIELD_ERROR_H_

#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

// Returns FieldError(field, <the other arguments in one string>) from the enclosing function where `wrong` holds.
#define REFUSE_IF(wrong, field, ...) \
  if (wrong) return ::edgewise::FieldError(field, absl::StrCat(__VA_ARGS__))

namespace edgewise {

// INVALID_ARGUMENT "<field> <what>", or "<field><what>" where `what` begins with a colon. `field` is a path:
// "token_ids[3]".
absl::Status FieldError(const std::string& field, const std::string& what);

// The path of the field; empty where the status names none.
std::string FieldOf(const absl::Status& status);

// The same error one level up: "<parent>." goes in front of the field and of the message. A status without a field gets
// "<parent>: " in front of its message and stays without one. OK stays OK.
absl::Status Within(const std::string& parent, const absl::Status& status);
template <typename Value>
absl::StatusOr<Value> Within(const std::string& parent, absl::StatusOr<Value> value) {
  if (value.ok()) return value;
  return Within(parent, value.status());
}

// The same error with another name for its field, which `name` makes of the old one. Without a field, the same.
absl::Status Renamed(const absl::Status& status, absl::FunctionRef<std::string(const std::string&)> name);

// `text` in quotes and escaped, for messages. Shows at most 64 characters, then the number of bytes.
std::string Quoted(const std::string& text);

}  // namespace edgewise

#endif  // EDGEWISE_BASE_FIELD_ERROR_H_
