// Errors about a field of a user's request. The field is a payload of the status: no caller reads the message to find
// it.
#ifndef EDGEWISE_TEXT_FIELD_ERROR_H_
#define EDGEWISE_TEXT_FIELD_ERROR_H_

#include <string>

#include "absl/status/status.h"

namespace edgewise {

// INVALID_ARGUMENT "<field> <what>", or "<field><what>" where `what` begins with a colon. `field` is a path:
// "token_ids[3]".
absl::Status FieldError(const std::string& field, const std::string& what);

// The path of the field; empty where the status names none.
std::string FieldOf(const absl::Status& status);

// The same error one level up: "<parent>." goes in front of the field and of the message. A status without a field gets
// "<parent>: " in front of its message and stays without one. OK stays OK.
absl::Status Within(const std::string& parent, const absl::Status& status);

// `text` in quotes and escaped, for messages. Shows at most 64 characters, then the number of bytes.
std::string Quoted(const std::string& text);

}  // namespace edgewise

#endif  // EDGEWISE_TEXT_FIELD_ERROR_H_
