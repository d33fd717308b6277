// GPT-2's alphabet of bytes: one printable character stands for each byte.
#ifndef EDGEWISE_MODEL_TOKENIZERS_BYTE_ALPHABET_H_
#define EDGEWISE_MODEL_TOKENIZERS_BYTE_ALPHABET_H_

#include <cstdint>

#include "model/tokenizers/aligned_text.h"

namespace edgewise::tokenizers {

// The character of the space.
inline constexpr char32_t kByteSpace = 0x120;

char32_t ByteCharacter(uint8_t byte);
// The byte of a character, or -1 where it stands for none.
int ByteOf(char32_t c);

// Replaces every byte of the text's UTF-8 by its character, with the origin of the whole character. Errors:
// AlignedText::Append.
absl::Status ToByteAlphabet(AlignedText& text, Work& work);

}  // namespace edgewise::tokenizers

#endif  // EDGEWISE_MODEL_TOKENIZERS_BYTE_ALPHABET_H_
