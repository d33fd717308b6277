// The expressions of a chat template: the subset of Jinja's that is served.
#ifndef EDGEWISE_MODEL_CHAT_EXPRESSION_H_
#define EDGEWISE_MODEL_CHAT_EXPRESSION_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "model/chat/token_cursor.h"
#include "model/chat/value.h"

namespace edgewise::chat {

struct Node {
  enum Kind {
    kConstant,  // value
    kName,
    kList,       // parts; a tuple too
    kAttribute,  // parts[0] . name
    kItem,       // parts[0] [ parts[1] ]
    kSlice,      // parts[0] [ parts[1] : parts[2] : parts[3] ], null where left out
    kFunction,   // name ( parts, named )
    kMethod,     // parts[0] . name ( the other parts )
    kFilter,     // parts[0] | name ( the other parts ); of tojson: the indent or none, then the separators or nothing
    kTest,       // parts[0] is name
    kNot,
    kNegative,
    kAnd,
    kOr,
    kBinary,  // parts[0] name parts[1]
    kChoice,  // parts[0] if parts[1] else parts[2], which may be null
  };
  Kind kind = kConstant;
  std::string name;
  Value value;
  std::vector<std::unique_ptr<Node>> parts;
  std::vector<std::pair<std::string, std::unique_ptr<Node>>> named;
};

// Reads from the cursor's word on to the end of the expression. INVALID_ARGUMENT: what is not served or not well
// formed; the message begins with the line. It has at most kMaxNodes nodes, or a few more.
absl::StatusOr<std::unique_ptr<Node>> ReadExpression(TokenCursor& cursor);
// The sequence of a loop: an expression that ends before `if`.
absl::StatusOr<std::unique_ptr<Node>> ReadLoopSource(TokenCursor& cursor);

// Whether `name` is a function that templates may call.
bool IsFunction(const std::string& name);

inline constexpr int kMaxDepth = 64;    // of brackets and signs in an expression, and of blocks
inline constexpr int kMaxNodes = 1000;  // of an expression

}  // namespace edgewise::chat

#endif  // EDGEWISE_MODEL_CHAT_EXPRESSION_H_
