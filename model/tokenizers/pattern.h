// What Split and Replace look for: a literal text, or a regular expression.
#ifndef EDGEWISE_MODEL_TOKENIZERS_PATTERN_H_
#define EDGEWISE_MODEL_TOKENIZERS_PATTERN_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/tokenizers/aligned_text.h"

namespace edgewise::tokenizers {

// `expression`, written for Oniguruma, as the expression of ICU that means the same. Served are those parts of the
// language whose meaning is sure: characters, escapes of characters, . \s \S \d \D \w \W, \p{...} and \P{...} of
// general categories and a few scripts, [...] of these without nesting, groups (...), (?:...), (?i:...) of ASCII
// letters, lookaheads and lookbehinds, alternatives, and the quantifiers ? * + {n} {n,} {n,m}, the first three also
// lazy and possessive. INVALID_ARGUMENT names what else it has, and where.
absl::StatusOr<std::string> ToIcuExpression(const std::string& expression);

// Immutable; may be used from any thread.
class Pattern {
 public:
  static Pattern Literal(std::string text);
  // INVALID_ARGUMENT: the expression is not served (ToIcuExpression), or ICU refuses it.
  static absl::StatusOr<Pattern> Expression(const std::string& expression);

  // The matches in valid UTF-8, from the left, none over another, and what is between them. INVALID_ARGUMENT: the
  // expression takes too many steps or too much memory for this text.
  absl::StatusOr<std::vector<Part>> Find(std::string_view text) const;

 private:
  struct Compiled;
  std::string literal_;
  std::shared_ptr<const Compiled> expression_;  // null: the literal counts
};

}  // namespace edgewise::tokenizers

#endif  // EDGEWISE_MODEL_TOKENIZERS_PATTERN_H_
