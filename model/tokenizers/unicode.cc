#include "model/tokenizers/unicode.h"

#include <unicode/uchar.h>
#include <unicode/unorm2.h>
#include <unicode/uscript.h>
#include <unicode/ustring.h>

#include <algorithm>
#include <iterator>

#include "base/utf8.h"

namespace edgewise::tokenizers {
namespace {

UChar32 Icu(char32_t c) { return static_cast<UChar32>(c); }

// Whether the character was in that version of Unicode already.
bool Knows(uint8_t version, char32_t c) {
  if (c < 0x80) return true;
  UVersionInfo age;
  u_charAge(Icu(c), age);
  return age[0] != 0 && (age[0] < version || (age[0] == version && age[1] == 0));
}

bool InCategories(char32_t c, uint32_t mask) { return (U_MASK(u_charType(Icu(c))) & mask) != 0; }

constexpr uint8_t kNormalFormsVersion = 9;

uint8_t CombiningClass(char32_t c) {
  if (c < 0x300 || !Knows(kNormalFormsVersion, c)) return 0;
  return u_getCombiningClass(Icu(c));
}

struct Part {
  char32_t character;
  int32_t kind;
  uint8_t combining_class;
};

// The decomposed text in canonical order.
std::vector<Part> Decomposed(std::string_view text, bool compatibility) {
  UErrorCode error = U_ZERO_ERROR;
  const UNormalizer2* rules = compatibility ? unorm2_getNFKDInstance(&error) : unorm2_getNFDInstance(&error);
  std::vector<Part> parts;
  parts.reserve(text.size());
  size_t unsorted = 0;  // where the run of marks begins
  auto sort = [&] {
    std::stable_sort(parts.begin() + unsorted, parts.end(),
                     [](const Part& a, const Part& b) { return a.combining_class < b.combining_class; });
  };
  auto push = [&](char32_t c, bool first) {
    const uint8_t combining_class = CombiningClass(c);
    if (combining_class == 0) sort();
    parts.push_back({c, first ? 0 : 1, combining_class});
    if (combining_class == 0) unsorted = parts.size();
  };
  for (size_t at = 0; at < text.size();) {
    const Character character = CharacterAt(text, at);
    at += character.bytes;
    UChar pieces[32];  // the longest has 18
    const int32_t length = character.code < 0x80 || !Knows(kNormalFormsVersion, character.code) || U_FAILURE(error)
                               ? -1
                               : unorm2_getDecomposition(rules, Icu(character.code), pieces, 32, &error);
    if (length < 0) {
      push(character.code, true);
      continue;
    }
    for (int32_t i = 0; i < length;) {
      const bool first = i == 0;
      UChar32 c;
      U16_NEXT(pieces, i, length, c);
      push(static_cast<char32_t>(c), first);
    }
  }
  sort();
  return parts;
}

// The one character that the pair composes to, or 0.
char32_t Composed(const UNormalizer2* rules, char32_t a, char32_t b) {
  if (b < 0x300) return 0;
  const UChar32 c = unorm2_composePair(rules, Icu(a), Icu(b));
  return c > 0 && Knows(kNormalFormsVersion, static_cast<char32_t>(c)) ? static_cast<char32_t>(c) : 0;
}

std::vector<Change> Recomposed(const std::vector<Part>& parts) {
  UErrorCode error = U_ZERO_ERROR;
  const UNormalizer2* rules = unorm2_getNFCInstance(&error);
  std::vector<Change> changes;
  changes.reserve(parts.size());
  constexpr size_t kNone = SIZE_MAX;
  size_t starter = kNone;  // its place in `changes`
  int last_class = -1;     // of the marks that stand behind it and did not compose; -1: there are none
  for (const Part& part : parts) {
    if (starter == kNone) {
      if (part.combining_class == 0) starter = changes.size();
      changes.push_back({part.character, part.kind});
      continue;
    }
    const bool blocked = last_class >= 0 && last_class >= part.combining_class;
    if (!blocked) {
      const char32_t whole = Composed(rules, changes[starter].character, part.character);
      if (whole != 0) {
        changes[starter] = {whole, changes[starter].kind + part.kind - 1};
        continue;
      }
    }
    if (part.combining_class == 0) {
      starter = changes.size();
      last_class = -1;
    } else {
      last_class = part.combining_class;
    }
    changes.push_back({part.character, part.kind});
  }
  return changes;
}

}  // namespace

bool IsWhitespace(char32_t c) { return u_isUWhiteSpace(Icu(c)) != 0; }

size_t SpacesAtEnd(std::string_view text) {
  size_t begin = text.size();
  for (size_t at = begin; at > 0;) {
    while (at > 0 && ContinuesCharacter(text[--at])) {
    }
    if (!IsWhitespace(CharacterAt(text, at).code)) break;
    begin = at;
  }
  return begin;
}

size_t SpacesAtStart(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Character character = CharacterAt(text, at);
    if (!IsWhitespace(character.code)) break;
    at += character.bytes;
  }
  return at;
}

