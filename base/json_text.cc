#include "base/json_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json_object.h"
#include "base/utf8.h"

namespace edgewise {
namespace {

using nlohmann::json;

enum class Dialect { kStrict, kPython };

constexpr size_t kMaxDepth = 16;
constexpr size_t kMaxObjects =
    300'000;                       // each takes some hundred bytes once it is built; files have one a tensor or token
constexpr size_t kMostShown = 24;  // characters of what stands in the wrong place

// `text` is valid UTF-8 up to `at`.
std::string PlaceIn(std::string_view text, size_t at) {
  const std::string_view before = text.substr(0, at);
  const size_t line = before.rfind('\n');
  const std::string_view in_line = line == std::string_view::npos ? before : before.substr(line + 1);
  return absl::StrCat("line ", 1 + std::count(before.begin(), before.end(), '\n'), ", column ",
                      1 + CountCharacters(in_line));
}

// One pass over a text of valid UTF-8. Functions return whether they succeeded; the first problem is kept.
class Parser {
 public:
  Parser(std::string_view text, Dialect dialect) : text_(text), dialect_(dialect) {}

  // Null: the text is checked and nothing is built.
  absl::Status Parse(json* out) {
    if (text_.substr(0, 3) == "\xEF\xBB\xBF") at_ = 3;
    if (Value(out) && SkipSpace() && at_ < text_.size()) Wrong("nothing is expected after the value");
    return problem_.empty() ? absl::OkStatus() : absl::InvalidArgumentError(problem_);
  }

 private:
  bool Fail(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

  std::string Place(size_t at) const { return PlaceIn(text_, at); }

  // The text at a place, for a message: a word, or one character.
  std::string Found(size_t at) const {
    if (at >= text_.size()) return "the text ends";
    const auto in_word = [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '-' || c == '+'; };
    size_t end = at;
    while (end < text_.size() && end - at < kMostShown && in_word(text_[end])) ++end;
    if (end == at) end += CharacterAt(text_, at).bytes;
    const std::string found(text_.substr(at, end - at));
    if (found == "\n" || found == "\r") return "the line ends";
    if (absl::ascii_iscntrl(found[0])) return absl::StrFormat("found the byte 0x%02x", static_cast<uint8_t>(found[0]));
    return absl::StrCat("found ", found == "\"" ? "a \"" : ShowJson(json(found)));
  }

  bool WrongAt(size_t at, const std::string& what) {
    return Fail(absl::StrCat("not valid JSON: ", Place(at), ": ", what));
  }
  bool Wrong(const std::string& expected) { return WrongAt(at_, absl::StrCat(Found(at_), "; ", expected)); }

  bool SkipSpace() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
      ++at_;
    }
    return true;
  }

  bool Take(std::string_view token) {
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }

  bool Value(json* out) {
    SkipSpace();
    const char first = at_ < text_.size() ? text_[at_] : '\0';
    if (first == '{' || first == '[') {
      if (++depth_ > kMaxDepth) return Fail(absl::StrCat("nested deeper than ", kMaxDepth, " levels"));
      if (!(first == '{' ? Object(out) : Array(out))) return false;
      --depth_;
      return true;
    }
    if (first == '"') {
      std::string text;
      if (!String(out == nullptr ? nullptr : &text)) return false;
      if (out != nullptr) *out = std::move(text);
      return true;
    }
    if (first == '-' || absl::ascii_isdigit(first)) return Number(out);
    if (Take("true")) return Give(true, out);
    if (Take("false")) return Give(false, out);
    if (Take("null")) return Give(nullptr, out);
    if (dialect_ == Dialect::kPython && Take("NaN")) return Give(std::numeric_limits<double>::quiet_NaN(), out);
    if (dialect_ == Dialect::kPython && Take("Infinity")) return Give(std::numeric_limits<double>::infinity(), out);
    return Wrong("a value is expected");
  }

