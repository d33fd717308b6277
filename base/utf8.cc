#include "base/utf8.h"

#include <algorithm>

namespace edgewise {
namespace {

uint8_t Byte(std::string_view text, size_t at) { return static_cast<uint8_t>(text[at]); }

}  // namespace

Character CharacterAt(std::string_view text, size_t at) {
  const uint8_t first = Byte(text, at);
  if (first < 0x80) return {first, 1};
  auto rest = [&](size_t i) { return static_cast<char32_t>(Byte(text, at + i) & 0x3F); };
  if (first < 0xE0) return {(first & 0x1Fu) << 6 | rest(1), 2};
  if (first < 0xF0) return {(first & 0x0Fu) << 12 | rest(1) << 6 | rest(2), 3};
  return {(first & 0x07u) << 18 | rest(1) << 12 | rest(2) << 6 | rest(3), 4};
}

Prefix FirstCharacter(std::string_view bytes) {
  const uint8_t first = Byte(bytes, 0);
  size_t length = 1;
  uint8_t least = 0x80, most = 0xBF;  // allowed second bytes
  if (first < 0x80) return {Prefix::Kind::kWhole, 1};
  if (first >= 0xC2 && first <= 0xDF) {
    length = 2;
  } else if (first >= 0xE0 && first <= 0xEF) {
    length = 3;
    if (first == 0xE0) least = 0xA0;  // no overlong forms
    if (first == 0xED) most = 0x9F;   // no surrogates
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
    if (first == 0xF0) least = 0x90;
    if (first == 0xF4) most = 0x8F;
  } else {
    return {Prefix::Kind::kInvalid, 1};
  }
  for (size_t i = 1; i < length; ++i, least = 0x80, most = 0xBF) {
    if (i == bytes.size()) return {Prefix::Kind::kUnfinished, i};
    if (Byte(bytes, i) < least || Byte(bytes, i) > most) return {Prefix::Kind::kInvalid, i};
  }
  return {Prefix::Kind::kWhole, length};
}

char32_t LastCharacter(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && ContinuesCharacter(text[at])) --at;
  return CharacterAt(text, at).code;
}

bool IsAscii(std::string_view text) {
  uint8_t any = 0;
  for (const char byte : text) any |= static_cast<uint8_t>(byte);
  return any < 0x80;
}

size_t FirstInvalidByte(std::string_view text) {
  constexpr size_t kRun = 64;
  for (size_t at = 0; at < text.size();) {
    if (Byte(text, at) < 0x80 && IsAscii(text.substr(at, kRun))) {
      at = std::min(at + kRun, text.size());
      continue;
    }
    const Prefix prefix = FirstCharacter(text.substr(at));
    if (prefix.kind != Prefix::Kind::kWhole) return at;
    at += prefix.bytes;
  }
  return text.size();
}

void AppendCharacter(char32_t code, std::string& text) {
  auto push = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    push(code);
  } else if (code < 0x800) {
    push(0xC0 | code >> 6);
    push(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    push(0xE0 | code >> 12);
    push(0x80 | (code >> 6 & 0x3F));
    push(0x80 | (code & 0x3F));
  } else {
    push(0xF0 | code >> 18);
    push(0x80 | (code >> 12 & 0x3F));
    push(0x80 | (code >> 6 & 0x3F));
    push(0x80 | (code & 0x3F));
  }
}

std::string ToUtf8(char32_t code) {
  std::string text;
  AppendCharacter(code, text);
  return text;
}

std::vector<char32_t> ToCharacters(std::string_view text) {
  std::vector<char32_t> characters;
  characters.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Character character = CharacterAt(text, at);
    characters.push_back(character.code);
    at += character.bytes;
  }
  return characters;
}

size_t CountCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

}  // namespace edgewise
