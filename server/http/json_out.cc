#include "server/http/json_out.h"

#include <charconv>
#include <cmath>

#include "base/utf8.h"

namespace edgewise::server {
namespace {

constexpr char kHex[] = "0123456789abcdef";
constexpr char kReplacement[] = "\xEF\xBF\xBD";

// The text of a number.
struct Shortest {
  template <typename Value>
  explicit Shortest(Value value) : end(std::to_chars(text, text + sizeof text, value).ptr) {}
  operator std::string_view() const { return {text, static_cast<size_t>(end - text)}; }

  char text[40];
  const char* end;
};

}  // namespace

bool JsonOut::Continue() {
  next_ = text_.size() + kWorkPiece;
  if (status_.ok()) status_ = bounds_->Continue();
  if (!status_.ok()) text_ = std::string();
  return status_.ok();
}

bool JsonOut::Separate() {
  if (!status_.ok() || (text_.size() >= next_ && !Continue())) return false;
  if (comma_) text_ += ',';
  comma_ = true;
  return true;
}

JsonOut& JsonOut::Open(char bracket) {
  if (Separate()) text_ += bracket;
  comma_ = false;
  return *this;
}

JsonOut& JsonOut::Close(char bracket) {
  if (status_.ok()) text_ += bracket;
  comma_ = true;
  return *this;
}

JsonOut& JsonOut::Key(std::string_view key) {
  if (Separate()) {
    Quote(key);
    text_ += ':';
  }
  comma_ = false;
  return *this;
}

JsonOut& JsonOut::String(std::string_view value) {
  if (Separate()) Quote(value);
  return *this;
}

void JsonOut::Quote(std::string_view value) {
  text_ += '"';
  for (size_t at = 0; at < value.size();) {
    const auto byte = static_cast<uint8_t>(value[at]);
    if (byte >= 0x80) {
      const Prefix next = FirstCharacter(value.substr(at));
      const bool whole = next.kind == Prefix::Kind::kWhole;
      text_.append(whole ? value.substr(at, next.bytes) : std::string_view(kReplacement));
      at += next.bytes;
      continue;
    }
    ++at;
    if (byte == '"' || byte == '\\') {
      (text_ += '\\') += static_cast<char>(byte);
    } else if (byte == '\n') {
      text_ += "\\n";
    } else if (byte < 0x20 || byte == 0x7F) {
      ((text_ += "\\u00") += kHex[byte >> 4]) += kHex[byte & 15];
    } else {
      text_ += static_cast<char>(byte);
    }
  }
  text_ += '"';
}

JsonOut& JsonOut::Integer(int64_t value) { return Raw(Shortest(value)); }
JsonOut& JsonOut::Unsigned(uint64_t value) { return Raw(Shortest(value)); }
JsonOut& JsonOut::Number(double value) { return std::isfinite(value) ? Raw(Shortest(value)) : Null(); }
JsonOut& JsonOut::Number(float value) { return std::isfinite(value) ? Raw(Shortest(value)) : Null(); }

JsonOut& JsonOut::Raw(std::string_view json) {
  if (Separate()) text_.append(json.data(), json.size());
  return *this;
}

}  // namespace edgewise::server
