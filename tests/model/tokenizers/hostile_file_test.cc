// tokenizer.json files that would take the process's time or memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/field_error.h"
#include "tests/model/tokenizers/tokenizer_case.h"

namespace edgewise::tests {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json Replacing(const std::string& from, const std::string& to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

json SequenceOf(const char* list, const json& step, size_t times) {
  json steps = json::array();
  for (size_t i = 0; i < times; ++i) steps.push_back(step);
  return {{"type", "Sequence"}, {list, steps}};
}

TEST(HostileFileTest, ATextIsNotGrownWithoutEnd) {
  const std::pair<json, std::string> cases[] = {
      {SequenceOf("normalizers", Replacing("a", "aa"), 40), "a"},
      {Replacing("a", std::string(1 << 20, 'b')), std::string(20'000, 'a')},
      {SequenceOf("normalizers", {{"type", "Prepend"}, {"prepend", std::string(1 << 10, 'b')}}, 99), "a"},
      {Replacing("a", std::string(64, 'b')), std::string(1 << 16, 'a')}};
  for (const auto& [normalizer, text] : cases) {
    json file = TokenizerJson("llama2");
    file["normalizer"] = normalizer;
    const auto encoding = MakeTokenizer(file)->Encode(text);
    EXPECT_TRUE(absl::IsInvalidArgument(encoding.status())) << encoding.status();
    EXPECT_THAT(std::string(encoding.status().message()), HasSubstr(" bytes of a part of it before it splits it"));
    EXPECT_EQ(FieldOf(encoding.status()), "text");
  }
}

TEST(HostileFileTest, AnAddedTokenIsNotGrownWithoutEnd) {
  json file = TokenizerJson("llama2");
  file["normalizer"] = SequenceOf("normalizers", Replacing("a", "aa"), 40);
  json added = file["added_tokens"][0];
  added["normalized"] = true;
  added["content"] = "a!!";
  added["id"] = file["model"]["vocab"].size();
  file["added_tokens"].push_back(added);
  EXPECT_THAT(Refusal(file), HasSubstr("content is \"a!!\": the tokenizer makes more than 65632 bytes"));
}

TEST(HostileFileTest, ADecoderDoesNotGrowATokenWithoutEnd) {
  json file = TokenizerJson("llama2");
  file["decoder"] = SequenceOf("decoders", Replacing("e", "ee"), 3);
  EXPECT_NE(MakeTokenizer(file), nullptr);
  file["decoder"] = SequenceOf("decoders", Replacing("e", "ee"), 40);
  EXPECT_THAT(Refusal(file),
              HasSubstr("tokenizer.json: decoder: its Replace steps make up to 1073741824 bytes of one"));
  file["decoder"] = Replacing("e", std::string(1 << 16, 'x'));
  EXPECT_THAT(Refusal(file), HasSubstr("a token may become at most 65536 bytes of text"));
}

TEST(HostileFileTest, StepsHaveALimit) {
  const json nfc = {{"type", "NFC"}}, digits = {{"type", "Digits"}, {"individual_digits", true}},
             strip = {{"type", "Strip"}, {"content", " "}, {"start", 0}, {"stop", 0}};
  const std::tuple<const char*, const char*, json> cases[] = {
      {"normalizer", "normalizers", nfc}, {"pre_tokenizer", "pretokenizers", digits}, {"decoder", "decoders", strip}};
  for (const auto& [part, list, step] : cases) {
    json file = TokenizerJson("llama2");
    file[part] = SequenceOf(list, step, 99);
    EXPECT_NE(MakeTokenizer(file), nullptr);
    file[part] = SequenceOf(list, step, 100);
    EXPECT_EQ(Refusal(file), std::string("tokenizer.json: ") + part + "." + list +
                                 "[99] is one step too many; allowed are at most 100 in one part of the file, each "
                                 "Sequence one of them");
    file[part] = SequenceOf(list, SequenceOf(list, step, 10), 10);
    EXPECT_THAT(Refusal(file), HasSubstr("is one step too many")) << "also where they are nested";
  }
}

TEST(HostileFileTest, TemplatesHaveALimit) {
  json file = TokenizerJson("bert");
  json& single = file["post_processor"]["single"];
  const json piece = single[0];
  for (int i = 0; i < 1000; ++i) single.push_back(piece);
  EXPECT_THAT(Refusal(file), HasSubstr("makes the template too long; allowed are 1000 pieces and as many special"));
  file = TokenizerJson("bert");
  json& special = file["post_processor"]["special_tokens"]["[CLS]"];
  for (int i = 0; i < 1000; ++i) {
    special["ids"].push_back(1);
    special["tokens"].push_back("[UNK]");
  }
  EXPECT_THAT(Refusal(file), HasSubstr("post_processor.single[0] makes the template too long"));
}

TEST(HostileFileTest, AddedTokensHaveALimit) {
  json file = TokenizerJson("bert");
  const json token = file["added_tokens"][0];
  while (file["added_tokens"].size() <= 100'000) file["added_tokens"].push_back(token);
  EXPECT_EQ(Refusal(file), "tokenizer.json: added_tokens has 100001 entries; allowed are at most 100000");
}

// Each place looks at the whole of a long added token, or of a long token of the vocabulary.
TEST(HostileFileTest, WhatIsLookedAtAgainAndAgainEndsInTime) {
  class Ending : public WorkBounds {
   public:
    absl::Status Continue() override { return ++asks_ > 1000 ? absl::DeadlineExceededError("late") : absl::OkStatus(); }

   private:
    int asks_ = 0;
  };
  const std::string text(1 << 20, 'a');
  json added = TokenizerJson("bert");
  added["added_tokens"][0]["content"] = std::string(1 << 15, 'a') + "b";
  added["added_tokens"][0]["id"] = added["model"]["vocab"].size();
  json unigram = TokenizerJson("xlm-roberta");
  unigram["model"]["vocab"].push_back({std::string(1 << 15, 'a'), -1.0});
  for (const json& file : {added, unigram}) {
    Ending bounds;
    EXPECT_EQ(MakeTokenizer(file)->Encode(text, {}, bounds).status(), absl::DeadlineExceededError("late"));
  }
}

}  // namespace
}  // namespace edgewise::tests
