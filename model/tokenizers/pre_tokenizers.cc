#include "model/tokenizers/pre_tokenizers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "model/tokenizers/byte_alphabet.h"
#include "model/tokenizers/fields.h"
#include "model/tokenizers/metaspace.h"
#include "model/tokenizers/pattern.h"
#include "model/tokenizers/unicode.h"
#include "model/tokenizers/utf8.h"
#include "text/status_macros.h"

namespace edgewise::tokenizers {
namespace {

using nlohmann::json;

constexpr char kGpt2[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Replaces every word by the pieces that `cut` makes of it: StatusOr<vector<AlignedText>>(AlignedText).
template <typename CutWord>
absl::Status CutWords(std::vector<Piece>& pieces, CutWord cut) {
  std::vector<Piece> all;
  all.reserve(pieces.size());
  for (Piece& piece : pieces) {
    if (piece.added_token >= 0) {
      all.push_back(std::move(piece));
      continue;
    }
    absl::StatusOr<std::vector<AlignedText>> words = cut(std::move(piece.text));
    if (!words.ok()) return words.status();
    for (AlignedText& word : *words) {
      if (!word.text().empty()) all.push_back({std::move(word)});
    }
  }
  pieces = std::move(all);
  return absl::OkStatus();
}

template <typename Matches>
absl::Status CutAtCharacters(std::vector<Piece>& pieces, SplitBehavior behavior, Matches matches) {
  return CutWords(pieces, [&](const AlignedText& word) -> absl::StatusOr<std::vector<AlignedText>> {
    return word.Split(FindCharacters(word.text(), matches), behavior);
  });
}

class BertPreTokenizer : public PreTokenizer {
 public:
  absl::Status Cut(std::vector<Piece>& pieces) const override {
    RETURN_IF_ERROR(CutAtCharacters(pieces, SplitBehavior::kRemoved, IsWhitespace));
    return CutAtCharacters(pieces, SplitBehavior::kIsolated, IsPunctuation);
  }
};

class WhitespaceSplit : public PreTokenizer {
 public:
  absl::Status Cut(std::vector<Piece>& pieces) const override {
    return CutAtCharacters(pieces, SplitBehavior::kRemoved, IsWhitespace);
  }
};

// Runs of word characters, and runs of what is neither word character nor whitespace.
class Whitespace : public PreTokenizer {
 public:
  absl::Status Cut(std::vector<Piece>& pieces) const override {
    return CutWords(pieces, [&](const AlignedText& word) -> absl::StatusOr<std::vector<AlignedText>> {
      enum Kind { kSpace, kWord, kOther };
      std::vector<Part> parts;
      Kind last = kSpace;
      const std::string& text = word.text();
      for (size_t at = 0; at < text.size();) {
        const Character character = CharacterAt(text, at);
        const Kind kind = IsWordCharacter(character.code) ? kWord : IsWhitespace(character.code) ? kSpace : kOther;
        const auto begin = static_cast<uint32_t>(at);
        at += character.bytes;
        if (parts.empty() || kind != last) parts.push_back({begin, begin, kind == kSpace});
        parts.back().end = static_cast<uint32_t>(at);
        last = kind;
      }
      return word.Split(parts, SplitBehavior::kRemoved);
    });
  }
};

class Punctuation : public PreTokenizer {
 public:
  explicit Punctuation(SplitBehavior behavior) : behavior_(behavior) {}
  absl::Status Cut(std::vector<Piece>& pieces) const override {
    return CutAtCharacters(pieces, behavior_, IsPunctuation);
  }

 private:
  const SplitBehavior behavior_;
};

class Digits : public PreTokenizer {
 public:
  explicit Digits(bool individual) : behavior_(individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous) {}
  absl::Status Cut(std::vector<Piece>& pieces) const override { return CutAtCharacters(pieces, behavior_, IsNumeric); }

 private:
  const SplitBehavior behavior_;
};

class Split : public PreTokenizer {
 public:
  Split(Pattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  absl::Status Cut(std::vector<Piece>& pieces) const override {
    return CutWords(pieces, [&](const AlignedText& word) -> absl::StatusOr<std::vector<AlignedText>> {
      ASSIGN_OR_RETURN(std::vector<Part> parts, pattern_.Find(word.text()));
      for (Part& part : parts) part.matched ^= invert_;
      return word.Split(parts, behavior_);
    });
  }

 private:
  const Pattern pattern_;
  const SplitBehavior behavior_;
  const bool invert_;
};

class ByteLevel : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, std::optional<Pattern> pattern)
      : add_prefix_space_(add_prefix_space), pattern_(std::move(pattern)) {}
  absl::Status Cut(std::vector<Piece>& pieces) const override {
    RETURN_IF_ERROR(CutWords(pieces, [&](AlignedText word) -> absl::StatusOr<std::vector<AlignedText>> {
      if (add_prefix_space_ && !word.text().starts_with(' ')) word.Prepend({U' '});
      if (!pattern_) return std::vector<AlignedText>{std::move(word)};
      ASSIGN_OR_RETURN(const std::vector<Part> parts, pattern_->Find(word.text()));
      return word.Split(parts, SplitBehavior::kIsolated);
    }));
    for (Piece& piece : pieces) {
      if (piece.added_token < 0) ToByteAlphabet(piece.text);
    }
    return absl::OkStatus();
  }

 private:
  const bool add_prefix_space_;
  const std::optional<Pattern> pattern_;
};

class MetaspacePreTokenizer : public PreTokenizer {
 public:
  explicit MetaspacePreTokenizer(Metaspace options)
      : options_(options), replacement_(ToUtf8(options.replacement)), space_(Pattern::Literal(" ")) {}
  absl::Status Cut(std::vector<Piece>& pieces) const override {
    return CutWords(pieces, [&](AlignedText word) -> absl::StatusOr<std::vector<AlignedText>> {
      ASSIGN_OR_RETURN(const std::vector<Part> spaces, space_.Find(word.text()));
      word.Replace(spaces, replacement_);
      const bool prepend = options_.prepend == Metaspace::Prepend::kAlways ||
                           (options_.prepend == Metaspace::Prepend::kFirst && word.begin() == 0);
      if (prepend && !word.text().starts_with(replacement_)) word.Prepend({options_.replacement});
      if (!options_.split) return std::vector<AlignedText>{std::move(word)};
      return word.Split(FindCharacters(word.text(), [&](char32_t c) { return c == options_.replacement; }),
                        SplitBehavior::kMergedWithNext);
    });
  }

