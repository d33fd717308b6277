// The operations on values of chat templates: operators, filters, methods and tests, as Jinja has them.
#ifndef EDGEWISE_MODEL_CHAT_OPERATIONS_H_
#define EDGEWISE_MODEL_CHAT_OPERATIONS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/chat/value.h"

namespace edgewise::chat {

// As it is printed: nothing for what is undefined. INVALID_ARGUMENT: a list or a mapping.
absl::StatusOr<std::string> TextOf(const Value& value);

absl::StatusOr<Value> Binary(const std::string& name, const Value& left, const Value& right);
// The result of the filter `name` on `of`, or of the method `name`.
absl::StatusOr<Value> Filter(const std::string& name, const Value& of, const std::vector<Value>& arguments);
absl::StatusOr<Value> Method(const std::string& name, const Value& of, const std::vector<Value>& arguments);
bool Test(const std::string& name, const Value& of);
// of.name
absl::StatusOr<Value> Attribute(const Value& of, const std::string& name);
// The entry of a list, a mapping or a text (a character); undefined where there is none.
absl::StatusOr<Value> Item(const Value& of, const Value& index);
// Bounds are numbers, or undefined where they are left out.
absl::StatusOr<Value> Slice(const Value& of, const Value& begin, const Value& end, const Value& step);

}  // namespace edgewise::chat

#endif  // EDGEWISE_MODEL_CHAT_OPERATIONS_H_
