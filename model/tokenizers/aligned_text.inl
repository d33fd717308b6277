// Templates of aligned_text.h.
#include "model/tokenizers/utf8.h"

namespace edgewise::tokenizers {

template <typename Keep>
void AlignedText::Filter(Keep keep) {
  const std::vector<char32_t> characters = ToCharacters(text_);
  std::vector<bool> kept(characters.size());
  bool all = true;
  for (size_t i = 0; i < characters.size(); ++i) {
    kept[i] = keep(characters[i]);
    all &= kept[i];
  }
  if (!all) FilterBy(characters, kept);
}

template <typename Matches>
std::vector<Part> FindCharacters(std::string_view text, Matches matches) {
  std::vector<Part> parts;
  uint32_t last = 0;
  for (size_t at = 0; at < text.size();) {
    const Character character = CharacterAt(text, at);
    const uint32_t begin = static_cast<uint32_t>(at), end = begin + character.bytes;
    if (matches(character.code)) {
      if (last < begin) parts.push_back({last, begin, false});
      parts.push_back({begin, end, true});
      last = end;
    }
    at = end;
  }
  if (last < text.size()) parts.push_back({last, static_cast<uint32_t>(text.size()), false});
  return parts;
}

}  // namespace edgewise::tokenizers
