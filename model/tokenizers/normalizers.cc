#include "model/tokenizers/normalizers.h"

#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "model/tokenizers/byte_alphabet.h"
#include "model/tokenizers/fields.h"
#include "model/tokenizers/pattern.h"
#include "model/tokenizers/precompiled.h"
#include "model/tokenizers/unicode.h"
#include "model/tokenizers/utf8.h"
#include "text/status_macros.h"

namespace edgewise::tokenizers {
namespace {

using nlohmann::json;

bool IsAscii(const std::string& text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  }
  return true;
}

void ToForm(AlignedText& text, NormalForm form) {
  if (!IsAscii(text.text())) text.Transform(Normalized(text.text(), form));
}

void ToLowercase(AlignedText& text) {
  std::vector<Change> changes;
  std::vector<char32_t> lower;
  bool any = false;
  for (const char32_t c : ToCharacters(text.text())) {
    lower.clear();
    AppendLowercase(c, lower);
    any |= lower.size() != 1 || lower[0] != c;
    for (size_t i = 0; i < lower.size(); ++i) changes.push_back({lower[i], i > 0});
  }
  if (any) text.Transform(changes);
}

class BertNormalizer : public Normalizer {
 public:
  BertNormalizer(bool clean, bool ideographs, bool accents, bool lowercase)
      : clean_(clean), ideographs_(ideographs), accents_(accents), lowercase_(lowercase) {}

  absl::Status Normalize(AlignedText& text) const override {
    if (clean_) Clean(text);
    if (ideographs_) SeparateIdeographs(text);
    if (accents_) {
      ToForm(text, NormalForm::kNfd);
      text.Filter([](char32_t c) { return !IsNonspacingMark(c); });
    }
    if (lowercase_) ToLowercase(text);
    return absl::OkStatus();
  }

 private:
  static void Clean(AlignedText& text) {
    text.Filter([](char32_t c) { return c != 0 && c != 0xFFFD && !IsBertControl(c); });
    std::vector<Change> changes;
    bool any = false;
    for (const char32_t c : ToCharacters(text.text())) {
      const char32_t cleaned = IsWhitespace(c) ? U' ' : c;
      any |= cleaned != c;
      changes.push_back({cleaned, 0});
    }
    if (any) text.Transform(changes);
  }

  static void SeparateIdeographs(AlignedText& text) {
    std::vector<Change> changes;
    bool any = false;
    for (const char32_t c : ToCharacters(text.text())) {
      if (IsCjkIdeograph(c)) {
        changes.insert(changes.end(), {{U' ', 0}, {c, 1}, {U' ', 1}});
        any = true;
      } else {
        changes.push_back({c, 0});
      }
    }
    if (any) text.Transform(changes);
  }

  const bool clean_, ideographs_, accents_, lowercase_;
};

class FormNormalizer : public Normalizer {
 public:
  explicit FormNormalizer(NormalForm form) : form_(form) {}
  absl::Status Normalize(AlignedText& text) const override {
    ToForm(text, form_);
    return absl::OkStatus();
  }

 private:
  const NormalForm form_;
};

class LowercaseNormalizer : public Normalizer {
 public:
  absl::Status Normalize(AlignedText& text) const override {
    ToLowercase(text);
    return absl::OkStatus();
  }
};

class AccentsNormalizer : public Normalizer {
 public:
  absl::Status Normalize(AlignedText& text) const override {
    text.Filter([](char32_t c) { return !IsCombiningMark(c); });
    return absl::OkStatus();
  }
};

class StripNormalizer : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  absl::Status Normalize(AlignedText& text) const override {
    const std::vector<char32_t> characters = ToCharacters(text.text());
    size_t begin = 0, end = characters.size();
    while (left_ && begin < end && IsWhitespace(characters[begin])) ++begin;
    while (right_ && begin < end && IsWhitespace(characters[end - 1])) --end;
    size_t at = 0;
    text.Filter([&](char32_t) {
      const bool keep = at >= begin && at < end;
      ++at;
      return keep;
    });
    return absl::OkStatus();
  }

 private:
  const bool left_, right_;
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  absl::Status Normalize(AlignedText& text) const override {
    ASSIGN_OR_RETURN(const std::vector<Part> parts, pattern_.Find(text.text()));
    text.Replace(parts, content_);
    return absl::OkStatus();
  }

 private:
  const Pattern pattern_;
  const std::string content_;
};

class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(const std::string& text) : characters_(ToCharacters(text)) {}
  absl::Status Normalize(AlignedText& text) const override {
    text.Prepend(characters_);
    return absl::OkStatus();
  }

 private:
  const std::vector<char32_t> characters_;
};

class PrecompiledNormalizer : public Normalizer {
 public:
  explicit PrecompiledNormalizer(Precompiled charsmap) : charsmap_(std::move(charsmap)) {}
  absl::Status Normalize(AlignedText& text) const override { return charsmap_.Normalize(text); }

