// Puts one JSON value into a field of a message.
#ifndef EDGEWISE_SERVER_HTTP_JSON_SCALAR_H_
#define EDGEWISE_SERVER_HTTP_JSON_SCALAR_H_

#include <google/protobuf/message.h>

#include <cstdint>
#include <string>
#include <variant>

#include "server/http/json_in.h"

namespace edgewise::server {

// Negative integers are int64_t, others uint64_t; what has a fraction, an exponent or more digits is a double.
using JsonScalar = std::variant<bool, int64_t, uint64_t, double, std::string>;

// Sets the field, or adds to it where it is repeated. Returns what is allowed there where the value is not; null: it is
// set. `field` is of no message.
const char* SetScalar(const google::protobuf::FieldDescriptor& field, JsonDialect dialect, JsonScalar value,
                      google::protobuf::Message& message);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HTTP_JSON_SCALAR_H_
