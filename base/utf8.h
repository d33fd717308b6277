// UTF-8, one character (Unicode scalar value) at a time. All functions may be called from any thread.
#ifndef EDGEWISE_BASE_UTF8_H_
#define EDGEWISE_BASE_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/string_view.h"

namespace edgewise {

// The same view for Abseil, which has a type of its own in Debian.
inline absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

struct Character {
  char32_t code = 0;
  uint32_t bytes = 1;  // of its UTF-8 form
};

// The beginning of bytes that need not be UTF-8.
struct Prefix {
  enum class Kind { kWhole, kInvalid, kUnfinished };
  Kind kind = Kind::kInvalid;
  // The length of the character; or of the longest beginning of one that the following bytes break (one U+FFFD replaces
  // it); or all bytes there are, which begin a character.
  size_t bytes = 1;
};

// The character that begins at `text[at]`. `text` is valid UTF-8 and `at` the first byte of a character.
Character CharacterAt(std::string_view text, size_t at);

// Whether a byte of valid UTF-8 is not the first one of its character.
inline bool ContinuesCharacter(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

// The last character of valid UTF-8 that is not empty.
char32_t LastCharacter(std::string_view text);

bool IsAscii(std::string_view text);

// The first character of `bytes`, which are not empty.
Prefix FirstCharacter(std::string_view bytes);

// The first byte that belongs to no character, or text.size() where the text is valid.
size_t FirstInvalidByte(std::string_view text);

void AppendCharacter(char32_t code, std::string& text);
std::string ToUtf8(char32_t code);

// The characters of valid UTF-8.
std::vector<char32_t> ToCharacters(std::string_view text);
size_t CountCharacters(std::string_view text);

}  // namespace edgewise

#endif  // EDGEWISE_BASE_UTF8_H_
