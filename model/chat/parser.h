// The blocks of a chat template: the subset of Jinja's that is served.
#ifndef EDGEWISE_MODEL_CHAT_PARSER_H_
#define EDGEWISE_MODEL_CHAT_PARSER_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/chat/expression.h"

namespace edgewise::chat {

struct Statement {
  enum Kind { kText, kOutput, kIf, kFor, kSet, kGeneration };
  Kind kind = kText;
  size_t line = 1;
  std::string text;                 // kText
  std::vector<std::string> names;   // kFor, kSet: what is bound; kSet of an attribute: the namespace and the attribute
  bool attribute = false;           // kSet
  std::unique_ptr<Node> value;      // kOutput, kIf, kFor, kSet
  std::unique_ptr<Node> condition;  // kFor: of the entries, or null
  std::vector<Statement> body, otherwise;  // kIf, kFor, kGeneration; kIf
};

// `source` is UTF-8. INVALID_ARGUMENT: "line 3: ..." names what is wrong or not served.
absl::StatusOr<std::vector<Statement>> Parse(const std::string& source);

}  // namespace edgewise::chat

#endif  // EDGEWISE_MODEL_CHAT_PARSER_H_
