// Puts one JSON value into a field of a message.
#ifndef EDGEWISE_SERVER_HTTP_JSON_SCALAR_H_
#define EDGEWISE_SERVER_HTTP_JSON_SCALAR_H_

#include <google/protobuf/message.h>

#include <cstdint>
#include <string>
#include <variant>

#include "server/base/options.h"
#include "server/http/json_in.h"

namespace edgewise::server {

// Negative integers are int64_t, others uint64_t; what has a fraction, an exponent or more digits is a double.
using JsonScalar = std::variant<bool, int64_t, uint64_t, double, std::string>;

// The values that a field takes, as errors say it: "an integer from 1 to 4096", "a list", "a string". With `element`,
// those that a list takes as its elements.
std::string ExpectedOf(const google::protobuf::FieldDescriptor& field, bool element, const RequestLimits& limits);

// "is 7; expected " in front of what is expected. `shows_text`: strings are shown, shortened; without it they may be
// words of an input, and are not.
std::string Instead(const JsonScalar& value, bool shows_text, const std::string& expected);

// "an object", "a list" or "a string", of which nothing is shown; other JSON as it is, shortened.
std::string KindOfJson(const std::string& text);

// Sets the field, or adds to it where it is repeated. Returns what is wrong where the value is not allowed (Instead);
// empty: it is set. Strings are shown where they stand for one number or name.
std::string SetScalar(const google::protobuf::FieldDescriptor& field, JsonDialect dialect, JsonScalar value,
                      const RequestLimits& limits, google::protobuf::Message& message);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HTTP_JSON_SCALAR_H_
