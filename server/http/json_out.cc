#include "server/http/json_out.h"

#include <charconv>
#include <cmath>

#include "base/utf8.h"

namespace edgewise::server {
namespace {

constexpr char kHex[] = "0123456789abcdef";
constexpr char kReplacement[] = "\xEF\xBF\xBD";

template <typename Value>
std::string Shortest(Value value) {
  char text[40];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

}  // namespace

void JsonOut::Separate() {
  if (comma_) text_ += ',';
  comma_ = true;
}

JsonOut& JsonOut::Open(char bracket) {
  Separate();
  text_ += bracket;
  comma_ = false;
  return *this;
}

JsonOut& JsonOut::Close(char bracket) {
  text_ += bracket;
  comma_ = true;
  return *this;
}

JsonOut& JsonOut::Key(std::string_view key) {
  Separate();
  Quote(key);
  text_ += ':';
  comma_ = false;
  return *this;
}

JsonOut& JsonOut::String(std::string_view value) {
  Separate();
  Quote(value);
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
  Separate();
  text_.append(json.data(), json.size());
  return *this;
}

}  // namespace edgewise::server
