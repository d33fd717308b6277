#include "model/tokenizers/precompiled.h"

#include <unicode/brkiter.h>
#include <unicode/locid.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"

namespace edgewise::tokenizers {
namespace {

// Characters that a text may become: of each byte, and besides. The greatest growth of Unicode's own forms is 6.
constexpr size_t kMostOfByte = 8, kMostOfAny = 256;
constexpr size_t kLongestCluster = 5;  // bytes of a grapheme cluster that is looked up as a whole

// A unit of the double array: the label of the edge that leads here, whether a value ends here, and where its children
// are.
uint32_t Label(uint32_t unit) { return unit & (1u << 31 | 0xFF); }
bool HasValue(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t Value(uint32_t unit) { return unit & ((1u << 31) - 1); }
uint32_t Children(uint32_t unit) { return unit >> 10 << ((unit & 1u << 9) >> 6); }

uint32_t LittleEndian(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

// The ends of the grapheme clusters in UTF-16 units, ascending.
absl::StatusOr<std::vector<int32_t>> ClusterEnds(const icu::UnicodeString& units) {
  UErrorCode error = U_ZERO_ERROR;
  const std::unique_ptr<icu::BreakIterator> breaks(
      icu::BreakIterator::createCharacterInstance(icu::Locale::getRoot(), error));
  if (U_FAILURE(error)) return absl::InternalError(absl::StrCat("ICU has no grapheme clusters: ", u_errorName(error)));
  breaks->setText(units);
  std::vector<int32_t> ends;
  for (int32_t end = breaks->next(); end != icu::BreakIterator::DONE; end = breaks->next()) ends.push_back(end);
  return ends;
}

// The changes that put `now` in the place of as many characters as `before` has.
void Replace(std::string_view before, std::string_view now, std::vector<Change>& changes) {
  const int32_t more = static_cast<int32_t>(CountCharacters(now)) - static_cast<int32_t>(CountCharacters(before));
  for (const char32_t c : ToCharacters(now)) changes.push_back({c, 0});
  for (int32_t i = 0; i < more; ++i) changes[changes.size() - 1 - i].kind = 1;
  if (more < 0 && !changes.empty()) changes.back().kind += more;
}

}  // namespace

absl::StatusOr<Precompiled> Precompiled::Read(std::string_view charsmap) {
  const size_t bytes = charsmap.size() < 4 ? 0 : LittleEndian(charsmap, 0);
  if (bytes < 4 || bytes > charsmap.size() - 4) {
    return absl::InvalidArgumentError(absl::StrCat("holds no trie: it has ", charsmap.size(), " bytes"));
  }
  Precompiled precompiled;
  const size_t units = bytes / 4;
  for (size_t i = 0; i < units; ++i) precompiled.trie_.push_back(LittleEndian(charsmap, 4 + 4 * i));
  precompiled.replacements_ = charsmap.substr(4 + 4 * units);
  const size_t invalid = FirstInvalidByte(precompiled.replacements_);
  if (invalid != precompiled.replacements_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("has replacements that are not valid UTF-8 at byte ", invalid));
  }
  return precompiled;
}

absl::StatusOr<std::optional<std::string_view>> Precompiled::Find(std::string_view text) const {
  uint32_t node = Children(trie_[0]);
  for (const char c : text) {
    if (c == '\0') break;
    node ^= static_cast<uint8_t>(c);
    if (node >= trie_.size()) return std::nullopt;
    const uint32_t unit = trie_[node];
    if (Label(unit) != static_cast<uint8_t>(c)) return std::nullopt;
    node ^= Children(unit);
    if (!HasValue(unit)) continue;
    const size_t begin = node < trie_.size() ? Value(trie_[node]) : replacements_.size() + 1;
    if (begin > replacements_.size() ||
        (begin < replacements_.size() && (static_cast<uint8_t>(replacements_[begin]) & 0xC0) == 0x80)) {
      return absl::InvalidArgumentError("tokenizer.json: precompiled_charsmap points outside its replacements");
    }
    return std::string_view(replacements_).substr(begin, replacements_.find('\0', begin) - begin);
  }
  return std::nullopt;
}

absl::StatusOr<bool> Precompiled::Normalize(AlignedText& text) const {
  const std::string& whole = text.text();
  if (IsAscii(whole) && whole.find("\r\n") == std::string::npos) {  // every character is a cluster
    bool any = false;
    for (size_t i = 0; i < whole.size() && !any; ++i) {
      ASSIGN_OR_RETURN(const std::optional<std::string_view> found, Find(std::string_view(whole).substr(i, 1)));
      any = found.has_value();
    }
    if (!any) return false;
  }
  const auto units = icu::UnicodeString::fromUTF8(icu::StringPiece(whole.data(), static_cast<int32_t>(whole.size())));
  ASSIGN_OR_RETURN(const std::vector<int32_t> ends, ClusterEnds(units));
  std::vector<Change> changes;
  changes.reserve(whole.size());
  bool any = false;
  size_t at = 0;
  int32_t unit = 0;
  for (const int32_t cluster_end : ends) {
    if (changes.size() > kMostOfByte * whole.size() + kMostOfAny) {
      return absl::InvalidArgumentError(absl::StrCat("tokenizer.json: precompiled_charsmap makes more than ",
                                                     kMostOfByte, " characters of each byte"));
    }
    const size_t begin = at;
    while (unit < cluster_end && at < whole.size()) {
      const Character character = CharacterAt(whole, at);
      at += character.bytes;
      unit += character.code < 0x10000 ? 1 : 2;
    }
    const std::string_view cluster = std::string_view(whole).substr(begin, at - begin);
    if (cluster.size() <= kLongestCluster) {
      ASSIGN_OR_RETURN(const std::optional<std::string_view> found, Find(cluster));
      if (found) {
        Replace(cluster, *found, changes);
        any = true;
        continue;
      }
    }
    for (size_t i = 0; i < cluster.size();) {
      const Character character = CharacterAt(cluster, i);
      const std::string_view one = cluster.substr(i, character.bytes);
      ASSIGN_OR_RETURN(const std::optional<std::string_view> found, Find(one));
      if (found) {
        Replace(one, *found, changes);
        any = true;
      } else {
        changes.push_back({character.code, 0});
      }
      i += character.bytes;
    }
  }
  if (any) text.Transform(changes);
  return any;
}

}  // namespace edgewise::tokenizers
