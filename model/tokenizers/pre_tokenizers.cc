#include "model/tokenizers/pre_tokenizers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "model/tokenizers/byte_alphabet.h"
#include "model/tokenizers/fields.h"
#include "model/tokenizers/metaspace.h"
#include "model/tokenizers/pattern.h"
#include "model/tokenizers/unicode.h"

namespace edgewise::tokenizers {
namespace {

using nlohmann::json;

constexpr char kGpt2[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The words of a text that is split, in their order.
class Splitter {
 public:
  Splitter(AlignedText text, SplitBehavior behavior, Work& work, WordSink take)
      : text_(std::move(text)), behavior_(behavior), work_(work), take_(take) {}

  const std::string& text() const { return text_.text(); }

  // The next part of the text.
  absl::Status Take(const Part& part) {
    const bool before = std::exchange(before_, part.matched);
    bool joins = false;  // the word before
    switch (behavior_) {
      case SplitBehavior::kRemoved:
        if (part.matched) return absl::OkStatus();
        break;
      case SplitBehavior::kIsolated:
        break;
      case SplitBehavior::kContiguous:
        joins = part.matched == before;
        break;
      case SplitBehavior::kMergedWithPrevious:
        joins = part.matched && !before;
        break;
      case SplitBehavior::kMergedWithNext:
        joins = !part.matched && before;
        break;
    }
    if (joins && any_) {
      word_.end = part.end;
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(HandOn());
    word_ = {part.begin, part.end};
    any_ = true;
    return absl::OkStatus();
  }
  absl::Status Finish() {
    if (word_.begin == 0 && word_.end == text().size() && word_.end > 0) return take_(std::move(text_));
    return HandOn();
  }

 private:
  absl::Status HandOn() {
    if (word_.begin == word_.end) return absl::OkStatus();
    RETURN_IF_ERROR(work_.Charge(word_.end - word_.begin + 16));
    ASSIGN_OR_RETURN(AlignedText word, text_.Slice(word_.begin, word_.end, work_));
    return take_(std::move(word));
  }

  AlignedText text_;
  const SplitBehavior behavior_;
  Work& work_;
  const WordSink take_;
  Span word_;  // that is not handed on, since the next part may join it
  bool any_ = false;
  bool before_ = false;  // whether the last part was a match
};

// Splits at the single characters for which `matches` holds.
template <typename Matches>
absl::Status CutAtCharacters(AlignedText text, SplitBehavior behavior, Matches matches, Work& work, WordSink take) {
  Splitter words(std::move(text), behavior, work, take);
  const std::string& all = words.text();
  uint32_t last = 0;
  for (size_t at = 0; at < all.size();) {
    const Character character = CharacterAt(all, at);
    const auto begin = static_cast<uint32_t>(at), end = begin + character.bytes;
    at = end;
    if (!matches(character.code)) continue;
    if (last < begin) RETURN_IF_ERROR(words.Take({last, begin, false}));
    RETURN_IF_ERROR(words.Take({begin, end, true}));
    last = end;
  }
  if (last < all.size()) RETURN_IF_ERROR(words.Take({last, static_cast<uint32_t>(all.size()), false}));
  return words.Finish();
}

class BertPreTokenizer : public PreTokenizer {
 public:
  absl::Status Cut(AlignedText text, Work& work, WordSink take) const override {
    return CutAtCharacters(std::move(text), SplitBehavior::kRemoved, IsWhitespace, work, [&](AlignedText word) {
      return CutAtCharacters(std::move(word), SplitBehavior::kIsolated, IsPunctuation, work, take);
    });
  }
};

class WhitespaceSplit : public PreTokenizer {
 public:
  absl::Status Cut(AlignedText text, Work& work, WordSink take) const override {
    return CutAtCharacters(std::move(text), SplitBehavior::kRemoved, IsWhitespace, work, take);
  }
};

// Runs of word characters, and runs of what is neither word character nor whitespace.
class Whitespace : public PreTokenizer {
 public:
  absl::Status Cut(AlignedText text, Work& work, WordSink take) const override {
    enum Kind { kSpace, kWord, kOther };
    Splitter words(std::move(text), SplitBehavior::kRemoved, work, take);
    const std::string& all = words.text();
    Kind last = kSpace;
    Part run;
    for (size_t at = 0; at < all.size();) {
      const Character character = CharacterAt(all, at);
      const Kind kind = IsWordCharacter(character.code) ? kWord : IsWhitespace(character.code) ? kSpace : kOther;
      if (kind != last) {
        if (run.begin < run.end) RETURN_IF_ERROR(words.Take(run));
        run.begin = static_cast<uint32_t>(at);
      }
      at += character.bytes;
      run.end = static_cast<uint32_t>(at);
      run.matched = kind == kSpace;
      last = kind;
    }
    if (run.begin < run.end) RETURN_IF_ERROR(words.Take(run));
    return words.Finish();
  }
};

class Punctuation : public PreTokenizer {
 public:
  explicit Punctuation(SplitBehavior behavior) : behavior_(behavior) {}
  absl::Status Cut(AlignedText text, Work& work, WordSink take) const override {
    return CutAtCharacters(std::move(text), behavior_, IsPunctuation, work, take);
  }

 private:
  const SplitBehavior behavior_;
};

class Digits : public PreTokenizer {
 public:
  explicit Digits(bool individual) : behavior_(individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous) {}
  absl::Status Cut(AlignedText text, Work& work, WordSink take) const override {
    return CutAtCharacters(std::move(text), behavior_, IsNumeric, work, take);
  }

 private:
  const SplitBehavior behavior_;
};

// Cuts where a script begins, and drops what is before the first.
class UnicodeScripts : public PreTokenizer {
 public:
  absl::Status Cut(AlignedText text, Work& work, WordSink take) const override {
    Splitter words(std::move(text), SplitBehavior::kRemoved, work, take);
    const std::string& all = words.text();
    int32_t last = 0;
    Part run{0, 0, true};
    for (size_t at = 0; at < all.size();) {
      const Character character = CharacterAt(all, at);
      const int32_t script = ScriptOf(character.code);
      if (script != 0 && script != last) {
        if (run.begin < run.end) RETURN_IF_ERROR(words.Take(run));
        run = {static_cast<uint32_t>(at), static_cast<uint32_t>(at), false};
        last = script;
      }
      at += character.bytes;
      run.end = static_cast<uint32_t>(at);
    }
    if (run.begin < run.end) RETURN_IF_ERROR(words.Take(run));
    return words.Finish();
  }
};

class Split : public PreTokenizer {
 public:
  Split(Pattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  absl::Status Cut(AlignedText text, Work& work, WordSink take) const override {
    Splitter words(std::move(text), behavior_, work, take);
    RETURN_IF_ERROR(pattern_.Find(words.text(), work, [&](const Part& part) {
      return words.Take({part.begin, part.end, part.matched != invert_});
    }));
    return words.Finish();
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
  absl::Status Cut(AlignedText text, Work& work, WordSink take) const override {
    if (add_prefix_space_ && !text.text().starts_with(' ')) RETURN_IF_ERROR(text.Prepend(" ", work));
    auto spell = [&](AlignedText word) -> absl::Status {
      RETURN_IF_ERROR(ToByteAlphabet(word, work));
      return take(std::move(word));
    };
    if (!pattern_) return spell(std::move(text));
    Splitter words(std::move(text), SplitBehavior::kIsolated, work, spell);
    RETURN_IF_ERROR(pattern_->Find(words.text(), work, [&](const Part& part) { return words.Take(part); }));
    return words.Finish();
  }

 private:
  const bool add_prefix_space_;
  const std::optional<Pattern> pattern_;
};

// Puts the replacement in the place of every space, and cuts before each.
class MetaspacePreTokenizer : public PreTokenizer {
 public:
  explicit MetaspacePreTokenizer(Metaspace options)
      : options_(options), replacement_(ToUtf8(options.replacement)), space_(Pattern::Literal(" ")) {}
  absl::Status Cut(AlignedText text, Work& work, WordSink take) const override {
    const bool prepend = options_.prepend == Metaspace::Prepend::kAlways ||
                         (options_.prepend == Metaspace::Prepend::kFirst && text.begin() == 0);
    if (prepend && !text.text().starts_with(' ') && !text.text().starts_with(replacement_)) {
      RETURN_IF_ERROR(text.Prepend(replacement_, work));
    }
    auto replace = [&](AlignedText word) -> absl::Status {
      RETURN_IF_ERROR(ReplaceAll(word, space_, replacement_, work));
      return take(std::move(word));
    };
    if (!options_.split) return replace(std::move(text));
    const auto begins = [&](char32_t c) { return c == U' ' || c == options_.replacement; };
    return CutAtCharacters(std::move(text), SplitBehavior::kMergedWithNext, begins, work, replace);
  }

 private:
  const Metaspace options_;
  const std::string replacement_;
  const Pattern space_;
};

class Sequence : public PreTokenizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<PreTokenizer>> steps) : steps_(std::move(steps)) {}
  absl::Status Cut(AlignedText text, Work& work, WordSink take) const override {
    return From(0, std::move(text), work, take);
  }

 private:
  // The steps from the one of this index on.
  absl::Status From(size_t step, AlignedText text, Work& work, WordSink take) const {
    if (step == steps_.size()) return take(std::move(text));
    return steps_[step]->Cut(std::move(text), work,
                             [&](AlignedText word) { return From(step + 1, std::move(word), work, take); });
  }

  const std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

// The field "behavior" of Split and Punctuation.
SplitBehavior ReadBehavior(JsonObject& object, bool required) {
  return static_cast<SplitBehavior>(object.Choice(
      "behavior", {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"}, required ? -1 : 1));
}

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

absl::StatusOr<std::unique_ptr<PreTokenizer>> ReadSequence(JsonObject& fields, Steps& count) {
  const json& list = fields.Value("pretokenizers", true);
  if (!list.is_array()) fields.FailAt("pretokenizers", list, "a list is expected");
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  for (size_t i = 0; list.is_array() && i < list.size(); ++i) {
    ASSIGN_OR_RETURN(std::unique_ptr<PreTokenizer> step,
                     ReadPreTokenizer(list[i], absl::StrCat(fields.Path("pretokenizers"), "[", i, "]"), count));
    steps.push_back(std::move(step));
  }
  return std::make_unique<Sequence>(std::move(steps));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PreTokenizer>> ReadPreTokenizer(const json& object, const std::string& path,
                                                               Steps& steps) {
  RETURN_IF_ERROR(steps.Add(path));
  enum {
    kBert,
    kByteLevel,
    kSplit,
    kWhitespace,
    kWhitespaceSplit,
    kPunctuation,
    kDigits,
    kMetaspace,
    kScripts,
    kSequence
  };
  JsonObject fields(object, path);
  const int type = ReadType(fields, {"BertPreTokenizer", "ByteLevel", "Split", "Whitespace", "WhitespaceSplit",
                                     "Punctuation", "Digits", "Metaspace", "UnicodeScripts", "Sequence"});
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
    case kScripts:
      made = std::make_unique<UnicodeScripts>();
      break;
    default: {
      ASSIGN_OR_RETURN(made, ReadSequence(fields, steps));
    }
  }
  RETURN_IF_ERROR(fields.Finish());
  return made;
}

}  // namespace edgewise::tokenizers
