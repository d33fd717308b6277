#include "model/tokenizers/text_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model/counting_bounds.h"
#include "tests/model/tokenizers/tokenizer_case.h"

namespace edgewise::tests {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Pushed(TextStream stream, const std::vector<int32_t>& ids) {
  std::vector<std::string> texts;
  for (const int32_t id : ids) texts.push_back(stream.Push(id));
  texts.push_back(stream.Finish());
  return texts;
}

TEST(TextStreamTest, HandsOutWholeCharactersOfByteLevelTokens) {
  const auto tokenizer = MakeTokenizer(TokenizerJson("gpt2"));
  const std::vector<int32_t> ids = {tokenizer->Id("a"), tokenizer->Id("ð"), tokenizer->Id("Ł"), tokenizer->Id("ĺ"),
                                    tokenizer->Id("Ģ"), tokenizer->Id("b")};  // a, the bytes of U+1F600, b
  EXPECT_THAT(Pushed(tokenizer->Stream(false), ids), ElementsAre("a", "", "", "", "😀", "b", ""));
  EXPECT_THAT(Pushed(tokenizer->Stream(false), {ids[1], ids[2]}), ElementsAre("", "", "\uFFFD"));
  EXPECT_THAT(Pushed(tokenizer->Stream(false), {ids[1], ids[2], ids[0]}), ElementsAre("", "",
                                                                                      "\uFFFD"
                                                                                      "a",
                                                                                      ""))
      << "a character that was begun is one U+FFFD";
  EXPECT_THAT(Pushed(tokenizer->Stream(false), {ids[2], ids[0]}), ElementsAre("\uFFFD", "a", ""));
}

TEST(TokenBytesTest, AreThoseThatATokenAddsWithinAText) {
  const auto bytes = [](const char* kind, const std::vector<std::string>& tokens) {
    const auto tokenizer = MakeTokenizer(TokenizerJson(kind));
    std::vector<std::string> all;
    for (const std::string& token : tokens) all.push_back(tokenizer->Bytes(tokenizer->Id(token)));
    return all;
  };
  EXPECT_THAT(bytes("gpt2", {"a", "ð", "Ł", "Ġ", "none"}), ElementsAre("a", "\xF0", "\x9F", " ", ""));
  EXPECT_THAT(bytes("llama2", {"a", "<0xF0>", "<0x80>", "▁"}), ElementsAre("a", "\xF0", "\x80", " "));
  EXPECT_THAT(bytes("bert", {"a", "##b", "[CLS]"}), ElementsAre(" a", "b", "[CLS]"));
}

TEST(TextStreamTest, HandsOutWholeCharactersOfNamedBytes) {
  const auto tokenizer = MakeTokenizer(TokenizerJson("llama2"));
  auto byte = [&](const std::string& hex) { return tokenizer->Id("<0x" + hex + ">"); };
  const std::vector<int32_t> smile = {byte("F0"), byte("9F"), byte("98"), byte("80")};
  EXPECT_THAT(Pushed(tokenizer->Stream(false), smile), ElementsAre("", "", "", "😀", ""));
  const std::vector<int32_t> bad = {byte("C3"), byte("A9"), byte("98"), tokenizer->Id("a")};
  EXPECT_THAT(Pushed(tokenizer->Stream(false), bad), ElementsAre("", "é", "\uFFFD", "a", ""));
  EXPECT_EQ(tokenizer->Decode(bad, false),
            "\uFFFD\uFFFD\uFFFD"
            "a")
      << "as tokenizers: the whole run";
  EXPECT_THAT(Pushed(tokenizer->Stream(false), {byte("C3")}), ElementsAre("", "\uFFFD"));
}

// A decoder may make much of a token, and of a run of tokens that name bytes only at its end.
TEST(DecodeTest, CountsItsTextWhileItGrowsAndAsksWhetherToGoOn) {
  constexpr size_t kGrowth = 500, kTokens = 2000;
  nlohmann::json file = TokenizerJson("llama2");
  file["decoder"]["decoders"].push_back(
      {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(kGrowth, 'x')}});
  const auto tokenizer = MakeTokenizer(file);
  for (const char* token : {"a", "<0x61>"}) {
    SCOPED_TRACE(token);
    const std::vector<int32_t> ids(kTokens, tokenizer->Id(token));
    CountingBounds bounds;
    const auto text = tokenizer->Decode(ids, true, bounds);
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(text->size(), kTokens * kGrowth);
    EXPECT_EQ(*text, tokenizer->Decode(ids, true));
    EXPECT_GE(bounds.reserved_peak, text->size());
    EXPECT_EQ(bounds.reserved, 0u);
    CountingBounds few;
    few.most = text->size() / 2;
    EXPECT_EQ(tokenizer->Decode(ids, true, few).status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(few.reserved, 0u);
  }
  CountingBounds late;
  late.ends_at = 10;
  const std::vector<int32_t> ids(kTokens, tokenizer->Id("a"));
  EXPECT_EQ(tokenizer->Decode(ids, true, late).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(late.asks, 10u);
}

TEST(TextStreamTest, OnlyTheFirstSpaceIsTakenAway) {
  const auto tokenizer = MakeTokenizer(TokenizerJson("llama2"));
  const int32_t space = tokenizer->Id("▁"), a = tokenizer->Id("a");
  EXPECT_THAT(Pushed(tokenizer->Stream(false), {space, space, a, space, a}), ElementsAre("", " ", "a", " ", "a", ""));
}

TEST(TextStreamTest, LeavesOutSpecialTokensAndUnknownIds) {
  const auto tokenizer = MakeTokenizer(TokenizerJson("bert"));
  const std::vector<int32_t> ids = {tokenizer->Id("[CLS]"), tokenizer->Id("a"),    1 << 20, -1, tokenizer->Id("##b"),
                                    tokenizer->Id("."),     tokenizer->Id("[SEP]")};
  EXPECT_THAT(Pushed(tokenizer->Stream(true), ids), ElementsAre("", "a", "", "", "b", ".", "", ""));
  EXPECT_THAT(Pushed(tokenizer->Stream(false), ids), ElementsAre("[CLS]", " a", "", "", "b", ".", " [SEP]", ""));
  EXPECT_EQ(tokenizer->Decode(ids, true), "ab.");
}

TEST(TextStreamTest, StripHoldsBackWhatMayBeTheEnd) {
  auto file = TokenizerJson("gpt2");
  file["decoder"] = {
      {"type", "Sequence"},
      {"decoders", {{{"type", "Fuse"}}, {{"type", "Strip"}, {"content", "a"}, {"start", 1}, {"stop", 2}}}}};
  const auto tokenizer = MakeTokenizer(file);
  const int32_t a = tokenizer->Id("a"), b = tokenizer->Id("b");
  EXPECT_THAT(Pushed(tokenizer->Stream(false), {a, a, a, a, b, a, a, a}),
              ElementsAre("", "", "", "a", "aab", "", "", "a", ""));
}

TEST(TextStreamTest, NoDecoderPutsSpacesBetween) {
  const auto tokenizer = MakeTokenizer(TokenizerJson("mixed"));
  const int32_t a = tokenizer->Id("a");
  EXPECT_THAT(Pushed(tokenizer->Stream(false), {a, a}), ElementsAre("a", " a", ""));
}

}  // namespace
}  // namespace edgewise::tests
