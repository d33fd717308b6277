// The characters that SentencePiece replaces: the field precompiled_charsmap of the normalizer Precompiled.
#ifndef EDGEWISE_MODEL_TOKENIZERS_PRECOMPILED_H_
#define EDGEWISE_MODEL_TOKENIZERS_PRECOMPILED_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/tokenizers/aligned_text.h"

namespace edgewise::tokenizers {

// Immutable; may be used from any thread.
class Precompiled {
 public:
  // `charsmap`: the bytes of the trie (uint32, little-endian), the trie (a double array of uint32), then replacements
  // in UTF-8, each ended by a NUL. INVALID_ARGUMENT: it is none.
  static absl::StatusOr<Precompiled> Read(std::string_view charsmap);

  // As `tokenizers` does: a grapheme cluster of less than six bytes is looked up as a whole, and where nothing is
  // found, and in longer ones, each character. Whether the text changed. INVALID_ARGUMENT: the trie points outside the
  // replacements.
  absl::StatusOr<bool> Normalize(AlignedText& text) const;

 private:
  // The replacement of the shortest beginning of `text` that the trie knows; nothing where it knows none.
  absl::StatusOr<std::optional<std::string_view>> Find(std::string_view text) const;

  std::vector<uint32_t> trie_;
  std::string replacements_;
};

}  // namespace edgewise::tokenizers

#endif  // EDGEWISE_MODEL_TOKENIZERS_PRECOMPILED_H_
