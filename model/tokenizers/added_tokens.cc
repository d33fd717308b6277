#include "model/tokenizers/added_tokens.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "model/tokenizers/fields.h"
#include "model/tokenizers/unicode.h"

namespace edgewise::tokenizers {
namespace {

using nlohmann::json;

bool EndsWithWord(std::string_view text) {
  size_t at = text.size();
  while (at > 0 && (static_cast<uint8_t>(text[--at]) & 0xC0) == 0x80) {
  }
  return !text.empty() && IsWordCharacter(CharacterAt(text, at).code);
}

// The most bytes that a normalizer may make of `bytes`. Unicode's own forms make at most 11 of one, alphabets of bytes
// 2.
size_t MostNormalized(size_t bytes) {
  constexpr size_t kOfByte = 32, kBesides = 64 << 10, kMost = size_t{1} << 31;
  return std::min(kOfByte * bytes + kBesides, kMost);
}

bool StartsWithWord(std::string_view text) { return !text.empty() && IsWordCharacter(CharacterAt(text, 0).code); }

}  // namespace

absl::StatusOr<AddedTokens> AddedTokens::Read(const json& list, const std::vector<json>& more,
                                              const Vocabulary& vocabulary, const Normalizer* normalizer) {
  AddedTokens added;
  if (!list.is_array() && !list.is_null()) {
    return absl::InvalidArgumentError(absl::StrCat("added_tokens is ", ShowJson(list), "; a list is expected"));
  }
  const size_t count = list.size() + more.size();
  if (count > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("added_tokens has ", count, " entries; allowed are at most ", kMost));
  }
  auto next = static_cast<int32_t>(vocabulary.size());
  for (size_t i = 0; i < count; ++i) {
    JsonObject fields(i < list.size() ? list[i] : more[i - list.size()], absl::StrCat("added_tokens[", i, "]"));
    Added token;
    const int32_t id = fields.Integer("id", 0, kMostIds - 1);
    token.content = RequiredString(fields, "content");
    token.single_word = RequiredBoolean(fields, "single_word");
    token.strip_left = RequiredBoolean(fields, "lstrip");
    token.strip_right = RequiredBoolean(fields, "rstrip");
    token.normalized = RequiredBoolean(fields, "normalized");
    const bool special = RequiredBoolean(fields, "special");
    RETURN_IF_ERROR(fields.Finish());
    if (token.content.empty()) continue;  // as `tokenizers` does
    int32_t known = added.Id(token.content);
    if (known < 0) known = vocabulary.Id(token.content);
    if (known < 0) known = next++;
    if (known != id) {
      return absl::InvalidArgumentError(absl::StrCat("added_tokens[", i, "].id is ", id, ", but ",
                                                     ShowJson(json(token.content)), " has the id ", known,
                                                     ": that of model.vocab, or the next free one"));
    }
    token.text = token.content;
    if (token.normalized && normalizer != nullptr) {
      Work work(NoBounds());
      work.most_bytes = MostNormalized(token.content.size());
      ASSIGN_OR_RETURN(AlignedText text, AlignedText::Of(token.content, 0, work));
      const absl::Status normalized = normalizer->Normalize(text, work);
      if (!normalized.ok()) {
        return absl::InvalidArgumentError(absl::StrCat("added_tokens[", i, "].content is ",
                                                       ShowJson(json(token.content)), ": ", normalized.message()));
      }
      token.text = text.text();
    }
    if (token.text.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("added_tokens[", i, "].content is ", ShowJson(json(token.content)),
                                                     "; the normalizer leaves nothing"));
    }
    if (special) added.special_.insert(token.content);
    added.ids_[token.content] = id;
    added.most_id_ = std::max(added.most_id_, id);
    added.tokens_[id] = std::move(token);
  }
  RETURN_IF_ERROR(added.Index());
  return added;
}

absl::Status AddedTokens::Index() {
  for (const auto& [id, token] : tokens_) {
    if ((token.normalized ? normalized_ : as_given_).Add(token.text, id)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("added_tokens has two tokens that are ", ShowJson(json(token.text)), " once they are normalised"));
  }
  return absl::OkStatus();
}

int32_t AddedTokens::Id(std::string_view content) const {
  const auto found = ids_.find(View(content));
  return found == ids_.end() ? -1 : found->second;
}

const std::string* AddedTokens::Text(int32_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : &found->second.text;
}

absl::Status AddedTokens::Find(std::string_view text, const ByteTrie& trie, Work& work,
                               absl::FunctionRef<absl::Status(uint32_t, uint32_t, int32_t)> take) const {
  auto hand_on = [&](size_t begin, size_t end, int32_t id) {
    return begin < end ? take(static_cast<uint32_t>(begin), static_cast<uint32_t>(end), id) : absl::OkStatus();
  };
  size_t last = 0;  // where the last token ended
  size_t charged = 0;
  for (size_t at = 0; !trie.empty() && at < text.size();) {
    size_t bytes = 0;
    int32_t id = -1;
    const size_t read = trie.Prefixes(text.substr(at), [&](size_t length, int32_t value) {
      bytes = length;
      id = value;
    });
    if (read > 0) {
      RETURN_IF_ERROR(work.Charge(8 * read + at - charged));
      charged = at;
    }
    if (id < 0) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + bytes;
    at = end;
    const Added& token = tokens_.at(id);
    if (token.single_word && (EndsWithWord(text.substr(0, begin)) || StartsWithWord(text.substr(end)))) continue;
    if (token.strip_left) begin = last + SpacesAtEnd(text.substr(last, begin - last));
    if (token.strip_right) end += SpacesAtStart(text.substr(end));
    RETURN_IF_ERROR(hand_on(last, begin, -1));
    RETURN_IF_ERROR(hand_on(begin, end, id));
    last = end;
  }
  return hand_on(last, text.size(), -1);
}

absl::Status AddedTokens::Extract(std::string_view text, const Normalizer* normalizer, Work& work, Take take) const {
  return Find(text, as_given_, work, [&](uint32_t begin, uint32_t end, int32_t id) -> absl::Status {
    work.most_bytes = MostNormalized(end - begin);
    ASSIGN_OR_RETURN(AlignedText part, AlignedText::Of(text.substr(begin, end - begin), begin, work));
    if (id >= 0) return take(std::move(part), id);
    if (normalizer != nullptr) RETURN_IF_ERROR(normalizer->Normalize(part, work));
    const auto size = static_cast<uint32_t>(part.text().size());
    return Find(part.text(), normalized_, work, [&](uint32_t from, uint32_t to, int32_t added) -> absl::Status {
      if (from == 0 && to == size) return take(std::move(part), added);
      ASSIGN_OR_RETURN(AlignedText piece, part.Slice(from, to, work));
      return take(std::move(piece), added);
    });
  });
}

}  // namespace edgewise::tokenizers
