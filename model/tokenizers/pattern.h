// The pattern of Split and Replace: a literal text, or a regular expression.
#ifndef EDGEWISE_MODEL_TOKENIZERS_PATTERN_H_
#define EDGEWISE_MODEL_TOKENIZERS_PATTERN_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/tokenizers/aligned_text.h"
#include "model/tokenizers/work.h"

namespace edgewise::tokenizers {

// Takes one part of a text after the other; an error ends the search with it.
using PartSink = absl::FunctionRef<absl::Status(const Part&)>;

// Immutable; may be used from any thread.
class Pattern {
 public:
  static constexpr size_t kMostExpression = 4096;  // bytes of an expression

  static Pattern Literal(std::string text);
  // A regular expression of Oniguruma in its own syntax, without callouts. INVALID_ARGUMENT: it is none, or longer than
  // kMostExpression.
  static absl::StatusOr<Pattern> Expression(const std::string& expression);

  // The matches in valid UTF-8, from the left, none over another, and what is between them. Steps back in a match and
  // in the whole text are bounded. INVALID_ARGUMENT: the expression takes more of them for this text.
  absl::Status Find(std::string_view text, Work& work, PartSink take) const;

 private:
  struct Compiled;
  std::string literal_;
  std::shared_ptr<const Compiled> expression_;  // null: the literal counts
};

// Puts `content` in the place of every match, with the origin of the match's last character. Errors: Find,
// AlignedText::Append.
absl::Status ReplaceAll(AlignedText& text, const Pattern& pattern, std::string_view content, Work& work);

}  // namespace edgewise::tokenizers

#endif  // EDGEWISE_MODEL_TOKENIZERS_PATTERN_H_
