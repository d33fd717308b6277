#include "model/tokenizers/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/field_error.h"
#include "base/status_macros.h"

namespace edgewise {
namespace {

constexpr size_t kShownBytes = 32;
constexpr size_t kShownCharacterBytes = 64;

std::string Show(const std::string& text) {
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, kShownBytes)), "\"");
}

bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Bytes of the UTF-8 character that begins at `text[i]`; 0: none begins there.
size_t CharacterBytes(const std::string& text, size_t i) {
  const unsigned char first = static_cast<unsigned char>(text[i]);
  const size_t bytes = first < 0x80                    ? 1
                       : first >= 0xC2 && first < 0xE0 ? 2
                       : (first & 0xF0) == 0xE0        ? 3
                       : first >= 0xF0 && first < 0xF5 ? 4
                                                       : 0;
  if (bytes == 0 || i + bytes > text.size()) return 0;
  for (size_t b = 1; b < bytes; ++b) {
    if ((static_cast<unsigned char>(text[i + b]) & 0xC0) != 0x80) return 0;
  }
  return bytes;
}

}  // namespace

// The ids so far, in bytes that are counted. Between pieces of the text it asks whether the work goes on.
class TokenIds {
 public:
  TokenIds(size_t most, WorkBounds& bounds) : most_(most), bounds_(bounds), held_(bounds) {}

  // The tokenizer has come to this byte.
  absl::Status At(size_t byte) {
    if (byte < next_) return absl::OkStatus();
    next_ = byte + kWorkPiece;
    return bounds_.Continue();
  }
  absl::Status Push(int32_t id) {
    if (most_ > 0 && ids_.size() == most_) return TooManyTokens(most_);
    if (ids_.size() == ids_.capacity()) {
      const size_t more = std::max<size_t>(2 * ids_.size(), 64);
      RETURN_IF_ERROR(held_.Resize((ids_.size() + more) * sizeof(int32_t)));  // both while they are copied
      ids_.reserve(more);
      RETURN_IF_ERROR(held_.Resize(more * sizeof(int32_t)));
    }
    ids_.push_back(id);
    return absl::OkStatus();
  }
  WorkBounds& bounds() { return bounds_; }
  std::vector<int32_t> Take() { return std::move(ids_); }

 private:
  const size_t most_;
  WorkBounds& bounds_;
  ReservedBytes held_;
  std::vector<int32_t> ids_;
  size_t next_ = kWorkPiece;
};

absl::Status TooManyTokens(size_t most) {
  return FieldError(
      "text", absl::StrCat("has more than ", most, " tokens; the model takes ", most, "; set truncate to cut it"));
}

bool HoldsAPlace(const std::string& entry) { return entry.size() > 2 && entry.front() == '<' && entry.back() == '>'; }