 private:
  const Metaspace options_;
  const std::string replacement_;
  const Pattern space_;
};

class Sequence : public PreTokenizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<PreTokenizer>> steps) : steps_(std::move(steps)) {}
  absl::Status Cut(std::vector<Piece>& pieces) const override {
    for (const auto& step : steps_) RETURN_IF_ERROR(step->Cut(pieces));
    return absl::OkStatus();
  }

 private:
  const std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

std::unique_ptr<PreTokenizer> ReadByteLevel(JsonObject& fields) {
  const bool add_prefix_space = RequiredBoolean(fields, "add_prefix_space");
  RequiredBoolean(fields, "trim_offsets");  // the post-processor's says what is trimmed
  std::optional<Pattern> pattern;
  if (fields.Boolean("use_regex", true)) {
    absl::StatusOr<Pattern> gpt2 = Pattern::Expression(kGpt2);
    if (!gpt2.ok()) fields.Fail(std::string(gpt2.status().message()));
    if (gpt2.ok()) pattern = *std::move(gpt2);
  }
  return std::make_unique<ByteLevel>(add_prefix_space, std::move(pattern));
}

std::unique_ptr<PreTokenizer> ReadSplit(JsonObject& fields) {
  std::optional<Pattern> pattern = RequiredPattern(fields);
  const SplitBehavior behavior = ReadBehavior(fields, true);
  const bool invert = RequiredBoolean(fields, "invert");
  if (!pattern) return nullptr;
  return std::make_unique<Split>(*std::move(pattern), behavior, invert);
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> ReadSequence(JsonObject& fields) {
  const json& list = fields.Value("pretokenizers", true);
  if (!list.is_array()) fields.FailAt("pretokenizers", list, "a list is expected");
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  for (size_t i = 0; list.is_array() && i < list.size(); ++i) {
    ASSIGN_OR_RETURN(std::unique_ptr<PreTokenizer> step,
                     ReadPreTokenizer(list[i], absl::StrCat(fields.Path("pretokenizers"), "[", i, "]")));
    steps.push_back(std::move(step));
  }
  return std::make_unique<Sequence>(std::move(steps));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PreTokenizer>> ReadPreTokenizer(const json& object, const std::string& path) {
  enum { kBert, kByteLevel, kSplit, kWhitespace, kWhitespaceSplit, kPunctuation, kDigits, kMetaspace, kSequence };
  JsonObject fields(object, path);
  const int type = ReadType(fields, {"BertPreTokenizer", "ByteLevel", "Split", "Whitespace", "WhitespaceSplit",
                                     "Punctuation", "Digits", "Metaspace", "Sequence"});
  if (type < 0) return fields.Finish();
  std::unique_ptr<PreTokenizer> made;
  switch (type) {
    case kBert:
      made = std::make_unique<BertPreTokenizer>();
      break;
    case kByteLevel:
      made = ReadByteLevel(fields);
      break;
    case kSplit:
      made = ReadSplit(fields);
      break;
    case kWhitespace:
      made = std::make_unique<Whitespace>();
      break;
    case kWhitespaceSplit:
      made = std::make_unique<WhitespaceSplit>();
      break;
    case kPunctuation:
      made = std::make_unique<Punctuation>(ReadBehavior(fields, false));
      break;
    case kDigits:
      made = std::make_unique<Digits>(RequiredBoolean(fields, "individual_digits"));
      break;
    case kMetaspace:
      made = std::make_unique<MetaspacePreTokenizer>(ReadMetaspace(fields));
      break;
    default: {
      ASSIGN_OR_RETURN(made, ReadSequence(fields));
    }
  }
  RETURN_IF_ERROR(fields.Finish());
  return made;
}

}  // namespace edgewise::tokenizers