  static bool Give(json value, json* out) {
    if (out != nullptr) *out = std::move(value);
    return true;
  }

  bool Object(json* out) {
    if (++objects_ > kMaxObjects) return Fail(absl::StrCat("has more than ", kMaxObjects, " objects {...}"));
    ++at_;
    if (out != nullptr) *out = json::object();
    SkipSpace();
    if (Take("}")) return true;
    while (true) {
      SkipSpace();
      const size_t begin = at_;
      std::string key;
      if (at_ == text_.size() || text_[at_] != '"') return Wrong("a key in double quotes is expected");
      if (!String(out == nullptr ? nullptr : &key)) return false;
      SkipSpace();
      if (!Take(":")) return Wrong("a colon is expected after the key");
      if (out == nullptr) {
        if (!Value(nullptr)) return false;
      } else {
        const auto [place, added] = out->get_ref<json::object_t&>().emplace(key, nullptr);
        if (!added && dialect_ == Dialect::kStrict) {
          return Fail(absl::StrCat(Place(begin), ": key ", ShowJson(json(key)), " stands twice in one object"));
        }
        if (!Value(&place->second)) return false;
      }
      SkipSpace();
      if (Take("}")) {
        if (out != nullptr && dialect_ == Dialect::kPython) DecodeFloat(*out);
        return true;
      }
      if (!Take(",")) return Wrong("a comma or } is expected");
    }
  }

  // {"__float__": "Infinity"}, as transformers writes a number that is not finite into config.json.
  static void DecodeFloat(json& object) {
    const auto tag = object.size() == 1 ? object.find("__float__") : object.end();
    if (tag == object.end() || !tag->is_string()) return;
    const std::string name = tag->get<std::string>();
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (name == "NaN") object = std::numeric_limits<double>::quiet_NaN();
    if (name == "Infinity") object = kInfinity;
    if (name == "-Infinity") object = -kInfinity;
  }

  bool Array(json* out) {
    ++at_;
    if (out != nullptr) *out = json::array();
    SkipSpace();
    if (Take("]")) return true;
    while (true) {
      json value;
      if (!Value(out == nullptr ? nullptr : &value)) return false;
      if (out != nullptr) out->get_ref<json::array_t&>().push_back(std::move(value));
      SkipSpace();
      if (Take("]")) return true;
      if (!Take(",")) return Wrong("a comma or ] is expected");
    }
  }

