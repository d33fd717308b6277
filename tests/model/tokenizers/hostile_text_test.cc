// Texts that strangers send.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/field_error.h"
#include "tests/model/tokenizers/tokenizer_case.h"

namespace edgewise::tests {
namespace {

class HostileTextTest : public ::testing::TestWithParam<std::string> {
 protected:
  const std::unique_ptr<HfTokenizer> tokenizer_ = MakeTokenizer(TokenizerJson(GetParam()));
};

TEST_P(HostileTextTest, BytesThatAreNoUtf8AreNamed) {
  const std::pair<std::string, int> cases[] = {
      {"ab\xff", 2},           {"é\xc3", 2},   {"\xc0\xaf", 0}, {"a\xed\xa0\x80", 1},
      {"\xf4\x90\x80\x80", 0}, {"abc\x80", 3}, {"\xe2\x82", 0}};
  for (const auto& [text, byte] : cases) {
    const auto encoding = tokenizer_->Encode(text);
    EXPECT_EQ(encoding.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(encoding.status().message(), "text: byte " + std::to_string(byte) + " is not valid UTF-8");
    EXPECT_EQ(FieldOf(tokenizer_->Encode("good", text).status()), "second");
  }
}

TEST_P(HostileTextTest, NulsAreCharacters) {
  const std::string text("a\0b\0\0", 5);
  const auto encoding = tokenizer_->Encode(text);
  ASSERT_TRUE(encoding.ok()) << encoding.status();
  for (const auto& offset : encoding->offsets) EXPECT_LE(offset.end, text.size());
}

// What is quadratic in the text does not end within the test's limit.
TEST_P(HostileTextTest, LongRunsTakeLinearTime) {
  for (const std::string unit :
       {"a", " ", "ab ", "\n", "'", "1", "東", "😀", "e\u0301", "<s>", "[MASK]  ", "\u0301", ".", "▁"}) {
    std::string text;
    while (text.size() < (1u << 18)) text += unit;
    const auto encoding = tokenizer_->Encode(text + "z", {.max_tokens = 64});
    ASSERT_TRUE(encoding.ok()) << unit << ": " << encoding.status();
    EXPECT_LE(encoding->size(), 64u);
  }
}

TEST_P(HostileTextTest, OffsetsAreWholeCharactersInOrder) {
  const std::string text = "É1 \u00bd\u3000東京\t👩\u200d👩 e\u0301\u0323x ﷺ <mask> ...a";
  const auto encoding = tokenizer_->Encode(text);
  ASSERT_TRUE(encoding.ok());
  uint32_t begin = 0;
  for (size_t i = 0; i < encoding->size(); ++i) {
    if (encoding->sequences[i] < 0) continue;
    const auto& offset = encoding->offsets[i];
    EXPECT_LE(begin, offset.begin);
    EXPECT_LE(offset.begin, offset.end);
    ASSERT_LE(offset.end, text.size());
    for (const uint32_t place : {offset.begin, offset.end}) EXPECT_NE(text[place] & 0xC0, 0x80) << place;
    begin = offset.begin;
  }
}

INSTANTIATE_TEST_SUITE_P(Of, HostileTextTest, ::testing::ValuesIn(TokenizerKinds()), [](const auto& kind) {
  std::string name = kind.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
});

TEST(HostileTextTest, AnUnknownCharacterWithoutAnUnknownTokenIsAnError) {
  auto file = TokenizerJson("xlm-roberta");
  file["model"]["unk_id"] = nullptr;
  const auto encoding = MakeTokenizer(file)->Encode("ab 𐍈");
  EXPECT_EQ(encoding.status().message(),
            "text: the tokenizer's vocabulary lacks the character at byte 3 of a word, and model.unk_id is null");
  file = TokenizerJson("mixed");
  file["model"]["unk_token"] = "[NONE]";
  EXPECT_EQ(MakeTokenizer(file)->Encode("𐍈").status().message(),
            "text: tokenizer.json: model.unk_token is \"[NONE]\", which model.vocab lacks; this text needs it");
}

TEST(HostileTextTest, UnknownCharactersAreFusedWhereTheFileSaysSo) {
  auto file = TokenizerJson("mixed");
  for (const bool fuse : {false, true}) {
    file["model"]["fuse_unk"] = fuse;
    const auto encoding = MakeTokenizer(file)->Encode("𐍈𐍉𐍈");
    ASSERT_TRUE(encoding.ok());
    EXPECT_EQ(encoding->ids, std::vector<int32_t>(fuse ? 1 : 3, 0));
  }
}

TEST(HostileTextTest, TheLongestWordPieceIsFoundBeforeACharacterOfManyBytes) {
  auto file = TokenizerJson("bert");
  auto& vocabulary = file["model"]["vocab"];
  const auto ids = static_cast<int32_t>(vocabulary.size());
  const std::string longest(40, 'q');
  vocabulary[longest] = ids;
  vocabulary["##ᚠ"] = ids + 1;
  const auto encoding = MakeTokenizer(file)->Encode(longest + "ᚠ");
  ASSERT_TRUE(encoding.ok()) << encoding.status();
  EXPECT_THAT(encoding->ids, ::testing::IsSupersetOf({ids, ids + 1}));
}

}  // namespace
}  // namespace edgewise::tests
