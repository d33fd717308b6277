#include "model/tokenizers/normalizers.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "model/tokenizers/byte_alphabet.h"
#include "model/tokenizers/fields.h"
#include "model/tokenizers/pattern.h"
#include "model/tokenizers/precompiled.h"
#include "model/tokenizers/unicode.h"

namespace edgewise::tokenizers {
namespace {

using nlohmann::json;

int32_t ClusterBreak(char32_t c) {
  return u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_GRAPHEME_CLUSTER_BREAK);
}

// Whether characters may be parted from plain ones beside them before a text is brought into a normal form or cut into
// grapheme clusters.
bool IsPlain(char32_t c) { return c < 0x80 || (ClusterBreak(c) == U_GCB_OTHER && StartsForm(c)); }
bool BetweenPlain(char32_t before, char32_t after) {
  constexpr char32_t kLatin = 0x250;  // which no mark joins to what is before it
  if (!IsPlain(after) || (before == '\r' && after == '\n')) return false;
  return IsPlain(before) || (after < kLatin && ClusterBreak(before) == U_GCB_EXTEND);
}
bool Anywhere(char32_t, char32_t) { return true; }

// The piece with the characters that `to` gives. Whether any is another one.
template <typename To>
bool MapCharacters(AlignedText& text, To to) {
  std::vector<Change> changes;
  bool any = false;
  for (const char32_t c : ToCharacters(text.text())) {
    changes.push_back({to(c), 0});
    any |= changes.back().character != c;
  }
  if (any) text.Transform(changes);
  return any;
}

// Makes a step that changes pieces, cut where `cuts` holds.
template <typename Change>
absl::Status InPieces(AlignedText& text, Work& work, bool (*cuts)(char32_t, char32_t), Change change) {
  return ChangeInPieces(text, work, cuts, [&](AlignedText& piece) -> absl::StatusOr<bool> { return change(piece); });
}

bool ToForm(AlignedText& text, NormalForm form) {
  if (IsAscii(text.text())) return false;
  text.Transform(Normalized(text.text(), form));
  return true;
}

char AsciiLower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool ToLowercase(AlignedText& text) {
  bool any = false;
  if (IsAscii(text.text())) {
    for (const char c : text.text()) any |= AsciiLower(c) != c;
    if (any) text.MapBytes(AsciiLower);
    return any;
  }
  std::vector<Change> changes;
  std::vector<char32_t> lower;
  for (const char32_t c : ToCharacters(text.text())) {
    lower.clear();
    AppendLowercase(c, lower);
    any |= lower.size() != 1 || lower[0] != c;
    for (size_t i = 0; i < lower.size(); ++i) changes.push_back({lower[i], i > 0});
  }
  if (any) text.Transform(changes);
  return any;
}

class BertNormalizer : public Normalizer {
 public:
  BertNormalizer(bool clean, bool ideographs, bool accents, bool lowercase)
      : clean_(clean), ideographs_(ideographs), accents_(accents), lowercase_(lowercase) {}

  absl::Status Normalize(AlignedText& text, Work& work) const override {
    return InPieces(text, work, BetweenPlain, [&](AlignedText& piece) {
      bool any = clean_ && Clean(piece);
      if (!IsAscii(piece.text())) {
        any |= ideographs_ && SeparateIdeographs(piece);
        if (accents_) {
          any |= ToForm(piece, NormalForm::kNfd);
          any |= piece.Filter([](char32_t c) { return !IsNonspacingMark(c); });
        }
      }
      any |= lowercase_ && ToLowercase(piece);
      return any;
    });
  }

 private:
  static bool Clean(AlignedText& text) {
    if (std::all_of(text.text().begin(), text.text().end(), [](char c) { return c >= ' ' && c < 0x7F; })) return false;
    const bool any = text.Filter([](char32_t c) { return c != 0 && c != 0xFFFD && !IsBertControl(c); });
    return MapCharacters(text, [](char32_t c) { return IsWhitespace(c) ? U' ' : c; }) || any;
  }

  static bool SeparateIdeographs(AlignedText& text) {
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
    return any;
  }

  const bool clean_, ideographs_, accents_, lowercase_;
};

class FormNormalizer : public Normalizer {
 public:
  explicit FormNormalizer(NormalForm form) : form_(form) {}
  absl::Status Normalize(AlignedText& text, Work& work) const override {
    return InPieces(text, work, BetweenPlain, [&](AlignedText& piece) { return ToForm(piece, form_); });
  }

