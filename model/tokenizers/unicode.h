// The Unicode of `tokenizers` 0.23, by ICU's tables. Its parts have tables of several ages, and ids depend on them:
// punctuation, controls and nonspacing marks are those of Unicode 8, normal forms those of Unicode 9 (the functions
// below follow, character by character), as are scripts. Whitespace, numbers, case, \p{...} and \w are those of Unicode
// 16 or 17: here of ICU's version (15 in Debian 12), to which the characters added since are unassigned. All functions
// may be called from any thread.
#ifndef EDGEWISE_MODEL_TOKENIZERS_UNICODE_H_
#define EDGEWISE_MODEL_TOKENIZERS_UNICODE_H_

#include <cstdint>
#include <string_view>
#include <vector>

namespace edgewise::tokenizers {

bool IsWhitespace(char32_t c);
bool IsPunctuation(char32_t c);     // ASCII's symbols too
bool IsNumeric(char32_t c);         // categories Nd, Nl, No
bool IsWordCharacter(char32_t c);   // \w of Rust's regular expressions
bool IsBertControl(char32_t c);     // what BertNormalizer's clean_text removes, but for U+0000 and U+FFFD
bool IsNonspacingMark(char32_t c);  // what BertNormalizer's strip_accents removes
bool IsCombiningMark(char32_t c);   // what StripAccents removes
bool IsCjkIdeograph(char32_t c);    // what handle_chinese_chars puts between spaces

// The script as UnicodeScripts sees it, by Unicode 9: a number, the same for Han, Hiragana and Katakana; 0: a space and
// what is unassigned, which go with any script.
int32_t ScriptOf(char32_t c);

// One character's lower case, which may be more than one character.
void AppendLowercase(char32_t c, std::vector<char32_t>& lower);

// One step of a change to a text, in its order: `character` is inserted (1), or takes the place of the next character
// and of as many more as the number says (0, -1, -2, ...).
struct Change {
  char32_t character = 0;
  int32_t kind = 0;
};

// Where the whitespace at the end of valid UTF-8 begins, and where that at its start ends.
size_t SpacesAtEnd(std::string_view text);
size_t SpacesAtStart(std::string_view text);

// Whether no normal form of a text joins the character to what is before it.
bool StartsForm(char32_t c);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// The changes that bring valid UTF-8 into a normal form.
std::vector<Change> Normalized(std::string_view text, NormalForm form);

}  // namespace edgewise::tokenizers

#endif  // EDGEWISE_MODEL_TOKENIZERS_UNICODE_H_