Tokenizer::Tokenizer(TokenizerConfig config) : config_(std::move(config)) {
  for (size_t i = 0; i < config_.vocabulary.size(); ++i) {
    const std::string& entry = config_.vocabulary[i];
    if (!HoldsAPlace(entry)) ids_[entry] = static_cast<int32_t>(i);
  }
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(const std::string& text, size_t most, WorkBounds& bounds) const {
  TokenIds ids(most, bounds);
  switch (config_.kind) {
    case TokenizerKind::kNone:
    case TokenizerKind::kHuggingFace:  // HfTokenizer
      return FieldError("text", absl::StrCat(": this model has no tokenizer; send token_ids",
                                             config_.unread.empty() ? "" : ", or mend its folder: ", config_.unread));
    case TokenizerKind::kByte:
      if (most > 0 && text.size() > most) return TooManyTokens(most);
      for (size_t i = 0; i < text.size(); ++i) {
        RETURN_IF_ERROR(ids.At(i));
        RETURN_IF_ERROR(ids.Push(static_cast<unsigned char>(text[i]) + config_.offset));
      }
      return ids.Take();
    case TokenizerKind::kChar:
      RETURN_IF_ERROR(EncodeCharacters(text, ids));
      return ids.Take();
    case TokenizerKind::kWord:
      RETURN_IF_ERROR(EncodeWords(text, ids));
      return ids.Take();
  }
  return absl::InternalError("text: unknown tokenizer");
}

std::string Tokenizer::Decode(int32_t token_id, bool first) const {
  if (config_.kind == TokenizerKind::kByte) {
    const int32_t byte = token_id - config_.offset;
    return byte >= 0 && byte < 256 ? std::string(1, static_cast<char>(byte)) : "";
  }
  if (token_id < 0 || static_cast<size_t>(token_id) >= config_.vocabulary.size()) return "";
  const std::string& entry = config_.vocabulary[token_id];
  if (HoldsAPlace(entry)) return "";
  return config_.kind == TokenizerKind::kWord && !first ? " " + entry : entry;
}

absl::Status Tokenizer::EncodeCharacters(const std::string& text, TokenIds& ids) const {
  for (size_t i = 0; i < text.size();) {
    RETURN_IF_ERROR(ids.At(i));
    const size_t bytes = CharacterBytes(text, i);
    if (bytes == 0) return FieldError("text", absl::StrCat(": byte ", i, " is not valid UTF-8"));
    const std::string character = text.substr(i, bytes);
    const auto found = ids_.find(character);
    if (found != ids_.end()) {
      RETURN_IF_ERROR(ids.Push(found->second));
    } else if (config_.unknown_token_id >= 0) {
      RETURN_IF_ERROR(ids.Push(config_.unknown_token_id));
    } else {
      return FieldError(
          "text", absl::StrCat(": character ", Show(character), " at byte ", i, " is not in the vocabulary; it knows ",
                               ids_.size(), " characters: ", ShowCharacters()));
    }
    i += bytes;
  }
  return absl::OkStatus();
}

std::string Tokenizer::ShowCharacters() const {
  std::vector<std::string> characters;  // in UTF-8, ascending
  for (const auto& [character, id] : ids_) characters.push_back(character);
  std::sort(characters.begin(), characters.end());
  auto continues = [&](size_t i) {  // characters[i] goes on with the run of letters or digits before it
    const std::string &last = characters[i - 1], &next = characters[i];
    return last.size() == 1 && next.size() == 1 && absl::ascii_isalnum(last[0]) && next[0] == last[0] + 1;
  };
  auto show = [](const std::string& text) {
    return absl::StrReplaceAll(absl::CHexEscape(text), {{"\\'", "'"}, {"\\\"", "\""}});
  };
  std::string shown;
  for (size_t begin = 0, end; begin < characters.size(); begin = end) {
    for (end = begin + 1; end < characters.size() && continues(end);) ++end;
    const std::string first = show(characters[begin]), last = show(characters[end - 1]);
    const std::string run = end - begin > 2 ? absl::StrCat(first, "-", last) : end - begin == 2 ? first + last : first;
    if (shown.size() + run.size() > kShownCharacterBytes) return shown + "...";
    shown += run;
  }
  return shown;
}

absl::Status Tokenizer::EncodeWords(const std::string& text, TokenIds& ids) const {
  for (size_t i = 0; i < text.size();) {
    RETURN_IF_ERROR(ids.At(i));
    if (IsSpace(text[i])) {
      ++i;
      continue;
    }
    const size_t begin = i;
    while (i < text.size() && !IsSpace(text[i])) ++i;
    RETURN_IF_ERROR(ids.At(i));
    ReservedBytes copies(ids.bounds());  // of long words
    if (i - begin > kWorkPiece) RETURN_IF_ERROR(copies.Resize(i - begin));
    std::string word = text.substr(begin, i - begin);
    if (config_.lowercase) {
      for (char& c : word) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
    const auto substitution = config_.substitutions.find(word);
    if (substitution != config_.substitutions.end()) {
      word = substitution->second;
      if (word.empty()) continue;
    }
    const auto found = ids_.find(word);
    if (found != ids_.end()) {
      RETURN_IF_ERROR(ids.Push(found->second));
    } else if (config_.unknown_token_id >= 0) {
      RETURN_IF_ERROR(ids.Push(config_.unknown_token_id));
    } else {
      return FieldError("text", absl::StrCat(": word ", Show(word), " at byte ", begin, " is not in the vocabulary of ",
                                             ids_.size()));
    }
  }
  return absl::OkStatus();
}

}  // namespace edgewise
