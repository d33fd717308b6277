#include "model/tokenizers/pattern.h"

#include <oniguruma.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"

namespace edgewise::tokenizers {
namespace {

// Steps back ("retries") that Oniguruma may take before a match is given up, and tried again with eight times as many.
// A match of an honest expression nearly never needs the first number.
constexpr uint64_t kFirstRetries = 64;
constexpr uint64_t kRetriesOfText = 1'000'000, kRetriesOfByte = 2, kMostRetries = 10'000'000;  // Oniguruma's own limit
// In a text: of all matches that were given up, in units of those of one.
constexpr uint64_t kMatchesOfText = 8;
// A search that runs through the text and fails takes no step back: so processor time is bounded too, in seconds.
constexpr double kSecondsOfText = 1.0, kSecondsOfByte = 1e-6;
constexpr auto kLong = std::chrono::milliseconds(2);  // after which time is looked at

// A match remembers places that it may come back to. So many are not counted; more are tried eight times as many at a
// time.
constexpr unsigned kFirstPlaces = 1024;
constexpr unsigned kMostPlaces = 1 << 28;
constexpr uint64_t kPlaceBytes = 32;

const OnigUChar* Begin(std::string_view text) { return reinterpret_cast<const OnigUChar*>(text.data()); }

// The processor time of this thread.
double CpuSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

absl::Status TakesTooLong() {
  return absl::InvalidArgumentError("the tokenizer's regular expression takes too long for this text");
}

// Oniguruma's syntax, as `tokenizers` uses it, without what calls functions.
OnigSyntaxType* Syntax() {
  static OnigSyntaxType* const syntax = [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
    auto* made = new OnigSyntaxType;
    onig_copy_syntax(made, ONIG_SYNTAX_ONIGURUMA);
    onig_set_syntax_op2(made, onig_get_syntax_op2(made) &
                                  ~(ONIG_SYN_OP2_QMARK_BRACE_CALLOUT_CONTENTS | ONIG_SYN_OP2_ASTERISK_CALLOUT_NAME));
    return made;
  }();
  return syntax;
}

// Whether an expression has \G, the place where a search began.
bool NamesStart(std::string_view expression) {
  for (size_t at = 0; at + 1 < expression.size(); ++at) {
    if (expression[at] != '\\') continue;
    if (expression[++at] == 'G') return true;
  }
  return false;
}

struct Free {
  void operator()(regex_t* expression) const { onig_free(expression); }
  void operator()(OnigRegion* region) const { onig_region_free(region, 1); }
  void operator()(OnigMatchParam* limits) const { onig_free_match_param(limits); }
};

// The matches of one text. Each place is tried by itself: Oniguruma's own search could not be ended in between.
class Search {
 public:
  Search(regex_t* expression, std::string_view text, Work& work)
      : expression_(expression),
        text_(text),
        work_(work),
        most_retries_(std::min(kRetriesOfText + kRetriesOfByte * text.size(), kMostRetries)),
        retries_left_(kMatchesOfText * most_retries_) {}

  // The first match at or after `from`, which begins a character. Whether there is one.
  absl::StatusOr<bool> Next(size_t from, Span& match) {
    while (from <= text_.size()) {
      RETURN_IF_ERROR(work_.Charge(32));
      ASSIGN_OR_RETURN(const bool found, At(from));
      if (found) {
        match = {static_cast<uint32_t>(region_->beg[0]), static_cast<uint32_t>(region_->end[0])};
        return true;
      }
      from += from < text_.size() ? CharacterAt(text_, from).bytes : 1;
    }
    return false;
  }

