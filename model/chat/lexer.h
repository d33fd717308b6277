// The words of a chat template, with the white space that Jinja takes away where transformers sets it up: trim_blocks
// and lstrip_blocks are on.
#ifndef EDGEWISE_MODEL_CHAT_LEXER_H_
#define EDGEWISE_MODEL_CHAT_LEXER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace edgewise::chat {

struct Token {
  enum Kind { kText, kBlockBegin, kBlockEnd, kOutputBegin, kOutputEnd, kName, kNumber, kString, kOperator, kEnd };
  Kind kind = kEnd;
  std::string text;  // of kText and kString the text itself
  int64_t number = 0;
  size_t line = 1;  // from 1
};

absl::Status ErrorAt(size_t line, const std::string& message);

// INVALID_ARGUMENT: "line 3: ..."; `source` is UTF-8.
absl::StatusOr<std::vector<Token>> ReadTokens(const std::string& source);

}  // namespace edgewise::chat

#endif  // EDGEWISE_MODEL_CHAT_LEXER_H_
