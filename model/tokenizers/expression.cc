// ToIcuExpression: from Oniguruma's language to ICU's.
#include <algorithm>
#include <array>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "model/tokenizers/pattern.h"
#include "model/tokenizers/utf8.h"
#include "text/status_macros.h"

namespace edgewise::tokenizers {
namespace {

// General categories, and scripts that split patterns name.
constexpr std::array<std::string_view, 47> kProperties = {
    "C",   "Cc",     "Cf",     "Cn",       "Co",       "L",     "Ll",     "Lm",       "Lo",         "Lt",
    "Lu",  "M",      "Mc",     "Me",       "Mn",       "N",     "Nd",     "Nl",       "No",         "P",
    "Pc",  "Pd",     "Pe",     "Pf",       "Pi",       "Po",    "Ps",     "S",        "Sc",         "Sk",
    "Sm",  "So",     "Z",      "Zl",       "Zp",       "Zs",    "Arabic", "Cyrillic", "Devanagari", "Greek",
    "Han", "Hangul", "Hebrew", "Hiragana", "Katakana", "Latin", "Thai"};

// Inside [...].
constexpr char kWord[] = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u00B2\u00B3\u00B9\u00BC-\u00BE)";
constexpr int kMostRepeats = 1000;

class Translator {
 public:
  explicit Translator(const std::string& expression) : from_(expression) {}

  absl::StatusOr<std::string> Run() {
    while (at_ < from_.size()) RETURN_IF_ERROR(Step());
    if (!insensitive_.empty()) return Refused("an open (");
    return to_;
  }

 private:
  bool Sees(std::string_view next) const { return from_.compare(at_, next.size(), next) == 0; }
  absl::Status Refused(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat("has ", what, " at byte ", at_, ", which is not served"));
  }

  absl::Status Step() {
    const char c = from_[at_];
    const bool insensitive = !insensitive_.empty() && insensitive_.back();
    switch (c) {
      case '(':
        return Open();
      case ')':
        if (insensitive_.empty()) return Refused("a ) too many");
        insensitive_.pop_back();
        Copy(1);
        repeatable_ = true;
        Atom(opened_.back(), false);
        opened_.pop_back();
        return absl::OkStatus();
      case '|':
        Copy(1);
        repeatable_ = false;
        return absl::OkStatus();
      case '?':
      case '*':
      case '+':
      case '{':
        return Repeat();
      case '^':
      case '$':
      case ']':
      case '}':
        return Refused(absl::StrCat("a bare ", std::string(1, c)));
      default:
        break;
    }
    if (insensitive && !absl::ascii_isalpha(c) && c != '\'' && c != ' ') {
      return Refused("something other than ASCII letters inside (?i:...)");
    }
    repeatable_ = true;
    const bool literal =
        c != '[' && c != '.' && !(c == '\\' && at_ + 1 < from_.size() && absl::ascii_isalpha(from_[at_ + 1]));
    Atom(to_.size(), literal && !insensitive);
    if (c == '[') return Set();
    if (c == '\\') return Escape(false, nullptr);
    if (c == '.') {
      to_ += "[^\\n]";
      ++at_;
      return absl::OkStatus();
    }
    const Character character = CharacterAt(from_, at_);
    Literal(character.code);
    at_ += character.bytes;
    return absl::OkStatus();
  }