 private:
  const Precompiled charsmap_;
};

class ByteLevelNormalizer : public Normalizer {
 public:
  absl::Status Normalize(AlignedText& text) const override {
    ToByteAlphabet(text);
    return absl::OkStatus();
  }
};

class SequenceNormalizer : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  absl::Status Normalize(AlignedText& text) const override {
    for (const auto& step : steps_) RETURN_IF_ERROR(step->Normalize(text));
    return absl::OkStatus();
  }

 private:
  const std::vector<std::unique_ptr<Normalizer>> steps_;
};

std::unique_ptr<Normalizer> ReadBert(JsonObject& fields) {
  const bool clean = RequiredBoolean(fields, "clean_text");
  const bool ideographs = RequiredBoolean(fields, "handle_chinese_chars");
  const bool lowercase = RequiredBoolean(fields, "lowercase");
  const bool accents =
      fields.Value("strip_accents", false).is_null() ? lowercase : fields.Boolean("strip_accents", lowercase);
  return std::make_unique<BertNormalizer>(clean, ideographs, accents, lowercase);
}

std::unique_ptr<Normalizer> ReadPrecompiled(JsonObject& fields) {
  const json& value = fields.Value("precompiled_charsmap", true);
  std::string bytes;
  if (value.is_null()) return nullptr;
  if (!value.is_string() || !absl::Base64Unescape(value.get<std::string>(), &bytes)) {
    fields.FailAt("precompiled_charsmap", value, "bytes in base64 are expected");
    return nullptr;
  }
  absl::StatusOr<Precompiled> charsmap = Precompiled::Read(bytes);
  if (charsmap.ok()) return std::make_unique<PrecompiledNormalizer>(*std::move(charsmap));
  fields.Fail(absl::StrCat(fields.Path("precompiled_charsmap"), " ", charsmap.status().message()));
  return nullptr;
}

absl::StatusOr<std::unique_ptr<Normalizer>> ReadSequence(JsonObject& fields) {
  const json& list = fields.Value("normalizers", true);
  if (!list.is_array()) fields.FailAt("normalizers", list, "a list is expected");
  std::vector<std::unique_ptr<Normalizer>> steps;
  for (size_t i = 0; list.is_array() && i < list.size(); ++i) {
    ASSIGN_OR_RETURN(std::unique_ptr<Normalizer> step,
                     ReadNormalizer(list[i], absl::StrCat(fields.Path("normalizers"), "[", i, "]")));
    steps.push_back(std::move(step));
  }
  return std::make_unique<SequenceNormalizer>(std::move(steps));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Normalizer>> ReadNormalizer(const json& object, const std::string& path) {
  enum {
    kBert,
    kNfc,
    kNfd,
    kNfkc,
    kNfkd,
    kLowercase,
    kAccents,
    kStrip,
    kReplace,
    kPrepend,
    kPrecompiled,
    kBytes,
    kMany
  };
  JsonObject fields(object, path);
  const int type = ReadType(fields, {"BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents",
                                     "Strip", "Replace", "Prepend", "Precompiled", "ByteLevel", "Sequence"});
  if (type < 0) return fields.Finish();
  std::unique_ptr<Normalizer> normalizer;
  switch (type) {
    case kBert:
      normalizer = ReadBert(fields);
      break;
    case kNfc:
      normalizer = std::make_unique<FormNormalizer>(NormalForm::kNfc);
      break;
    case kNfd:
      normalizer = std::make_unique<FormNormalizer>(NormalForm::kNfd);
      break;
    case kNfkc:
      normalizer = std::make_unique<FormNormalizer>(NormalForm::kNfkc);
      break;
    case kNfkd:
      normalizer = std::make_unique<FormNormalizer>(NormalForm::kNfkd);
      break;
    case kLowercase:
      normalizer = std::make_unique<LowercaseNormalizer>();
      break;
    case kAccents:
      normalizer = std::make_unique<AccentsNormalizer>();
      break;
    case kStrip: {
      const bool left = RequiredBoolean(fields, "strip_left");
      normalizer = std::make_unique<StripNormalizer>(left, RequiredBoolean(fields, "strip_right"));
      break;
    }
    case kReplace: {
      std::optional<Pattern> pattern = RequiredPattern(fields);
      const std::string content = RequiredString(fields, "content");
      if (pattern) normalizer = std::make_unique<ReplaceNormalizer>(*std::move(pattern), content);
      break;
    }
    case kPrepend:
      normalizer = std::make_unique<PrependNormalizer>(RequiredString(fields, "prepend"));
      break;
    case kPrecompiled:
      normalizer = ReadPrecompiled(fields);
      break;
    case kBytes:
      normalizer = std::make_unique<ByteLevelNormalizer>();
      break;
    default: {
      ASSIGN_OR_RETURN(normalizer, ReadSequence(fields));
    }
  }
  RETURN_IF_ERROR(fields.Finish());
  return normalizer;
}

}  // namespace edgewise::tokenizers
