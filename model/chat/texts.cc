#include "model/chat/texts.h"

#include <string.h>
#include <unicode/bytestream.h>
#include <unicode/casemap.h>
#include <unicode/stringoptions.h>

#include <algorithm>

namespace edgewise::chat {
namespace {

bool Continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// As str.isspace of Python has it.
bool IsSpace(std::string_view character) {
  if (character.size() == 1)
    return (character[0] >= 9 && character[0] <= 13) || (character[0] >= 28 && character[0] <= 32);
  for (const std::string_view space :
       {"\u0085", "\u00a0", "\u1680", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"}) {
    if (character == space) return true;
  }
  return character >= "\u2000" && character <= "\u200a";
}

std::string_view FirstOf(std::string_view text) {
  size_t size = 1;
  while (size < text.size() && Continues(text[size])) ++size;
  return text.substr(0, size);
}

std::string_view LastOf(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && Continues(text[begin])) --begin;
  return text.substr(begin);
}

}  // namespace

std::vector<std::string_view> CharactersOf(std::string_view text) {
  std::vector<std::string_view> characters;
  for (size_t begin = 0; begin < text.size(); begin += characters.back().size()) {
    characters.push_back(FirstOf(text.substr(begin)));
  }
  return characters;
}

size_t FindText(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  // memmem of glibc takes linear time, find of the standard library does not.
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? std::string_view::npos : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

std::string_view Strip(std::string_view text, const std::string* set, bool left, bool right) {
  std::vector<std::string_view> taken;
  if (set != nullptr) taken = CharactersOf(*set);
  std::sort(taken.begin(), taken.end());
  const auto goes = [&](std::string_view character) {
    return set == nullptr ? IsSpace(character) : std::binary_search(taken.begin(), taken.end(), character);
  };
  while (left && !text.empty() && goes(FirstOf(text))) text.remove_prefix(FirstOf(text).size());
  while (right && !text.empty() && goes(LastOf(text))) text.remove_suffix(LastOf(text).size());
  return text;
}

std::vector<std::string> Split(std::string_view text, std::string_view separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end = FindText(text, separator); end != std::string_view::npos; end = FindText(text, separator, begin)) {
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + separator.size();
  }
  parts.emplace_back(text.substr(begin));
  return parts;
}

std::string Replace(std::string_view text, std::string_view part, std::string_view by, size_t most) {
  std::string made;
  size_t begin = 0;
  for (size_t end = FindText(text, part); end != std::string_view::npos; end = FindText(text, part, begin)) {
    made += text.substr(begin, end - begin);
    made += by;
    begin = end + part.size();
    if (made.size() > most) return made;
  }
  made += text.substr(begin);
  return made;
}

std::string InCase(std::string_view name, const std::string& text) {
  std::string made;
  icu::StringByteSink<std::string> sink(&made);
  UErrorCode error = U_ZERO_ERROR;
  if (name == "upper") {
    icu::CaseMap::utf8ToUpper("", 0, text, sink, nullptr, error);
  } else if (name == "lower") {
    icu::CaseMap::utf8ToLower("", 0, text, sink, nullptr, error);
  } else {
    icu::CaseMap::utf8ToTitle("", U_TITLECASE_WHOLE_STRING | U_TITLECASE_NO_BREAK_ADJUSTMENT, nullptr, text, sink,
                              nullptr, error);
  }
  return U_SUCCESS(error) ? made : text;
}

}  // namespace edgewise::chat
