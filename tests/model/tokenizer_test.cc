#include "model/tokenizers/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/field_error.h"
#include "model/kinds/kind.h"
#include "tests/model/counting_bounds.h"

namespace edgewise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TokenizerTest, BytesAreShiftedByTheOffset) {
  TokenizerConfig config;
  config.kind = TokenizerKind::kByte;
  config.offset = 1;
  EXPECT_THAT(*Tokenizer(config).Encode(std::string("\0a\xff", 3)), ElementsAre(1, 98, 256));
}

TEST(TokenizerTest, CharactersAreUnicode) {
  TokenizerConfig config;
  config.kind = TokenizerKind::kChar;
  config.vocabulary = {"<pad>", "a", "é", "語"};
  EXPECT_THAT(*Tokenizer(config).Encode("é語a"), ElementsAre(2, 3, 1));
  EXPECT_THAT(std::string(Tokenizer(config).Encode("ab").status().message()), HasSubstr("\"b\" at byte 1"));
  EXPECT_THAT(std::string(Tokenizer(config).Encode("a\xc3").status().message()),
              HasSubstr("byte 1 is not valid UTF-8"));
  config.unknown_token_id = 0;
  EXPECT_THAT(*Tokenizer(config).Encode("ab"), ElementsAre(1, 0));
}

TEST(TokenizerTest, UnknownCharacterIsToldWhichAreKnown) {
  TokenizerConfig config;
  config.kind = TokenizerKind::kChar;
  config.vocabulary = {"<pad>", "b", "c", "a", "X", "Y", "\n", "'", "\"", "3", "é"};
  EXPECT_EQ(Tokenizer(config).Encode("a#").status().message(),
            "text: character \"#\" at byte 1 is not in the vocabulary; it knows 10 characters: \\n\"'3XYa-c\\xc3\\xa9");
  for (int i = 0; i < 100; ++i)
    config.vocabulary.push_back("\xe8\xaa" + std::string(1, static_cast<char>(0x80 + i % 64)));
  const std::string message(Tokenizer(config).Encode("#").status().message());
  EXPECT_TRUE(message.ends_with("...")) << message;
  EXPECT_LT(message.size(), 170u);
}

TEST(TokenizerTest, WordsAreSplitLoweredAndSubstituted) {
  TokenizerConfig config;
  config.kind = TokenizerKind::kWord;
  config.vocabulary = {"<pad>", "<unk>", "good", "X"};
  config.lowercase = true;
  config.substitutions = {{"]", "X"}, {"(", ""}};
  EXPECT_THAT(std::string(Tokenizer(config).Encode("good film").status().message()), HasSubstr("\"film\" at byte 5"));
  config.unknown_token_id = 1;
  EXPECT_THAT(*Tokenizer(config).Encode("  GOOD\t( film\n]"), ElementsAre(2, 1, 3));
  EXPECT_THAT(*Tokenizer(config).Encode("<pad> good"), ElementsAre(1, 2)) << "text cannot name a pad";
}

TEST(TokenizerTest, MessagesAreWholeCharacters) {
  TokenizerConfig config;
  config.kind = TokenizerKind::kWord;
  config.vocabulary = {"a"};
  std::string word = "x";
  for (int i = 0; i < 40; ++i) word += "é";
  const std::string message(Tokenizer(config).Encode(word).status().message());
  for (char c : message) EXPECT_TRUE(c >= ' ' && c < 0x7F) << message;
}

// Encode(text), put together again.
std::string Back(const Tokenizer& tokenizer, const std::string& text) {
  std::string back;
  const auto ids = tokenizer.Encode(text);
  for (int32_t id : *ids) back += tokenizer.Decode(id, back.empty());
  return back;
}

