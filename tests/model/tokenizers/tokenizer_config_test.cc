// tokenizer_config.json, and vocab.txt without a tokenizer.json.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model/tokenizers/tokenizer_case.h"

namespace edgewise::tests {
namespace {

using nlohmann::json;

TEST(TokenizerConfigTest, NamesTheSpecialTokens) {
  const json config = {{"cls_token", "[CLS]"},
                       {"sep_token", {{"content", "[SEP]"}, {"lstrip", false}}},
                       {"mask_token", "[MASK]"},
                       {"pad_token", nullptr},
                       {"model_max_length", 512},
                       {"do_lower_case", true},
                       {"added_tokens_decoder", {{"0", {{"content", "[PAD]"}}}}}};
  const auto tokenizer = HfTokenizer::Read(TokenizerJson("bert").dump(), config.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const SpecialTokens& special = (*tokenizer)->special_tokens();
  EXPECT_EQ(special.cls, 2);
  EXPECT_EQ(special.sep, 3);
  EXPECT_EQ(special.mask, 4);
  EXPECT_EQ(special.pad, -1);
  EXPECT_EQ(special.bos, -1);
}

TEST(TokenizerConfigTest, ContradictionsAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "the file is []; an object is expected"},
      {R"({"do_lower_case": false})", "do_lower_case is false; in tokenizer.json normalizer.lowercase is true"},
      {R"({"tokenize_chinese_chars": false})",
       "tokenize_chinese_chars is false; in tokenizer.json normalizer.handle_chinese_chars is true"},
      {R"({"strip_accents": false})", "strip_accents is false; in tokenizer.json normalizer.strip_accents is null"},
      {R"({"mask_token": "<mask>"})", R"(mask_token is "<mask>"; the tokenizer has no such token)"},
      {R"({"mask_token": 4})", "mask_token is 4; a token is expected"},
      {R"({"added_tokens_decoder": {"7": {"content": "[PAD]"}}})",
       R"(added_tokens_decoder["7"] is "[PAD]"; in tokenizer.json its id is 0)"},
      {R"({"added_tokens_decoder": {"7": {"content": "[NEW]"}}})",
       R"(added_tokens_decoder["7"] is "[NEW]"; tokenizer.json has no such token)"}};
  for (const auto& [config, message] : cases) {
    EXPECT_EQ(Refusal(TokenizerJson("bert"), config), std::string("tokenizer_config.json: ") + message) << config;
  }
}

// The lines of vocab.txt of the tokenizer.json's vocabulary.
std::string VocabTxt(const json& file) {
  std::vector<std::string> lines(file["model"]["vocab"].size());
  for (const auto& [token, id] : file["model"]["vocab"].items()) lines[id.get<size_t>()] = token;
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST(VocabTxtTest, IsTheSameTokenizer) {
  const json requests = ReadTokenizerFile("requests");
  const std::pair<const char*, const char*> cases[] = {
      {"bert", ""}, {"bert-cased", R"({"do_lower_case": false, "tokenizer_class": "DistilBertTokenizer"})"}};
  for (const auto& [kind, config] : cases) {
    const json file = TokenizerJson(kind);
    const auto from_txt = HfTokenizer::ReadVocabTxt(VocabTxt(file), config);
    ASSERT_TRUE(from_txt.ok()) << from_txt.status();
    const auto from_json = MakeTokenizer(file);
    for (const json& request : requests) {
      const std::string text = request["text"], second = request.value("second", "b");
      const auto a = (*from_txt)->Encode(text, second), b = from_json->Encode(text, second);
      ASSERT_TRUE(a.ok() && b.ok());
      EXPECT_EQ(a->ids, b->ids) << text;
      EXPECT_EQ(a->type_ids, b->type_ids) << text;
      EXPECT_TRUE(a->offsets == b->offsets) << text;
      EXPECT_EQ((*from_txt)->Decode(a->ids, true), from_json->Decode(b->ids, true)) << text;
    }
  }
}

TEST(VocabTxtTest, WhatIsNotBertsIsRefused) {
  const std::string vocab = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n";
  auto refusal = [](const std::string& txt, const std::string& config) {
    return std::string(HfTokenizer::ReadVocabTxt(txt, config).status().message());
  };
  EXPECT_EQ(refusal(vocab, R"({"tokenizer_class": "MPNetTokenizer"})"),
            "tokenizer_config.json: tokenizer_class is \"MPNetTokenizer\"; of vocab.txt alone BertTokenizer and "
            "DistilBertTokenizer are served; save the folder with tokenizer.json");
  EXPECT_EQ(refusal("[PAD]\n[UNK]\n[CLS]\n[SEP]\n", ""),
            "tokenizer_config.json: mask_token is \"[MASK]\"; vocab.txt has no such line");
  EXPECT_EQ(refusal(vocab + "a\n", ""), "vocab.txt: line 7 is \"a\" again; every token has one line");
  EXPECT_EQ(refusal("\xff", ""), "vocab.txt: byte 0 is not valid UTF-8");
  EXPECT_EQ(refusal(vocab, R"({"do_lower_case": 1})"),
            "tokenizer_config.json: do_lower_case is 1; allowed: true, false");
  EXPECT_TRUE(HfTokenizer::ReadVocabTxt(vocab, "").ok());
}

}  // namespace
}  // namespace edgewise::tests
