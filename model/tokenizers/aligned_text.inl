// Templates of aligned_text.h.
#include "base/utf8.h"

namespace edgewise::tokenizers {

template <typename Keep>
bool AlignedText::Filter(Keep keep) {
  const std::vector<char32_t> characters = ToCharacters(text_);
  std::vector<bool> kept(characters.size());
  bool all = true;
  for (size_t i = 0; i < characters.size(); ++i) {
    kept[i] = keep(characters[i]);
    all &= kept[i];
  }
  if (!all) FilterBy(characters, kept);
  return !all;
}

}  // namespace edgewise::tokenizers
