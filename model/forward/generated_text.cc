#include "model/forward/generated_text.h"

#include <algorithm>
#include <utility>

namespace edgewise {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";  // U+FFFD

struct Prefix {
  size_t bytes = 0;      // of the character, or of the longest beginning of one
  bool whole = false;    // a character
  bool partial = false;  // the text ends within the character
};

// The character at the beginning of `text`, which is not empty.
Prefix FirstCharacter(const std::string& text) {
  const unsigned char first = static_cast<unsigned char>(text[0]);
  size_t length = 1;
  unsigned char low = 0x80, high = 0xBF;  // allowed second bytes
  if (first < 0x80) {
    return {1, true, false};
  } else if (first >= 0xC2 && first <= 0xDF) {
    length = 2;
  } else if (first >= 0xE0 && first <= 0xEF) {
    length = 3;
    if (first == 0xE0) low = 0xA0;   // no overlong forms
    if (first == 0xED) high = 0x9F;  // no surrogates
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
  } else {
    return {1, false, false};
  }
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {i, false, true};
    const unsigned char byte = static_cast<unsigned char>(text[i]);
    if (byte < low || byte > high) return {i, false, false};
    low = 0x80;
    high = 0xBF;
  }
  return {length, true, false};
}

// The longest end of `text` that begins `stop` without being all of it.
size_t Overlap(const std::string& text, const std::string& stop) {
  for (size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length) {
    if (text.compare(text.size() - length, length, stop, 0, length) == 0) return length;
  }
  return 0;
}

}  // namespace

void GeneratedText::TakeCharacters(bool end) {
  while (!bytes_.empty()) {
    const Prefix prefix = FirstCharacter(bytes_);
    if (prefix.partial && !end) return;
    text_ += prefix.whole ? bytes_.substr(0, prefix.bytes) : kReplacement;
    bytes_.erase(0, prefix.bytes);
  }
}

std::string GeneratedText::Add(const std::string& bytes) {
  if (stopped_) return "";
  bytes_ += bytes;
  TakeCharacters(false);
  size_t sure = std::string::npos, held = 0;
  for (const std::string& stop : stop_) {
    sure = std::min(sure, text_.find(stop));
    held = std::max(held, Overlap(text_, stop));
  }
  stopped_ = sure != std::string::npos;
  if (!stopped_) sure = text_.size() - held;
  const std::string given = text_.substr(0, sure);
  text_.erase(0, sure);
  return given;
}

std::string GeneratedText::Finish() {
  if (stopped_) return "";
  TakeCharacters(true);
  return std::exchange(text_, "");
}

}  // namespace edgewise
