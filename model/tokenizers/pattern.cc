#include "model/tokenizers/pattern.h"

#include <unicode/regex.h>
#include <unicode/unistr.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "model/tokenizers/utf8.h"
#include "text/status_macros.h"

namespace edgewise::tokenizers {
namespace {

// Steps that a match may take, in units of 10,000 of ICU's: enough for any expression that is linear in the text.
constexpr int32_t kLeastSteps = 1000;
constexpr size_t kUnitsPerStep = 100;
constexpr int32_t kStackBytes = 16 << 20;

std::vector<Part> FindLiteral(std::string_view text, std::string_view literal) {
  std::vector<Part> parts;
  size_t last = 0;
  for (size_t at = text.find(literal); at != std::string_view::npos; at = text.find(literal, last)) {
    if (last < at) parts.push_back({static_cast<uint32_t>(last), static_cast<uint32_t>(at), false});
    last = at + literal.size();
    parts.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(last), true});
  }
  if (last < text.size()) parts.push_back({static_cast<uint32_t>(last), static_cast<uint32_t>(text.size()), false});
  return parts;
}

// From places in UTF-16 to places in UTF-8, ascending.
class Places {
 public:
  explicit Places(std::string_view text) : text_(text) {}
  uint32_t Byte(int32_t unit) {
    while (unit_ < unit && byte_ < text_.size()) {
      const Character character = CharacterAt(text_, byte_);
      byte_ += character.bytes;
      unit_ += character.code < 0x10000 ? 1 : 2;
    }
    return static_cast<uint32_t>(byte_);
  }

 private:
  std::string_view text_;
  size_t byte_ = 0;
  int32_t unit_ = 0;
};

}  // namespace

struct Pattern::Compiled {
  std::unique_ptr<icu::RegexPattern> pattern;
};

Pattern Pattern::Literal(std::string text) {
  Pattern pattern;
  pattern.literal_ = std::move(text);
  return pattern;
}

absl::StatusOr<Pattern> Pattern::Expression(const std::string& expression) {
  ASSIGN_OR_RETURN(const std::string translated, ToIcuExpression(expression));
  UErrorCode error = U_ZERO_ERROR;
  UParseError where;
  auto compiled = std::make_shared<Compiled>();
  compiled->pattern.reset(icu::RegexPattern::compile(icu::UnicodeString::fromUTF8(translated), where, error));
  if (U_FAILURE(error)) {
    return absl::InvalidArgumentError(absl::StrCat("is not a regular expression that ICU takes: ", u_errorName(error)));
  }
  Pattern pattern;
  pattern.expression_ = std::move(compiled);
  return pattern;
}

absl::StatusOr<std::vector<Part>> Pattern::Find(std::string_view text) const {
  if (expression_ == nullptr) return FindLiteral(text, literal_);
  const icu::UnicodeString units =
      icu::UnicodeString::fromUTF8(icu::StringPiece(text.data(), static_cast<int32_t>(text.size())));
  UErrorCode error = U_ZERO_ERROR;
  const std::unique_ptr<icu::RegexMatcher> matcher(expression_->pattern->matcher(units, error));
  if (U_SUCCESS(error)) {
    matcher->setTimeLimit(kLeastSteps + static_cast<int32_t>(units.length() / kUnitsPerStep), error);
    matcher->setStackLimit(kStackBytes, error);
  }
  std::vector<Part> parts;
  Places places(text);
  uint32_t last = 0;
  while (U_SUCCESS(error) && matcher->find(error) && U_SUCCESS(error)) {
    const uint32_t begin = places.Byte(matcher->start(error)), end = places.Byte(matcher->end(error));
    if (begin == end && begin == last && begin > 0) continue;  // as Oniguruma's iterator: none where a match has ended
    if (last < begin) parts.push_back({last, begin, false});
    parts.push_back({begin, end, true});
    last = end;
  }
  if (U_FAILURE(error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tokenizer's regular expression takes too long for this text (", u_errorName(error), ")"));
  }
  if (last < text.size()) parts.push_back({last, static_cast<uint32_t>(text.size()), false});
  return parts;
}

}  // namespace edgewise::tokenizers