  bool String(std::string* out) {
    const size_t begin = at_++;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"') {
        ++at_;
        return true;
      }
      if (static_cast<uint8_t>(c) < 0x20) {
        return Wrong(absl::StrCat("the string of ", Place(begin),
                                  " has no end before it (a line break in a string is \\n, a tab \\t)"));
      }
      if (c == '\\') {
        if (!Escape(out)) return false;
        continue;
      }
      size_t end = at_ + 1;
      while (end < text_.size() && text_[end] != '"' && text_[end] != '\\' &&
             static_cast<uint8_t>(text_[end]) >= 0x20) {
        ++end;
      }
      if (out != nullptr) out->append(text_.substr(at_, end - at_));
      at_ = end;
    }
    return WrongAt(begin, "this string has no end; a closing \" is expected");
  }

  bool Escape(std::string* out) {
    constexpr std::string_view kNames = "\"\\/bfnrt", kCharacters = "\"\\/\b\f\n\r\t";
    const size_t begin = at_;
    const char name = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    const size_t index = name == '\0' ? std::string_view::npos : kNames.find(name);
    if (index != std::string_view::npos) {
      if (out != nullptr) out->push_back(kCharacters[index]);
      at_ += 2;
      return true;
    }
    char32_t code = 0, low = 0;
    if (!Unit(code)) {
      return WrongAt(begin, R"(a backslash; \" \\ \/ \b \f \n \r \t or \u with four hexadecimal digits is expected)");
    }
    if (code >= 0xD800 && code < 0xE000) {
      if (code >= 0xDC00 || !Unit(low) || low < 0xDC00 || low >= 0xE000) {
        return WrongAt(begin, "half of a surrogate pair; both halves are expected");
      }
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    if (out != nullptr) AppendCharacter(code, *out);
    return true;
  }

  // "\u" and four digits.
  bool Unit(char32_t& code) {
    if (text_.substr(at_, 2) != "\\u" || at_ + 6 > text_.size()) return false;
    const char* const digits = &text_[at_ + 2];
    if (!std::all_of(digits, digits + 4, absl::ascii_isxdigit)) return false;
    uint32_t value = 0;
    std::from_chars(digits, digits + 4, value, 16);
    code = value;
    at_ += 6;
    return true;
  }

  bool Digits() {
    const size_t begin = at_;
    while (at_ < text_.size() && absl::ascii_isdigit(text_[at_])) ++at_;
    return at_ > begin;
  }

  bool Number(json* out) {
    const size_t begin = at_;
    const bool negative = Take("-");
    if (negative && dialect_ == Dialect::kPython && Take("Infinity")) {
      return Give(-std::numeric_limits<double>::infinity(), out);
    }
    bool valid = Take("0") || Digits(), integer = true;
    if (valid && Take(".")) {
      integer = false;
      valid = Digits();
    }
    if (valid && (Take("e") || Take("E"))) {
      integer = false;
      if (!Take("-")) Take("+");
      valid = Digits();
    }
    if (valid && at_ < text_.size() && absl::ascii_isalnum(text_[at_])) valid = false;  // 01, 1x
    if (!valid) return WrongAt(begin, absl::StrCat(Found(begin), ", which is no number of JSON"));
    const std::string_view token = text_.substr(begin, at_ - begin);
    const char* const end = token.data() + token.size();
    int64_t whole = 0;
    uint64_t large = 0;
    if (integer && negative && std::from_chars(token.data(), end, whole).ec == std::errc()) return Give(whole, out);
    if (integer && !negative && std::from_chars(token.data(), end, large).ec == std::errc()) return Give(large, out);
    double number = 0.0;
    static_cast<void>(absl::SimpleAtod(View(token), &number));
    if (!std::isfinite(number) && dialect_ == Dialect::kStrict) {
      return WrongAt(begin, absl::StrCat(Found(begin), "; a number below 1.8e308 in size is expected"));
    }
    return Give(number, out);
  }

  const std::string_view text_;
  const Dialect dialect_;
  size_t at_ = 0, depth_ = 0, objects_ = 0;
  std::string problem_;
};

absl::StatusOr<json> Parse(std::string_view text, Dialect dialect) {
  const size_t bad = FirstInvalidByte(text);
  if (bad < text.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("not valid JSON: %s: the byte 0x%02x is not UTF-8; UTF-8 is expected", PlaceIn(text, bad),
                        static_cast<uint8_t>(text[bad])));
  }
  absl::Status status = Parser(text, dialect).Parse(nullptr);
  if (!status.ok()) return status;
  json value;
  status = Parser(text, dialect).Parse(&value);
  if (!status.ok()) return status;
  return value;
}

}  // namespace

absl::StatusOr<json> ParseStrictJson(std::string_view text) { return Parse(text, Dialect::kStrict); }

absl::StatusOr<json> ParsePythonJson(std::string_view text) { return Parse(text, Dialect::kPython); }

bool SaxParse(std::string_view text, nlohmann::json_sax<json>& reader) {
  const size_t nul = text.find('\0');
  if (nul == std::string_view::npos) return json::sax_parse(text.begin(), text.end(), &reader);
  const std::string what = absl::StrCat("a NUL byte at ", nul + 1);
  return reader.parse_error(nul + 1, what, json::parse_error::create(101, nul + 1, what, nullptr));
}

}  // namespace edgewise
