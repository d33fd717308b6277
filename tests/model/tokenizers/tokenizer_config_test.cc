// tokenizer_config.json, and vocab.txt without a tokenizer.json.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/model/tokenizers/tokenizer_case.h"
#include "tests/support/paths.h"

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
  const auto tokenizer = HfTokenizer::Read(TokenizerJson("bert").dump(), {.tokenizer_config = config.dump()});
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
      {R"({"mask_token": 4})", "mask_token is 4; a token is expected"},
      {R"({"added_tokens_decoder": {"7": {"content": "[PAD]"}}})",
       R"(added_tokens_decoder["7"] is "[PAD]"; by tokenizer.json its id is 0)"},
      {R"({"added_tokens_decoder": {"7": {"content": "[NEW]"}}})",
       R"(added_tokens_decoder["7"] is "[NEW]"; by tokenizer.json its id is 420)"},
      {R"({"added_tokens_decoder": {"x": {"content": "[NEW]"}}})",
       R"(added_tokens_decoder["x"] is {"content":"[NEW]"}; a token under its id is expected)"},
      {R"({"added_tokens_decoder": []})", "added_tokens_decoder is []; an object is expected"},
      {R"({"extra_special_tokens": "x"})",
       R"(extra_special_tokens is "x"; a list of tokens, or an object, is expected)"},
      {R"({"extra_special_tokens": {"image_token": 7}})",
       "extra_special_tokens[image_token] is 7; a token is expected"}};
  for (const auto& [config, message] : cases) {
    EXPECT_EQ(Refusal(TokenizerJson("bert"), config), std::string("tokenizer_config.json: ") + message) << config;
  }
}

TEST(TokenizerConfigTest, FilesThatNameTokensAreNamedInErrors) {
  const auto refusal = [](const TokenFiles& files) {
    return std::string(HfTokenizer::Read(TokenizerJson("bert").dump(), files).status().message());
  };
  EXPECT_EQ(refusal({.special_tokens_map = "[]"}), "special_tokens_map.json: the file is []; an object is expected");
  EXPECT_EQ(refusal({.special_tokens_map = R"({"bos_token": 7})"}),
            "special_tokens_map.json: bos_token is 7; a token is expected");
  EXPECT_EQ(refusal({.added_tokens = R"({"[NEW]": "a"})"}), R"(added_tokens.json: "[NEW]" is "a"; an id is expected)");
  EXPECT_EQ(
      refusal({.tokenizer_config = R"({"a_token": "<a>", "b_token": "<b>"})"}),
      R"(tokenizer.json: added_tokens lacks "<a>" and "<b>", which tokenizer_config.json names; which id each has )"
      "is not known: save the tokenizer again, with save_pretrained");
  EXPECT_EQ(refusal({.tokenizer_config = R"({"a_token": "<a>", "b_token": "[CLS]", "c_token": "<a>"})"}), "");
}

// tests/reference/make_special_tokens.py.
TEST(TokenFilesTest, NameTheTokensThatTransformersFinds) {
  std::ifstream file(TestdataFolder() + "_special_tokens.json");
  const json goldens = json::parse(file);
  ASSERT_GE(goldens["cases"].size(), 20u);
  for (const json& one : goldens["cases"]) {
    json tokenizer_json = TokenizerJson("gpt2");
    if (one.contains("padding")) tokenizer_json["padding"] = {{"pad_token", one["padding"]}, {"pad_id", 3}};
    const auto text = [&](const char* name) { return one.contains(name) ? one[name].dump() : std::string(); };
    const auto tokenizer =
        HfTokenizer::Read(tokenizer_json.dump(),
                          {text("tokenizer_config.json"), text("special_tokens_map.json"), text("added_tokens.json")});
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status() << one;
    json named = json::object();
    for (const auto& [name, token] : (*tokenizer)->special_tokens().named) {
      if (token.has_value()) named[name] = *token;
    }
    EXPECT_EQ(named, one["named"]) << one;
    EXPECT_EQ((*tokenizer)->Encode(goldens["text"].get<std::string>())->ids, one["ids"].get<std::vector<int32_t>>())
        << one;
  }
}

TEST(TokenFilesTest, ATokenThatIsNullIsNotOneThatNoFileHas) {
  const auto tokenizer =
      HfTokenizer::Read(TokenizerJson("gpt2").dump(), {.tokenizer_config = R"({"bos_token": null})"});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto& named = (*tokenizer)->special_tokens().named;
  EXPECT_TRUE(named.contains("bos_token") && !named.at("bos_token").has_value());
  EXPECT_FALSE(named.contains("eos_token"));
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
    const auto from_txt = HfTokenizer::ReadVocabTxt(VocabTxt(file), {.tokenizer_config = config});
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

// As `tokenizers` 0.23.3 reads such a file: the ids are numbers of lines.
TEST(VocabTxtTest, SpacesAtTheEndsOfLinesAreNoPartOfTokens) {
  const auto tokenizer = HfTokenizer::ReadVocabTxt(
      "[PAD]\r\n[UNK]\n[CLS] \n[SEP]\t\n[MASK]\nfoo \n\u3000\nbar\u00a0\n\nbaz\nfoo\t \n ##s\n##s \n \n\n");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::vector<int32_t> ids = {2, 10, 7, 9, 1, 9, 12, 3};  // of two lines foo the last one counts
  EXPECT_EQ((*tokenizer)->Encode("foo bar baz x bazs")->ids, ids);
  EXPECT_EQ((*tokenizer)->Decode({10, 7, 9, 12}, true), "foo bar bazs");
  EXPECT_EQ((*tokenizer)->Decode({5}, true), "") << "the first line foo";
}

TEST(VocabTxtTest, TokensThatItLacksComeBehindIt) {
  const auto tokenizer = HfTokenizer::ReadVocabTxt("[CLS]\n[UNK]\na\n[SEP]\n", {.added_tokens = R"({"<new>": 9})"});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->Encode("a<new>")->ids, (std::vector<int32_t>{0, 2, 4, 3}));
  EXPECT_EQ((*tokenizer)->Id("[PAD]"), 5);
  EXPECT_EQ((*tokenizer)->Id("[MASK]"), 6);
}

TEST(VocabTxtTest, WhatIsNotBertsIsRefused) {
  const std::string vocab = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n";
  auto refusal = [](const std::string& txt, const std::string& config) {
    return std::string(HfTokenizer::ReadVocabTxt(txt, {.tokenizer_config = config}).status().message());
  };
  EXPECT_EQ(refusal(vocab, R"({"tokenizer_class": "MPNetTokenizer"})"),
            "tokenizer_config.json: tokenizer_class is \"MPNetTokenizer\"; of vocab.txt alone BertTokenizer and "
            "DistilBertTokenizer are served; save the folder with tokenizer.json");
  EXPECT_EQ(refusal("[PAD]\n[CLS]\n[SEP]\n", ""),
            "tokenizer_config.json: unk_token is \"[UNK]\"; vocab.txt has no such line");
  EXPECT_EQ(refusal("[PAD]\n[UNK]\n[CLS]\n", ""),
            "tokenizer_config.json: sep_token is \"[SEP]\"; vocab.txt has no such line");
  EXPECT_EQ(refusal("\xff", ""), "vocab.txt: byte 0 is not valid UTF-8");
  EXPECT_EQ(refusal(vocab, R"({"do_lower_case": 1})"),
            "tokenizer_config.json: do_lower_case is 1; allowed: true, false");
  EXPECT_TRUE(HfTokenizer::ReadVocabTxt(vocab).ok());
}

}  // namespace
}  // namespace edgewise::tests