  absl::Status Open() {
    static constexpr std::string_view kOpenings[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!"};
    bool insensitive = !insensitive_.empty() && insensitive_.back();
    size_t bytes = 1;
    if (Sees("(?")) {
      const auto* opening = std::find_if(std::begin(kOpenings), std::end(kOpenings), [&](auto o) { return Sees(o); });
      if (opening == std::end(kOpenings)) return Refused(from_.substr(at_, 4));
      bytes = opening->size();
      insensitive |= *opening == "(?i:";
    }
    insensitive_.push_back(insensitive);
    opened_.push_back(to_.size());
    Copy(bytes);
    repeatable_ = false;
    return absl::OkStatus();
  }

  absl::Status Repeat() {
    if (!repeatable_) return Refused("a quantifier of nothing");
    repeatable_ = false;
    if (from_[at_] != '{') {
      if (from_[at_] != '?') LoopInPlace();
      Copy(1);
      if (at_ < from_.size() && (from_[at_] == '?' || from_[at_] == '+')) Copy(1);
      return absl::OkStatus();
    }
    const size_t end = from_.find('}', at_);
    const std::string inside = end == std::string::npos ? "" : from_.substr(at_ + 1, end - at_ - 1);
    const size_t comma = inside.find(',');
    int least = -1, most = -1;
    const bool numbers =
        inside.find_first_not_of("0123456789,") == std::string::npos &&
        absl::SimpleAtoi(inside.substr(0, comma), &least) &&
        (comma == std::string::npos || comma + 1 == inside.size() || absl::SimpleAtoi(inside.substr(comma + 1), &most));
    if (!numbers || std::max(least, most) > kMostRepeats || (most >= 0 && most < least)) return Refused("a bare {");
    if (end + 1 < from_.size() && (from_[end + 1] == '?' || from_[end + 1] == '+')) {
      at_ = end + 1;
      return Refused("a second quantifier");
    }
    if (comma != std::string::npos && most < 0) {  // a{n,} is a{n}a*: ICU keeps a state for each turn of the first
      LoopInPlace();
      absl::StrAppend(&to_, "{", least, "}", to_.substr(atom_), "*");
      at_ = end + 1;
      return absl::OkStatus();
    }
    Copy(end + 1 - at_);
    return absl::OkStatus();
  }

  void Atom(size_t begin, bool literal) {
    atom_ = begin;
    literal_ = literal;
  }

  // Before an unbounded quantifier. ICU loops over sets in place, but keeps a state for each turn of a loop over one
  // character: megabytes for a long run of it. So the character becomes a set of two, of which the second is a
  // surrogate, which is in no text.
  void LoopInPlace() {
    if (literal_) to_ = absl::StrCat(to_.substr(0, atom_), "[", to_.substr(atom_), "\\x{D800}]");
    literal_ = false;
  }

  // At a backslash. Inside [...] the escape must not be a set where a range needs a character: `single` is then set.
  absl::Status Escape(bool in_set, char32_t* single) {
    const char c = at_ + 1 < from_.size() ? from_[at_ + 1] : '\0';
    if (c == 'p' || c == 'P') return Property();
    auto set = [&](std::string_view inside, bool negated) {
      if (in_set) {
        to_ += inside;
      } else {
        absl::StrAppend(&to_, negated ? "[^" : "[", View(inside), "]");
      }
      at_ += 2;
    };
    switch (c) {
      case 's':
        set("\\p{White_Space}", false);
        return absl::OkStatus();
      case 'S':
        set(in_set ? "\\P{White_Space}" : "\\p{White_Space}", true);
        return absl::OkStatus();
      case 'd':
        set("\\p{Nd}", false);
        return absl::OkStatus();
      case 'D':
        set(in_set ? "\\P{Nd}" : "\\p{Nd}", true);
        return absl::OkStatus();
      case 'w':
        set(kWord, false);
        return absl::OkStatus();
      case 'W':
        if (in_set) return Refused("\\W inside [...]");
        set(kWord, true);
        return absl::OkStatus();
      default:
        break;
    }
    static constexpr std::string_view kControls = "r\rn\nt\tf\fv\v";
    const size_t control = c == '\0' || absl::ascii_isspace(c) ? std::string_view::npos : kControls.find(c);
    if (control == std::string_view::npos && !absl::ascii_ispunct(c)) {
      return Refused(absl::StrCat("the escape ", absl::CEscape(from_.substr(at_, 2))));
    }
    const char32_t code = static_cast<unsigned char>(control == std::string_view::npos ? c : kControls[control + 1]);
    at_ += 2;
    if (single != nullptr) *single = code;
    if (single == nullptr) Literal(code);
    return absl::OkStatus();
  }

  absl::Status Property() {
    const size_t end = from_.find('}', at_);
    const std::string name =
        end == std::string::npos || from_[at_ + 2] != '{' ? "" : from_.substr(at_ + 3, end - at_ - 3);
    if (std::find(kProperties.begin(), kProperties.end(), name) == kProperties.end()) {
      return Refused(absl::StrCat("the property ", absl::CEscape(from_.substr(at_, 12))));
    }
    Copy(end + 1 - at_);
    return absl::OkStatus();
  }

  absl::Status Set() {
    constexpr char32_t kNone = 0xFFFFFFFF;
    to_ += '[';
    ++at_;
    if (Sees("^")) Copy(1);
    if (Sees("]")) return Refused("an empty [...]");
    char32_t first = kNone;  // the character that a range may begin with
    while (true) {
      if (at_ >= from_.size()) return Refused("an open [");
      if (from_[at_] == ']') break;
      if (from_[at_] == '[' || Sees("&&")) return Refused("a set inside [...]");
      const bool range = from_[at_] == '-' && first != kNone && at_ + 1 < from_.size() && from_[at_ + 1] != ']';
      if (range) ++at_;
      char32_t code = kNone;
      if (from_[at_] == '\\') {
        RETURN_IF_ERROR(Escape(true, &code));
      } else {
        if (from_[at_] == '-' && !range && !(Sees("-]") || to_.back() == '[' || to_.back() == '^')) {
          return Refused("a bare - inside [...]");
        }
        const Character character = CharacterAt(from_, at_);
        code = character.code;
        at_ += character.bytes;
      }
      if (range && (code == kNone || code < first)) return Refused("a range that does not end");
      if (range) to_ += '-';
      if (code != kNone) Literal(code);
      first = range ? kNone : code;
    }
    to_ += ']';
    ++at_;
    return absl::OkStatus();
  }

  void Copy(size_t bytes) {
    to_.append(from_, at_, bytes);
    at_ += bytes;
  }
  void Literal(char32_t code) {
    if (code >= 0x80 || absl::ascii_isalnum(static_cast<unsigned char>(code))) {
      AppendCharacter(code, to_);
    } else {
      absl::StrAppend(&to_, "\\x{", absl::Hex(static_cast<uint32_t>(code)), "}");
    }
  }

  const std::string& from_;
  std::string to_;
  size_t at_ = 0;
  std::vector<bool> insensitive_;  // of each open group
  std::vector<size_t> opened_;     // where each stands in to_
  bool repeatable_ = false;        // whether a quantifier may follow
  size_t atom_ = 0;                // where in to_ begins what it repeats
  bool literal_ = false;           // whether that is one character
};

}  // namespace

absl::StatusOr<std::string> ToIcuExpression(const std::string& expression) { return Translator(expression).Run(); }

}  // namespace edgewise::tokenizers