 private:
  const NormalForm form_;
};

class LowercaseNormalizer : public Normalizer {
 public:
  absl::Status Normalize(AlignedText& text, Work& work) const override {
    return InPieces(text, work, Anywhere, ToLowercase);
  }
};

class AccentsNormalizer : public Normalizer {
 public:
  absl::Status Normalize(AlignedText& text, Work& work) const override {
    return InPieces(text, work, Anywhere, [](AlignedText& piece) {
      return !IsAscii(piece.text()) && piece.Filter([](char32_t c) { return !IsCombiningMark(c); });
    });
  }
};

// The rules of SentencePiece's nmt_nfkc for characters that are not seen.
class NmtNormalizer : public Normalizer {
 public:
  absl::Status Normalize(AlignedText& text, Work& work) const override {
    return InPieces(text, work, Anywhere, [](AlignedText& piece) {
      const bool any = piece.Filter([](char32_t c) { return !IsDropped(c); });
      return MapCharacters(piece, [](char32_t c) { return IsBlank(c) ? U' ' : c; }) || any;
    });
  }

 private:
  static bool IsDropped(char32_t c) {
    return (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
  }
  static bool IsBlank(char32_t c) {
    return c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
           c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
  }
};

class StripNormalizer : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  absl::Status Normalize(AlignedText& text, Work& work) const override {
    const std::string_view all = text.text();
    const size_t begin = left_ ? SpacesAtStart(all) : 0;
    const size_t end = right_ ? std::max(begin, SpacesAtEnd(all)) : all.size();
    return text.Strip(static_cast<uint32_t>(begin), static_cast<uint32_t>(end), work);
  }

 private:
  const bool left_, right_;
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  absl::Status Normalize(AlignedText& text, Work& work) const override {
    return ReplaceAll(text, pattern_, content_, work);
  }

 private:
  const Pattern pattern_;
  const std::string content_;
};

class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(std::string front) : front_(std::move(front)) {}
  absl::Status Normalize(AlignedText& text, Work& work) const override {
    RETURN_IF_ERROR(work.Charge(text.text().size() / 16 + front_.size()));
    return text.Prepend(front_, work);
  }

 private:
  const std::string front_;
};

class PrecompiledNormalizer : public Normalizer {
 public:
  explicit PrecompiledNormalizer(Precompiled charsmap) : charsmap_(std::move(charsmap)) {}
  absl::Status Normalize(AlignedText& text, Work& work) const override {
    return ChangeInPieces(text, work, BetweenPlain, [&](AlignedText& piece) { return charsmap_.Normalize(piece); });
  }

 private:
  const Precompiled charsmap_;
};

class ByteLevelNormalizer : public Normalizer {
 public:
  absl::Status Normalize(AlignedText& text, Work& work) const override { return ToByteAlphabet(text, work); }
};

class SequenceNormalizer : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  absl::Status Normalize(AlignedText& text, Work& work) const override {
    for (const auto& step : steps_) RETURN_IF_ERROR(step->Normalize(text, work));
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

absl::StatusOr<std::unique_ptr<Normalizer>> ReadSequence(JsonObject& fields, Steps& count) {
  const json& list = fields.Value("normalizers", true);
  if (!list.is_array()) fields.FailAt("normalizers", list, "a list is expected");
  std::vector<std::unique_ptr<Normalizer>> steps;
  for (size_t i = 0; list.is_array() && i < list.size(); ++i) {
    ASSIGN_OR_RETURN(std::unique_ptr<Normalizer> step,
                     ReadNormalizer(list[i], absl::StrCat(fields.Path("normalizers"), "[", i, "]"), count));
    steps.push_back(std::move(step));
  }
  return std::make_unique<SequenceNormalizer>(std::move(steps));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Normalizer>> ReadNormalizer(const json& object, const std::string& path, Steps& steps) {
  RETURN_IF_ERROR(steps.Add(path));
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
    kNmt,
    kMany
  };
  JsonObject fields(object, path);
  const int type = ReadType(fields, {"BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents",
                                     "Strip", "Replace", "Prepend", "Precompiled", "ByteLevel", "Nmt", "Sequence"});
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
    case kNmt:
      normalizer = std::make_unique<NmtNormalizer>();
      break;
    default: {
      ASSIGN_OR_RETURN(normalizer, ReadSequence(fields, steps));
    }
  }
  RETURN_IF_ERROR(fields.Finish());
  return normalizer;
}

}  // namespace edgewise::tokenizers
