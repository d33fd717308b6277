// The arguments that a request gives a chat template beside the messages.
#ifndef EDGEWISE_MODEL_CHAT_ARGUMENTS_H_
#define EDGEWISE_MODEL_CHAT_ARGUMENTS_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/work_bounds.h"
#include "model/chat/value.h"

namespace edgewise::chat {

// Values by name, in the order in which they were given. Immutable; any thread.
class Arguments {
 public:
  static constexpr size_t kMaxBytes = size_t{256} << 10;
  static constexpr size_t kMaxDepth = 32;  // of objects and lists

  Arguments() = default;  // none
  // Reads the text of a JSON object; empty: none. The bytes of its values are reserved from `bounds`, which must
  // outlive it, and which may end the work with their own status. INVALID_ARGUMENT, of the field template_arguments: no
  // JSON object (NaN, Infinity and a field twice are none), a whole number beyond 64 bits, more than kMaxBytes or
  // kMaxDepth; a field is no name; tools or documents are no list of objects.
  static absl::StatusOr<Arguments> Read(const std::string& json, WorkBounds& bounds = NoBounds());

  const std::vector<std::pair<std::string, Value>>& values() const { return values_; }
  // Null: there is no such argument.
  const Value* Find(std::string_view name) const;

 private:
  std::vector<std::pair<std::string, Value>> values_;
  ReservedBytes held_{NoBounds()};
};

}  // namespace edgewise::chat

#endif  // EDGEWISE_MODEL_CHAT_ARGUMENTS_H_
