// What PyPI's `tokenizers` makes of the same texts (tests/reference/make_tokenizer_goldens.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model/tokenizers/tokenizer_case.h"

namespace edgewise::tests {
namespace {

using nlohmann::json;

class TokenizerGoldenTest : public ::testing::TestWithParam<std::string> {};

absl::StatusOr<Encoding> Ask(const HfTokenizer& tokenizer, const json& request) {
  EncodeOptions options;
  options.add_special_tokens = request.value("special", true);
  options.max_tokens = request.value("max", 0);
  options.truncate_left = request.value("left", false);
  const std::string text = request["text"];
  if (request.contains("second")) return tokenizer.Encode(text, request["second"].get<std::string>(), options);
  return tokenizer.Encode(text, options);
}

// An expected list; the files leave out those that are all 0.
json Expected(const json& answer, const std::string& field) {
  return answer.contains(field) ? answer[field] : json(std::vector<int>(answer["ids"].size(), 0));
}

TEST_P(TokenizerGoldenTest, EqualsTokenizersLineByLine) {
  const json golden = ReadTokenizerFile(GetParam()), requests = ReadTokenizerFile("requests");
  const auto tokenizer = MakeTokenizer(golden["tokenizer"]);
  ASSERT_GE(requests.size(), 40u);
  ASSERT_EQ(golden["answers"].size(), requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(requests[i].dump().substr(0, 300));
    const json& expected = golden["answers"][i];
    const auto encoding = Ask(*tokenizer, requests[i]);
    ASSERT_TRUE(encoding.ok()) << encoding.status();
    EXPECT_EQ(json(encoding->ids), expected["ids"]);
    EXPECT_EQ(json(encoding->type_ids), Expected(expected, "type_ids"));
    EXPECT_EQ(json(encoding->sequences), Expected(expected, "sequences"));
    EXPECT_EQ(json(encoding->words), expected["words"]);
    json offsets = json::array();
    for (const auto& offset : encoding->offsets) offsets.push_back({offset.begin, offset.end});
    EXPECT_EQ(offsets, expected["offsets"]);
    const std::string decoded = expected["decoded"];
    EXPECT_EQ(tokenizer->Decode(encoding->ids, false), decoded);
    EXPECT_EQ(tokenizer->Decode(encoding->ids, true), expected.value("plain", decoded));
  }
}

TEST_P(TokenizerGoldenTest, StreamsWhatItDecodes) {
  const json golden = ReadTokenizerFile(GetParam());
  const auto tokenizer = MakeTokenizer(golden["tokenizer"]);
  for (const bool skip_special : {false, true}) {
    for (const json& answer : golden["answers"]) {
      const std::string whole = tokenizer->Decode(answer["ids"].get<std::vector<int32_t>>(), skip_special);
      if (whole.find("\uFFFD") != std::string::npos) continue;  // of bad bytes a stream says it per byte
      TextStream stream = tokenizer->Stream(skip_special);
      std::string streamed;
      for (const int32_t id : answer["ids"]) streamed += stream.Push(id);
      EXPECT_EQ(streamed + stream.Finish(), whole);
    }
  }
}

TEST_P(TokenizerGoldenTest, KnowsItsTokens) {
  const auto tokenizer = MakeTokenizer(TokenizerJson(GetParam()));
  ASSERT_GT(tokenizer->vocabulary_size(), 300);
  for (int32_t id = 0; id < tokenizer->vocabulary_size(); ++id) {
    const std::string* token = tokenizer->Token(id);
    ASSERT_NE(token, nullptr) << id;
    if (*token == "density" || *token == "budget") continue;  // a normalised added token has another name
    EXPECT_EQ(tokenizer->Id(*token), id) << *token;
  }
  EXPECT_EQ(tokenizer->Id("no such token"), -1);
  EXPECT_EQ(tokenizer->Token(-1), nullptr);
  EXPECT_EQ(tokenizer->Token(tokenizer->vocabulary_size()), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Of, TokenizerGoldenTest, ::testing::ValuesIn(TokenizerKinds()), [](const auto& kind) {
  std::string name = kind.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
});

TEST(TokenizerMergesTest, AreIgnoredWhereTheFileSaysSo) {
  auto file = TokenizerJson("llama3");
  file["model"]["merges"] = json::array();
  for (const bool ignore : {false, true}) {
    file["model"]["ignore_merges"] = ignore;
    const auto encoding = MakeTokenizer(file)->Encode(" the", {.add_special_tokens = false});
    ASSERT_TRUE(encoding.ok());
    EXPECT_EQ(encoding->size(), ignore ? 1u : 4u);
  }
}

TEST(TokenizerTruncationTest, CountsWhatItCutsOff) {
  const auto tokenizer = MakeTokenizer(TokenizerJson("bert"));
  const auto whole = tokenizer->Encode("a b c d e f"), cut = tokenizer->Encode("a b c d e f", {.max_tokens = 5});
  ASSERT_TRUE(whole.ok() && cut.ok());
  EXPECT_EQ(whole->truncated, 0u);
  EXPECT_EQ(cut->size(), 5u);
  EXPECT_EQ(cut->truncated, whole->size() - 5);
  EXPECT_EQ(tokenizer->Encode("a", {.max_tokens = 1}).status().message(),
            "text may have 1 tokens, but the tokenizer's template alone has 2");
}

}  // namespace
}  // namespace edgewise::tests
