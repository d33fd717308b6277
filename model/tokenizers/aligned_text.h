// A text that is changed step by step and still knows where each byte came from.
#ifndef EDGEWISE_MODEL_TOKENIZERS_ALIGNED_TEXT_H_
#define EDGEWISE_MODEL_TOKENIZERS_ALIGNED_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizers/unicode.h"

namespace edgewise::tokenizers {

// Bytes [begin, end) of a text.
struct Span {
  uint32_t begin = 0, end = 0;
  bool operator==(const Span&) const = default;
};

// A part of a text, as a pattern cuts it: every byte is in one part. A match may be empty.
struct Part {
  uint32_t begin = 0, end = 0;
  bool matched = false;
};

// What becomes of the matched parts when a text is split.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Valid UTF-8 at all times. Values; one thread at a time.
class AlignedText {
 public:
  // `text` is the text as given, of less than 4 GiB.
  explicit AlignedText(std::string text);

  const std::string& text() const { return text_; }
  // The first byte of the given text that this one came from, when it was cut out.
  uint32_t begin() const { return begin_; }
  // Where bytes [begin, end) of the text came from: whole characters of the given text. An empty range stays empty.
  Span Origin(uint32_t begin, uint32_t end) const;

  // Replaces the whole text by the characters of `changes`. The first `skipped` characters are dropped before.
  void Transform(const std::vector<Change>& changes, size_t skipped = 0);
  // Keeps the characters for which `keep` holds.
  template <typename Keep>
  void Filter(Keep keep);
  // Puts characters in front, with the origin of the first one. An empty text stays empty.
  void Prepend(const std::vector<char32_t>& characters);
  // Puts `content` in the place of every matched part, with the origin of the part's last character.
  void Replace(const std::vector<Part>& parts, std::string_view content);

  AlignedText Slice(uint32_t begin, uint32_t end) const;
  // The pieces that are left, in order; some may be empty.
  std::vector<AlignedText> Split(const std::vector<Part>& parts, SplitBehavior behavior) const;

 private:
  AlignedText() = default;
  void FilterBy(const std::vector<char32_t>& characters, const std::vector<bool>& kept);

  std::string text_;
  std::vector<Span> origins_;  // of each byte
  uint32_t begin_ = 0;
};

// The parts of `text` into single characters for which `matches` holds, and what is between them.
template <typename Matches>
std::vector<Part> FindCharacters(std::string_view text, Matches matches);

}  // namespace edgewise::tokenizers

#include "model/tokenizers/aligned_text.inl"

#endif  // EDGEWISE_MODEL_TOKENIZERS_ALIGNED_TEXT_H_