TEST(TokenizerTest, TokensAreTheirTextAgain) {
  TokenizerConfig config;
  config.kind = TokenizerKind::kByte;
  config.offset = 3;
  std::string bytes;
  for (int b = 0; b < 256; ++b) bytes += static_cast<char>(b);
  EXPECT_EQ(Back(Tokenizer(config), bytes), bytes);
  config.kind = TokenizerKind::kChar;
  config.vocabulary = {"<pad>", "a", "é", "語", "<", " ", "\n"};
  EXPECT_EQ(Back(Tokenizer(config), "a語 <é\na"), "a語 <é\na");
  config.kind = TokenizerKind::kWord;
  config.vocabulary = {"<pad>", "good", "film"};
  EXPECT_EQ(Back(Tokenizer(config), " film\n good  good"), "film good good");
}

TEST(TokenizerTest, TokensThatStandForNoTextAreEmpty) {
  TokenizerConfig config;
  EXPECT_EQ(Tokenizer(config).Decode(5, true), "");
  config.kind = TokenizerKind::kByte;
  config.offset = 3;
  EXPECT_EQ(Tokenizer(config).Decode(2, true), "");
  EXPECT_EQ(Tokenizer(config).Decode(259, true), "");
  EXPECT_EQ(Tokenizer(config).Decode(258, true), "\xff");
  config.vocabulary = {"<pad>", "a"};
  for (const TokenizerKind kind : {TokenizerKind::kChar, TokenizerKind::kWord}) {
    config.kind = kind;
    for (const int32_t id : {-1, 0, 2, 1 << 30}) EXPECT_EQ(Tokenizer(config).Decode(id, false), "") << id;
    EXPECT_EQ(Tokenizer(config).Decode(1, true), "a");
  }
}

class TokenizerWorkTest : public ::testing::TestWithParam<TokenizerKind> {
 protected:
  static TokenizerConfig Config() {
    TokenizerConfig config;
    config.kind = GetParam();
    config.vocabulary = {"<pad>", "a", "b"};
    return config;
  }
  const Tokenizer tokenizer_{Config()};
};

TEST_P(TokenizerWorkTest, ATextThatIsTooLongEndsAtTheFirstTokenTooMany) {
  const bool words = GetParam() == TokenizerKind::kWord;
  EXPECT_EQ(tokenizer_.Encode(words ? "a b a" : "aba", 3)->size(), 3u);
  const auto refused = tokenizer_.Encode(words ? "a b a b #" : "abab#", 3);
  EXPECT_EQ(refused.status().message(), "text has more than 3 tokens; the model takes 3; set truncate to cut it");
  EXPECT_EQ(FieldOf(refused.status()), "text");
}

TEST_P(TokenizerWorkTest, EndsWhereItsBoundsSaySoAndReservesWhatItHolds) {
  std::string text;
  while (text.size() < (1 << 20)) text += "a ";
  if (GetParam() == TokenizerKind::kChar) std::replace(text.begin(), text.end(), ' ', 'b');
  tests::CountingBounds whole, ending, narrow;
  const auto ids = tokenizer_.Encode(text, 0, whole);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_GE(whole.asks, text.size() / kWorkPiece - 1);
  EXPECT_GE(whole.reserved_peak, ids->size() * sizeof(int32_t));
  EXPECT_EQ(whole.reserved, 0u);
  ending.ends_at = 5;
  EXPECT_EQ(tokenizer_.Encode(text, 0, ending).status(), absl::DeadlineExceededError("late"));
  narrow.most = whole.reserved_peak - 1;
  EXPECT_EQ(tokenizer_.Encode(text, 0, narrow).status(), absl::ResourceExhaustedError("no more bytes"));
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerWorkTest,
                         ::testing::Values(TokenizerKind::kByte, TokenizerKind::kChar, TokenizerKind::kWord));

TEST(TokenizerTest, AModelWithoutOneSaysSo) {
  EXPECT_THAT(std::string(Tokenizer(TokenizerConfig()).Encode("a").status().message()), HasSubstr("send token_ids"));
}

}  // namespace
}  // namespace edgewise
