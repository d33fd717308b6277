// A text that is changed step by step and still knows where each byte came from.
#ifndef EDGEWISE_MODEL_TOKENIZERS_ALIGNED_TEXT_H_
#define EDGEWISE_MODEL_TOKENIZERS_ALIGNED_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/tokenizers/unicode.h"
#include "model/tokenizers/work.h"

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

// Valid UTF-8 at all times. The bytes of long texts are reserved before they are allocated. Values; one thread at a
// time.
class AlignedText {
 public:
  // Nothing, of the text as given that begins at `begin`.
  AlignedText(uint32_t begin, WorkBounds& bounds) : begin_(begin), base_(begin), held_(bounds) {}
  // Bytes of the text as given, which has less than 4 GiB, from its byte `begin` on.
  static absl::StatusOr<AlignedText> Of(std::string_view text, uint32_t begin, Work& work);

  const std::string& text() const { return text_; }
  // The first byte of the given text that this one came from, when it was cut out.
  uint32_t begin() const { return begin_; }
  // Where bytes [begin, end) of the text came from: whole characters of the given text. An empty range stays empty.
  Span Origin(uint32_t begin, uint32_t end) const;

  // Replaces the whole text, a piece that is not counted, by the characters of `changes`. The first `skipped`
  // characters are dropped before.
  void Transform(const std::vector<Change>& changes, size_t skipped = 0);
  // Changes ASCII characters into others of ASCII.
  template <typename Map>
  void MapBytes(Map map) {
    for (char& byte : text_) byte = map(byte);
  }
  // Keeps the characters of a piece for which `keep` holds. Whether any is gone.
  template <typename Keep>
  bool Filter(Keep keep);
  // Keeps bytes [begin, end).
  absl::Status Strip(uint32_t begin, uint32_t end, Work& work);
  // Puts `front` in front, with the origin of the first character. An empty text stays empty. INVALID_ARGUMENT: it has
  // more than work.most_bytes then.
  absl::Status Prepend(std::string_view front, Work& work);
  // Appends bytes [begin, end) of a text from the same given one, or `content` with one origin. INVALID_ARGUMENT as
  // Prepend.
  absl::Status Append(const AlignedText& from, uint32_t begin, uint32_t end, Work& work);
  absl::Status Append(std::string_view content, Span origin, Work& work);
  // Where one byte came from.
  Span OriginAt(size_t at) const { return AsGiven() ? GivenOrigin(at) : origins_[at]; }
  // INVALID_ARGUMENT: it has more than work.most_bytes.
  absl::Status CheckSize(const Work& work, size_t more = 0) const;

  absl::StatusOr<AlignedText> Slice(uint32_t begin, uint32_t end, Work& work) const;

 private:
  bool AsGiven() const { return origins_.empty(); }
  Span GivenOrigin(size_t at) const;
  void WriteOrigins();
  absl::Status Grow(size_t bytes, bool origins, Work& work);
  void FilterBy(const std::vector<char32_t>& characters, const std::vector<bool>& kept);

  std::string text_;
  // The place of each byte in the given text. Empty: the first front_ bytes came from the first character, and behind
  // them every character takes as many bytes as it did in the given text, from base_ on.
  std::vector<Span> origins_;
  uint32_t begin_, base_;
  uint32_t front_ = 0;
  ReservedBytes held_;
};

// Changes a text piece by piece, so that its changes are never held all at once. A piece ends where `cuts` holds of the
// characters before and after: there the changes of both sides do not depend on each other. `change` takes an
// AlignedText, and says whether it changed it.
absl::Status ChangeInPieces(AlignedText& text, Work& work, absl::FunctionRef<bool(char32_t, char32_t)> cuts,
                            absl::FunctionRef<absl::StatusOr<bool>(AlignedText&)> change);

}  // namespace edgewise::tokenizers

#include "model/tokenizers/aligned_text.inl"

#endif  // EDGEWISE_MODEL_TOKENIZERS_ALIGNED_TEXT_H_