bool StartsForm(char32_t c) {
  if (c < 0x80) return true;
  UErrorCode error = U_ZERO_ERROR;
  const UNormalizer2* rules = unorm2_getNFKCInstance(&error);
  return U_SUCCESS(error) && unorm2_hasBoundaryBefore(rules, Icu(c));
}

bool IsPunctuation(char32_t c) {
  if (c < 0x80)
    return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) || (c >= 0x5B && c <= 0x60) || (c >= 0x7B && c <= 0x7E);
  if (c == 0x166D || c == 0x111C9) return true;  // the category has changed since
  return InCategories(c, U_GC_P_MASK) && Knows(8, c);
}

bool IsNumeric(char32_t c) { return InCategories(c, U_GC_N_MASK); }

bool IsWordCharacter(char32_t c) {
  return u_hasBinaryProperty(Icu(c), UCHAR_ALPHABETIC) || InCategories(c, U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK) ||
         u_hasBinaryProperty(Icu(c), UCHAR_JOIN_CONTROL);
}

bool IsBertControl(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  return InCategories(c, U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK) && Knows(8, c);
}

bool IsNonspacingMark(char32_t c) {
  if (c < 0x300) return false;
  if (c == 0x1734) return true;  // these five have changed category since
  if (c == 0x1885 || c == 0x1886 || c == 0xA9BD || c == 0x111C9) return false;
  return InCategories(c, U_GC_MN_MASK) && Knows(8, c);
}

bool IsCombiningMark(char32_t c) {
  if (c < 0x300) return false;
  if (c == 0x1CF2 || c == 0x1CF3) return true;  // these three have changed category since
  if (c == 0x111C9) return false;
  return InCategories(c, U_GC_M_MASK) && Knows(9, c);
}

bool IsCjkIdeograph(char32_t c) {
  static constexpr struct {
    char32_t first, last;
  } kBlocks[] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
                 {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  return c >= 0x3400 && std::any_of(std::begin(kBlocks), std::end(kBlocks),
                                    [c](const auto& block) { return c >= block.first && c <= block.last; });
}

int32_t ScriptOf(char32_t c) {
  constexpr int32_t kAny = 0;
  if (c == U' ' || !Knows(9, c)) return kAny;
  if (c == 0x30FC) return 1 + USCRIPT_HAN;
  if (c == 0x589 || c == 0x61C) return 1 + USCRIPT_COMMON;  // these four have changed script since
  if (c == 0x953 || c == 0x954) return 1 + USCRIPT_DEVANAGARI;
  UErrorCode error = U_ZERO_ERROR;
  const UScriptCode script = uscript_getScript(Icu(c), &error);
  if (U_FAILURE(error) || script == USCRIPT_UNKNOWN) return kAny;
  return 1 + (script == USCRIPT_HIRAGANA || script == USCRIPT_KATAKANA ? USCRIPT_HAN : script);
}

void AppendLowercase(char32_t c, std::vector<char32_t>& lower) {
  if (c == 0x130) {  // the one character whose lower case is two
    lower.insert(lower.end(), {U'i', 0x307});
  } else {
    lower.push_back(static_cast<char32_t>(u_tolower(Icu(c))));
  }
}

std::vector<Change> Normalized(std::string_view text, NormalForm form) {
  const std::vector<Part> parts = Decomposed(text, form == NormalForm::kNfkc || form == NormalForm::kNfkd);
  if (form == NormalForm::kNfc || form == NormalForm::kNfkc) return Recomposed(parts);
  std::vector<Change> changes;
  changes.reserve(parts.size());
  for (const Part& part : parts) changes.push_back({part.character, part.kind});
  return changes;
}

}  // namespace edgewise::tokenizers
