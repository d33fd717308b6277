// The versions of Unicode that `tokenizers` has, by characters that differ between them.
#include "model/tokenizers/unicode.h"

#include <gtest/gtest.h>

#include "base/utf8.h"

namespace edgewise::tokenizers {
namespace {

std::string In(NormalForm form, std::string_view text) {
  std::string normalized;
  for (const Change& change : Normalized(text, form)) AppendCharacter(change.character, normalized);
  return normalized;
}

TEST(UnicodeTest, NormalFormsAreThoseOfUnicode9) {
  EXPECT_EQ(In(NormalForm::kNfc, "e\u0301"), "é");
  EXPECT_EQ(In(NormalForm::kNfd, "é\u0323"), "e\u0323\u0301") << "marks are sorted";
  EXPECT_EQ(In(NormalForm::kNfkd, "ﬁ½"), "fi1⁄2");
  EXPECT_EQ(In(NormalForm::kNfc, "\u1100\u1161\u11a8"), "각");
  EXPECT_EQ(In(NormalForm::kNfc, "\U00011935\U00011930"), "\U00011935\U00011930") << "Unicode 13 composes these";
  EXPECT_EQ(In(NormalForm::kNfkd, "\u32ff"), "\u32ff") << "of Unicode 12.1";
}

TEST(UnicodeTest, CategoriesAreOfTheVersionOfEachPart) {
  EXPECT_TRUE(IsPunctuation(U'$') && IsPunctuation(0x166D) && !IsPunctuation(0x2E43));
  EXPECT_TRUE(IsBertControl(0x200D) && IsBertControl(0xE000) && !IsBertControl(0x08E2) && !IsBertControl(0x0378));
  EXPECT_TRUE(IsNonspacingMark(0x1734) && !IsNonspacingMark(0x1885) && !IsNonspacingMark(0x08D4));
  EXPECT_TRUE(IsCombiningMark(0x1CF2) && IsCombiningMark(0x08D4) && !IsCombiningMark(0x07FD));
}

TEST(UnicodeTest, ScriptsAreThoseOfUnicode9) {
  const int32_t han = ScriptOf(U'\u4eac'), common = ScriptOf(U'1');
  EXPECT_NE(han, common);
  EXPECT_EQ(ScriptOf(U'\u3044'), han) << "Hiragana";
  EXPECT_EQ(ScriptOf(U'\u30b0'), han) << "Katakana";
  EXPECT_EQ(ScriptOf(U'\u30fc'), han) << "the mark of long vowels, which is Common";
  EXPECT_EQ(ScriptOf(U'\t'), common);
  EXPECT_EQ(ScriptOf(U'a'), ScriptOf(U'\u00e9'));
  EXPECT_NE(ScriptOf(U'a'), ScriptOf(U'\u0301')) << "Inherited";
  for (const char32_t any : {U' ', U'\u0378', U'\ue000', U'\U0001fae0'}) EXPECT_EQ(ScriptOf(any), 0);
  for (const char32_t changed : {U'\u0589', U'\u061c'}) EXPECT_EQ(ScriptOf(changed), common);
  for (const char32_t changed : {U'\u0953', U'\u0954'}) EXPECT_EQ(ScriptOf(changed), ScriptOf(U'\u0915'));
}

}  // namespace
}  // namespace edgewise::tokenizers
