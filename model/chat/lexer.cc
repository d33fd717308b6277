#include "model/chat/lexer.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"

namespace edgewise::chat {
namespace {

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  absl::StatusOr<std::vector<Token>> Read() {
    while (at_ < source_.size()) {
      const size_t tag = NextTag();
      RETURN_IF_ERROR(ReadText(tag));
      if (tag == std::string::npos) break;
      if (source_[tag + 1] == '#') {
        const size_t end = source_.find("#}", tag + 2);
        if (end == std::string::npos) return Error("the comment has no end");
        at_ = end + 2;
        Close(source_[end - 1], true);
        continue;
      }
      const bool block = source_[tag + 1] == '%';
      at_ = tag + 2;
      if (at_ < source_.size() && (source_[at_] == '-' || (block && source_[at_] == '+'))) ++at_;
      Push(block ? Token::kBlockBegin : Token::kOutputBegin, "");
      RETURN_IF_ERROR(ReadTag(block));
    }
    Push(Token::kEnd, "");
    return std::move(tokens_);
  }

 private:
  size_t NextTag() const {
    for (size_t i = source_.find('{', at_); i != std::string::npos; i = source_.find('{', i + 1)) {
      if (i + 1 < source_.size() && (source_[i + 1] == '%' || source_[i + 1] == '{' || source_[i + 1] == '#')) return i;
    }
    return std::string::npos;
  }

  absl::Status Error(const std::string& message) const { return ErrorAt(line_, message); }
  void Push(Token::Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), 0, line_}); }

  // The text up to a tag, or to the end.
  absl::Status ReadText(size_t tag) {
    std::string text = source_.substr(at_, tag == std::string::npos ? tag : tag - at_);
    const size_t lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
    if (tag != std::string::npos) {
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
      if (sign == '-') {
        text.erase(std::find_if_not(text.rbegin(), text.rend(), absl::ascii_isspace).base(), text.end());
      } else if (sign != '+' && source_[tag + 1] != '{') {  // white space between the line's beginning and a block
        const size_t line = text.rfind('\n') + 1;
        if ((line > 0 || line_starts_) &&
            std::all_of(text.begin() + static_cast<int64_t>(line), text.end(), absl::ascii_isspace)) {
          text.resize(line);
        }
      }
    }
    if (!text.empty()) Push(Token::kText, std::move(text));
    line_ += lines;
    return absl::OkStatus();
  }

  // After the end of a tag, whose last character was `sign`.
  void Close(char sign, bool trims) {
    const size_t begin = at_;
    if (sign == '-') {
      while (at_ < source_.size() && absl::ascii_isspace(source_[at_])) ++at_;
    } else if (trims && sign != '+' && at_ < source_.size() && source_[at_] == '\n') {
      ++at_;
    }
    line_ += static_cast<size_t>(
        std::count(source_.begin() + static_cast<int64_t>(begin), source_.begin() + static_cast<int64_t>(at_), '\n'));
    line_starts_ = at_ > begin && source_[at_ - 1] == '\n';
  }

  absl::Status ReadTag(bool block) {
    const std::string_view end = block ? "%}" : "}}";
    int depth = 0;  // of brackets: }} may close a mapping
    while (at_ < source_.size()) {
      const char c = source_[at_];
      const std::string_view rest = std::string_view(source_).substr(at_);
      if (absl::ascii_isspace(c)) {
        line_ += c == '\n';
        ++at_;
        continue;
      }
      const bool sign = (c == '-' || (block && c == '+')) && rest.substr(1, 2) == end;
      if (depth == 0 && (sign || rest.substr(0, 2) == end)) {
        Push(block ? Token::kBlockEnd : Token::kOutputEnd, "");
        at_ += sign ? 3 : 2;
        Close(sign ? c : ' ', block);
        return absl::OkStatus();
      }
      if (absl::ascii_isalpha(c) || c == '_') {
        size_t size = 1;
        while (size < rest.size() && (absl::ascii_isalnum(rest[size]) || rest[size] == '_')) ++size;
        Push(Token::kName, std::string(rest.substr(0, size)));
        at_ += size;
      } else if (absl::ascii_isdigit(c)) {
        size_t size = 1;
        while (size < rest.size() && absl::ascii_isdigit(rest[size])) ++size;
        const bool fraction = size + 1 < rest.size() && rest[size] == '.' && absl::ascii_isdigit(rest[size + 1]);
        Push(Token::kNumber, std::string(rest.substr(0, size)));
        if (fraction || !absl::SimpleAtoi(tokens_.back().text, &tokens_.back().number)) {
          return Error("numbers are served as whole ones of 64 bits");
        }
        at_ += size;
      } else if (c == '\'' || c == '"') {
        RETURN_IF_ERROR(ReadString(c));
      } else {
        RETURN_IF_ERROR(ReadOperator(rest, depth));
      }
    }
    return Error(absl::StrCat("the tag has no ", std::string(end)));
  }

  absl::Status ReadString(char quote) {
    std::string text;
    const size_t line = line_;
    for (++at_; at_ < source_.size(); ++at_) {
      char c = source_[at_];
      if (c == quote) {
        ++at_;
        Push(Token::kString, std::move(text));
        tokens_.back().line = line;
        return absl::OkStatus();
      }
      line_ += c == '\n';
      if (c == '\\') {
        if (at_ + 1 < source_.size() && source_[at_ + 1] == '\n') {  // the line goes on
          ++at_;
          ++line_;
          continue;
        }
        constexpr std::string_view kNames = "ntr\\'\"", kCharacters = "\n\t\r\\'\"";
        const size_t place = ++at_ < source_.size() ? kNames.find(source_[at_]) : std::string_view::npos;
        if (place == std::string_view::npos) return Error("of escapes \\n, \\t, \\r, \\\\, \\' and \\\" are served");
        c = kCharacters[place];
      }
      text += c;
    }
    return ErrorAt(line, "the text has no end");
  }

  absl::Status ReadOperator(std::string_view rest, int& depth) {
    for (const std::string_view two : {"==", "!=", "<=", ">=", "//"}) {
      if (rest.substr(0, 2) != two) continue;
      Push(Token::kOperator, std::string(two));
      at_ += 2;
      return absl::OkStatus();
    }
    constexpr std::string_view kSingle = "+-*%~<>=()[]{},:.|";
    if (kSingle.find(rest[0]) == std::string_view::npos) {
      const auto byte = static_cast<unsigned char>(rest[0]);
      return Error(byte < 0x80 ? absl::StrCat("\"", std::string(1, rest[0]), "\" is not served")
                               : "a character outside ASCII is not served here");
    }
    depth += std::string_view("([{").find(rest[0]) != std::string_view::npos;
    depth -= std::string_view(")]}").find(rest[0]) != std::string_view::npos;
    Push(Token::kOperator, std::string(1, rest[0]));
    ++at_;
    return absl::OkStatus();
  }

  const std::string source_;
  size_t at_ = 0, line_ = 1;
  bool line_starts_ = true;  // what comes next is at the beginning of a line
  std::vector<Token> tokens_;
};

}  // namespace

absl::Status ErrorAt(size_t line, const std::string& message) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", message));
}

absl::StatusOr<std::vector<Token>> ReadTokens(const std::string& source) {
  std::string text = absl::StrReplaceAll(source, {{"\r\n", "\n"}, {"\r", "\n"}});
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return Lexer(std::move(text)).Read();
}

}  // namespace edgewise::chat
