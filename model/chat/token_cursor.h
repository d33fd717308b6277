// Where a parser stands in the words of a chat template.
#ifndef EDGEWISE_MODEL_CHAT_TOKEN_CURSOR_H_
#define EDGEWISE_MODEL_CHAT_TOKEN_CURSOR_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "model/chat/lexer.h"

namespace edgewise::chat {

// Take... go on where the word is the one they name. Errors are INVALID_ARGUMENT and begin with the line of the word.
// One thread at a time.
class TokenCursor {
 public:
  // The last of `tokens` is kEnd.
  explicit TokenCursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& token() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[at_ + 1]; }  // only where token() is not the end
  bool After(std::string_view name) const {
    return at_ > 0 && tokens_[at_ - 1].kind == Token::kName && tokens_[at_ - 1].text == name;
  }
  void Skip(size_t count = 1) { at_ += count; }
  bool Is(Token::Kind kind, std::string_view text) const { return token().kind == kind && token().text == text; }
  bool IsName(std::string_view text) const { return Is(Token::kName, text); }
  bool Take(Token::Kind kind, std::string_view text) {
    const bool is = Is(kind, text);
    at_ += is;
    return is;
  }
  bool TakeOperator(std::string_view text) { return Take(Token::kOperator, text); }
  bool TakeName(std::string_view text) { return Take(Token::kName, text); }

  std::string Shown() const {
    switch (token().kind) {
      case Token::kEnd:
        return "the end of the template";
      case Token::kBlockEnd:
        return "%}";
      case Token::kOutputEnd:
        return "}}";
      default:
        return absl::StrCat("\"", token().text, "\"");
    }
  }
  // An error at this word.
  absl::Status Error(const std::string& message) const { return ErrorAt(token().line, message); }
  absl::Status Expect(Token::Kind kind, const std::string& what) {
    if (token().kind != kind) return Error(absl::StrCat(what, " is expected before ", Shown()));
    ++at_;
    return absl::OkStatus();
  }
  absl::Status ExpectOperator(const std::string& text) {
    return TakeOperator(text) ? absl::OkStatus() : Error(absl::StrCat("\"", text, "\" is expected before ", Shown()));
  }
  absl::StatusOr<std::string> ReadName() {
    if (token().kind != Token::kName) return Error(absl::StrCat("a name is expected before ", Shown()));
    return TakeText();
  }
  std::string TakeText() { return tokens_[at_++].text; }

 private:
  const std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace edgewise::chat

#endif  // EDGEWISE_MODEL_CHAT_TOKEN_CURSOR_H_
