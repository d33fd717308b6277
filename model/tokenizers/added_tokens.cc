#include "model/tokenizers/added_tokens.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/tokenizers/fields.h"
#include "model/tokenizers/unicode.h"
#include "model/tokenizers/utf8.h"
#include "text/status_macros.h"

namespace edgewise::tokenizers {
namespace {

using nlohmann::json;

bool EndsWithWord(std::string_view text) {
  size_t at = text.size();
  while (at > 0 && (static_cast<uint8_t>(text[--at]) & 0xC0) == 0x80) {
  }
  return !text.empty() && IsWordCharacter(CharacterAt(text, at).code);
}

bool StartsWithWord(std::string_view text) { return !text.empty() && IsWordCharacter(CharacterAt(text, 0).code); }

// Where the whitespace at the end of `text` begins.
size_t SpacesAtEnd(std::string_view text) {
  size_t begin = text.size();
  for (size_t at = begin; at > 0;) {
    while (at > 0 && (static_cast<uint8_t>(text[--at]) & 0xC0) == 0x80) {
    }
    if (!IsWhitespace(CharacterAt(text, at).code)) break;
    begin = at;
  }
  return begin;
}

// Where the whitespace at the start of `text` ends.
size_t SpacesAtStart(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Character character = CharacterAt(text, at);
    if (!IsWhitespace(character.code)) break;
    at += character.bytes;
  }
  return at;
}

}  // namespace

absl::StatusOr<AddedTokens> AddedTokens::Read(const json& list, const Vocabulary& vocabulary,
                                              const Normalizer* normalizer) {
  AddedTokens added;
  if (list.is_null()) return added;
  if (!list.is_array()) {
    return absl::InvalidArgumentError(absl::StrCat("added_tokens is ", ShowJson(list), "; a list is expected"));
  }
  auto next = static_cast<int32_t>(vocabulary.size());
  for (size_t i = 0; i < list.size(); ++i) {
    JsonObject fields(list[i], absl::StrCat("added_tokens[", i, "]"));
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
      AlignedText text(token.content);
      RETURN_IF_ERROR(normalizer->Normalize(text));
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

void AddedTokens::Find(const AlignedText& text, const ByteTrie& trie, std::vector<Piece>& pieces) const {
  const std::string_view all = text.text();
  auto push = [&](size_t begin, size_t end, int32_t id) {
    if (begin < end) pieces.push_back({text.Slice(static_cast<uint32_t>(begin), static_cast<uint32_t>(end)), id});
  };
  size_t last = 0;  // where the last token ended
  for (size_t at = 0; !trie.empty() && at < all.size();) {
    size_t bytes = 0;
    int32_t id = -1;
    trie.Prefixes(all.substr(at), [&](size_t length, int32_t value) {
      bytes = length;
      id = value;
    });
    if (id < 0) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + bytes;
    at = end;
    const Added& token = tokens_.at(id);
    if (token.single_word && (EndsWithWord(all.substr(0, begin)) || StartsWithWord(all.substr(end)))) continue;
    if (token.strip_left) begin = std::max(SpacesAtEnd(all.substr(0, begin)), last);
    if (token.strip_right) end += SpacesAtStart(all.substr(end));
    push(last, begin, -1);
    push(begin, end, id);
    last = end;
  }
  push(last, all.size(), -1);
}

absl::StatusOr<std::vector<Piece>> AddedTokens::Extract(const AlignedText& text, const Normalizer* normalizer) const {
  std::vector<Piece> first, pieces;
  Find(text, as_given_, first);
  for (Piece& piece : first) {
    if (piece.added_token >= 0) {
      pieces.push_back(std::move(piece));
      continue;
    }
    if (normalizer != nullptr) RETURN_IF_ERROR(normalizer->Normalize(piece.text));
    Find(piece.text, normalized_, pieces);
  }
  return pieces;
}

}  // namespace edgewise::tokenizers