 private:
  // Whether the text has a match at this byte.
  absl::StatusOr<bool> At(size_t byte) {
    const OnigUChar* const begin = Begin(text_);
    const auto all = static_cast<unsigned>(text_.size()) + kFirstPlaces;
    for (uint64_t retries = kFirstRetries;;) {
      ReservedBytes places_held(work_.bounds());
      if (places_ > kFirstPlaces) RETURN_IF_ERROR(places_held.Resize(places_ * kPlaceBytes));
      onig_initialize_match_param(limits_.get());
      onig_set_match_stack_limit_size_of_match_param(limits_.get(), places_);
      onig_set_retry_limit_in_match_of_match_param(limits_.get(), retries);
      const int found = onig_match_with_param(expression_, begin, begin + text_.size(), begin + byte, region_.get(),
                                              ONIG_OPTION_NONE, limits_.get());
      const auto now = std::chrono::steady_clock::now();
      if (now - std::exchange(looked_, now) > kLong) RETURN_IF_ERROR(CheckTime());
      if (found >= 0) return true;
      switch (found) {
        case ONIG_MISMATCH:
          return false;
        case ONIGERR_RETRY_LIMIT_IN_MATCH_OVER:
          if (retries == most_retries_ || retries > retries_left_) return TakesTooLong();
          RETURN_IF_ERROR(work_.Charge(retries));
          retries_left_ -= retries;
          retries = std::min(8 * retries, most_retries_);
          break;
        case ONIGERR_MATCH_STACK_LIMIT_OVER:
          if (places_ > kMostPlaces) return TakesTooLong();
          // Most expressions remember one place at each character.
          places_ = places_ < all && all <= 8 * places_ ? all : 8 * places_;
          break;
        default:
          return TakesTooLong();
      }
    }
  }
  absl::Status CheckTime() const {
    if (CpuSeconds() - began_ > kSecondsOfText + kSecondsOfByte * static_cast<double>(text_.size())) {
      return TakesTooLong();
    }
    return work_.bounds().Continue();
  }
  regex_t* const expression_;
  const std::string_view text_;
  Work& work_;
  const std::unique_ptr<OnigRegion, Free> region_{onig_region_new()};
  const std::unique_ptr<OnigMatchParam, Free> limits_{onig_new_match_param()};
  unsigned places_ = kFirstPlaces;
  const uint64_t most_retries_;
  uint64_t retries_left_;
  const double began_ = CpuSeconds();
  std::chrono::steady_clock::time_point looked_ = std::chrono::steady_clock::now();
};

}  // namespace

struct Pattern::Compiled {
  std::unique_ptr<regex_t, Free> expression;
};

Pattern Pattern::Literal(std::string text) {
  Pattern pattern;
  pattern.literal_ = std::move(text);
  return pattern;
}

absl::StatusOr<Pattern> Pattern::Expression(const std::string& expression) {
  if (expression.size() > kMostExpression) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", expression.size(), " bytes; allowed are at most ", kMostExpression));
  }
  OnigErrorInfo info;
  regex_t* made = nullptr;
  const OnigUChar* const begin = Begin(expression);
  const int error =
      onig_new(&made, begin, begin + expression.size(), ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, Syntax(), &info);
  if (error != ONIG_NORMAL) {
    OnigUChar message[ONIG_MAX_ERROR_MESSAGE_LEN];
    const int length = onig_error_code_to_str(message, error, &info);
    return absl::InvalidArgumentError(absl::StrCat("is not a regular expression of Oniguruma: ",
                                                   std::string(reinterpret_cast<char*>(message), length)));
  }
  auto compiled = std::make_shared<Compiled>();
  compiled->expression.reset(made);
  // Constructs whose match depends on where a search began.
  if ((onig_get_options(made) & ONIG_OPTION_FIND_LONGEST) != 0 || NamesStart(expression)) {
    return absl::InvalidArgumentError("has \\G or the option L, which are not served");
  }
  Pattern pattern;
  pattern.expression_ = std::move(compiled);
  return pattern;
}

absl::Status Pattern::Find(std::string_view text, Work& work, PartSink take) const {
  uint32_t last = 0;  // where the last part ends
  auto take_match = [&](Span match) -> absl::Status {
    if (last < match.begin) RETURN_IF_ERROR(take({last, match.begin, false}));
    last = match.end;
    return take({match.begin, match.end, true});
  };
  if (expression_ == nullptr) {
    for (size_t at = text.find(literal_); at != std::string_view::npos; at = text.find(literal_, last)) {
      RETURN_IF_ERROR(work.Charge(at - last + literal_.size()));
      RETURN_IF_ERROR(take_match({static_cast<uint32_t>(at), static_cast<uint32_t>(at + literal_.size())}));
    }
  } else {
    Search search(expression_->expression.get(), text, work);
    bool skips_empty = false;  // as the iterator that `tokenizers` uses
    Span match;
    for (size_t from = 0; from <= text.size();) {
      ASSIGN_OR_RETURN(const bool found, search.Next(from, match));
      if (!found) break;
      RETURN_IF_ERROR(work.Charge(match.end - from));
      from = match.end;
      if (match.begin == match.end) {
        from += from < text.size() ? CharacterAt(text, from).bytes : 1;
        if (std::exchange(skips_empty, false)) continue;
      } else {
        skips_empty = true;
      }
      RETURN_IF_ERROR(take_match(match));
    }
  }
  return last < text.size() ? take({last, static_cast<uint32_t>(text.size()), false}) : absl::OkStatus();
}

absl::Status ReplaceAll(AlignedText& text, const Pattern& pattern, std::string_view content, Work& work) {
  AlignedText replaced(text.begin(), work.bounds());
  bool any = false;
  RETURN_IF_ERROR(pattern.Find(text.text(), work, [&](const Part& part) -> absl::Status {
    any |= part.matched;
    if (!part.matched && part.end == text.text().size() && !any) return absl::OkStatus();  // nothing is found
    RETURN_IF_ERROR(work.Charge(part.matched ? content.size() : part.end - part.begin));
    if (!part.matched) return replaced.Append(text, part.begin, part.end, work);
    return replaced.Append(content, part.end == 0 ? Span{} : text.OriginAt(part.end - 1), work);
  }));
  if (any) text = std::move(replaced);
  return absl::OkStatus();
}

}  // namespace edgewise::tokenizers
