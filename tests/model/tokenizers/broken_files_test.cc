// tokenizer.json files that are broken, or hold what is not served: each is refused with a message that names the
// field.
#include <gtest/gtest.h>

#include "tests/model/tokenizers/tokenizer_case.h"

namespace edgewise::tests {
namespace {

using nlohmann::json;

struct Broken {
  const char* kind;     // the file that is changed
  const char* patch;    // a JSON patch's "replace" or "add": {path: value}; null removes
  const char* message;  // behind "tokenizer.json: "
};

json Changed(const Broken& broken) {
  json file = TokenizerJson(broken.kind);
  const json patch = json::parse(broken.patch);
  for (const auto& [path, value] : patch.items()) {
    const json::json_pointer at(path);
    if (value == "REMOVE") {
      file.at(at.parent_pointer()).erase(at.back());
    } else {
      file[at] = value;
    }
  }
  return file;
}

TEST(BrokenTokenizerTest, EveryFieldIsNamed) {
  const Broken cases[] = {
      {"bert", R"({"/version": "2.0"})", R"(version is "2.0"; served is "1.0")"},
      {"bert", R"({"/modle": 1})", "unknown field \"modle\"; did you mean model?"},
      {"bert", R"({"/model": "REMOVE"})", "model is missing"},
      {"bert", R"({"/model": 7})", "model is 7; an object is expected"},
      {"bert", R"({"/model/type": "WordSeg"})",
       R"(model.type is "WordSeg"; served are WordPiece, BPE, Unigram, WordLevel)"},
      {"bert", R"({"/model/type": "REMOVE"})", "model.type is missing"},
      {"bert", R"({"/model/unk_token": "[NONE]"})", R"(model.unk_token is "[NONE]"; vocab lacks it)"},
      {"bert", R"({"/model/max_input_chars_per_word": 0})",
       "model.max_input_chars_per_word is 0; allowed: an integer from 1 to 10000"},
      {"bert", R"({"/model/vocab": []})", "model.vocab is []; an object from tokens to ids is expected"},
      {"bert", R"({"/model/vocab/[CLS]": -1})",
       R"(model.vocab["[CLS]"] is -1; allowed: an integer from 0 to 16777215)"},
      {"bert", R"({"/model/vocab/twin": 2})", R"(model.vocab["twin"] is 2, as ["[CLS]"]; every token has its own id)"},
      {"bert", R"({"/normalizer/type": "Fold"})",
       R"(normalizer.type is "Fold"; served are BertNormalizer, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, )"
       "Replace, Prepend, Precompiled, ByteLevel, Nmt, Sequence"},
      {"bert", R"({"/normalizer/lowercase": "REMOVE"})", "normalizer.lowercase is missing"},
      {"bert", R"({"/normalizer/fold": true})", R"(unknown field normalizer."fold")"},
      {"bert", R"({"/pre_tokenizer/type": "FixedLength"})",
       R"(pre_tokenizer.type is "FixedLength"; served are BertPreTokenizer, ByteLevel, Split, Whitespace, )"
       "WhitespaceSplit, Punctuation, Digits, Metaspace, UnicodeScripts, Sequence"},
      {"word-level", R"({"/model/unk_token": "REMOVE"})", "model.unk_token is missing"},
      {"word-level", R"({"/model/prefix": ""})", R"(unknown field model."prefix")"},
      {"word-level", R"({"/model/vocab": []})", "model.vocab is []; an object from tokens to ids is expected"},
      {"bert", R"({"/decoder/type": "CTC"})",
       R"(decoder.type is "CTC"; served are WordPiece, ByteLevel, Metaspace, ByteFallback, Fuse, Strip, Replace, Sequence)"},
      {"bert", R"({"/post_processor/type": "Other"})",
       R"(post_processor.type is "Other"; served are TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel, )"
       "Sequence"},
      {"bert", R"({"/post_processor/single/1/Sequence/id": "B"})",
       R"(post_processor.single[1].Sequence.id is "B"; once each are served: A)"},
      {"bert", R"({"/post_processor/pair/3/Sequence/id": "A"})",
       R"(post_processor.pair[3].Sequence.id is "A"; once each are served: A, B)"},
      {"bert", R"({"/post_processor/single/0": {"Other": {}}})", "post_processor.single[0].SpecialToken is missing"},
      {"bert", R"({"/post_processor/special_tokens/[SEP]": "REMOVE"})",
       R"(post_processor.special_tokens lacks "[SEP]", which a template names)"},
      {"bert", R"({"/post_processor/special_tokens/[SEP]/ids": [-3]})",
       R"(post_processor.special_tokens["[SEP]"].ids is [-3]; allowed: integers from 0 to 16777215)"},
      {"bert-cased", R"({"/post_processor/cls": ["[CLS]"]})",
       R"(post_processor.cls is ["[CLS]"]; a pair of token and id is expected)"},
      {"bert", R"({"/added_tokens": {}})", "added_tokens is {}; a list is expected"},
      {"bert", R"({"/added_tokens/0/id": 9})",
       R"(added_tokens[0].id is 9, but "[PAD]" has the id 0: that of model.vocab, or the next free one)"},
      {"bert", R"({"/added_tokens/0/lstrip": 1})", "added_tokens[0].lstrip is 1; allowed: true, false"},
      {"mixed", R"({"/added_tokens/1/content": " \u0301 "})",
       R"(added_tokens[1].content is " \u0301 "; the normalizer leaves nothing)"},
      {"mixed", R"({"/added_tokens/2/content": "density"})",
       R"(added_tokens has two tokens that are "density" once they are normalised)"},
      {"gpt2", R"({"/model/dropout": 0.1})", "model.dropout is 0.1; served are null and 0.0"},
      {"gpt2", R"({"/model/end_of_word_suffix": "</w>"})",
       R"(model.end_of_word_suffix is "</w>"; served are null and "")"},
      {"gpt2", R"({"/model/merges/0": ["a", "b", "c"]})",
       R"(model.merges[0] is ["a","b","c"]; two tokens are expected, in one form for all merges)"},
      {"gpt2", R"({"/model/merges/1": "i n"})",
       R"(model.merges[1] is "i n"; two tokens are expected, in one form for all merges)"},
      {"gpt2", R"({"/model/merges/0": ["zz", "a"]})", R"(model.merges[0] is ["zz","a"]; vocab lacks "zz")"},
      {"gpt2", R"({"/pre_tokenizer/add_prefix_space": "REMOVE"})", "pre_tokenizer.add_prefix_space is missing"},
      {"qwen", R"({"/pre_tokenizer/pretokenizers/0/pattern": {"Regex": "a|[b"}})",
       "pre_tokenizer.pretokenizers[0].pattern.Regex is not a regular expression of Oniguruma: premature end of "
       "char-class"},
      {"qwen", R"({"/pre_tokenizer/pretokenizers/0/behavior": "Other"})",
       R"(pre_tokenizer.pretokenizers[0].behavior is "Other"; allowed: Removed, Isolated, MergedWithPrevious, )"
       "MergedWithNext, Contiguous"},
      {"llama2", R"({"/decoder/decoders/3/content": "ab"})",
       R"(decoder.decoders[3].content is "ab"; one character is expected)"},
      {"llama2", R"({"/decoder/decoders/3": {"type": "WordPiece", "prefix": "##", "cleanup": true}})",
       R"(decoder.decoders[3].type is "WordPiece"; after Fuse or ByteLevel served are Fuse, Strip, Replace)"},
      {"llama2", R"({"/normalizer/normalizers/1/pattern": {"String": ""}})",
       "normalizer.normalizers[1].pattern.String is empty"},
      {"mistral", R"({"/pre_tokenizer/prepend_scheme": "last"})",
       R"(pre_tokenizer.prepend_scheme is "last"; allowed: first, never, always)"},
      {"mistral", R"({"/pre_tokenizer/add_prefix_space": false})",
       "pre_tokenizer.add_prefix_space is false; it contradicts prepend_scheme"},
      {"llama3", R"({"/post_processor/processors/0": {"type": "BertProcessing", "sep": ["a", 1], "cls": ["b", 2]}})",
       R"(post_processor.processors[1].type is "TemplateProcessing"; nothing is served after a template)"},
      {"xlm-roberta", R"({"/normalizer/normalizers/0/precompiled_charsmap": "!"})",
       R"(normalizer.normalizers[0].precompiled_charsmap is "!"; bytes in base64 are expected)"},
      {"xlm-roberta", R"({"/normalizer/normalizers/0/precompiled_charsmap": "/////w=="})",
       "normalizer.normalizers[0].precompiled_charsmap holds no trie: it has 4 bytes"},
      {"xlm-roberta", R"({"/model/vocab": []})",
       "model.vocab is []; a list of 1 to 16777216 pairs of token and score is expected"},
      {"xlm-roberta", R"({"/model/vocab/4": ["a", "b"]})",
       R"(model.vocab[4] is ["a","b"]; a pair of token and score is expected)"},
      {"xlm-roberta", R"({"/model/unk_id": 5000})", "model.unk_id is 5000; allowed: an integer from 0 to 420"},
  };
  for (const Broken& broken : cases) {
    SCOPED_TRACE(std::string(broken.kind) + " " + broken.patch);
    EXPECT_EQ(Refusal(Changed(broken)), std::string("tokenizer.json: ") + broken.message);
  }
}

std::string Objects(int count) {
  std::string text = "[{}";
  for (int i = 1; i < count; ++i) text += ",{}";
  return text + "]";
}

TEST(BrokenTokenizerTest, WhatIsNoJsonIsRefused) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "tokenizer.json: not valid JSON: "},
      {"{\"model\": ", "tokenizer.json: not valid JSON: "},
      {"[]", "tokenizer.json: the file is []; an object is expected"},
      {"{\"a\": \"\xff\"}", "tokenizer.json: not valid JSON: "},
      {"{\"a\": 1, \"a\": 2}", "tokenizer.json: model is missing"},  // the last counts
      {std::string(40, '['), "tokenizer.json: nested deeper than 16 levels"},
      {Objects(300'000), "tokenizer.json: the file is [{},{}"},
      {Objects(300'001), "tokenizer.json: has more than 300000 objects {...}"},
      {std::string("{\0}", 3), "tokenizer.json: not valid JSON: line 1, column 2: found the byte 0x00; a key"}};
  for (const auto& [text, message] : cases) {
    const auto tokenizer = HfTokenizer::Read(text);
    EXPECT_EQ(std::string(tokenizer.status().message()).substr(0, message.size()), message);
  }
}

// A trie that points anywhere: an error of the text, or an answer, but nothing outside the trie is read.
TEST(BrokenTokenizerTest, TriesMayPointAnywhere) {
  auto file = TokenizerJson("xlm-roberta");
  json& charsmap = file["normalizer"]["normalizers"][0]["precompiled_charsmap"];
  const std::string good = charsmap;
  for (size_t at = 8; at < good.size() && at < 4000; at += 3) {
    std::string bad = good;
    bad[at] = bad[at] == 'x' ? 'y' : 'x';
    charsmap = bad;
    const auto tokenizer = HfTokenizer::Read(file.dump());
    if (!tokenizer.ok()) continue;
    const auto encoding = (*tokenizer)->Encode("ﬁ ½ … é\r\n①\u3000x\tﷺ");
    if (!encoding.ok()) {
      EXPECT_EQ(encoding.status().message(),
                "text: tokenizer.json: precompiled_charsmap points outside its replacements");
    }
  }
}

}  // namespace
}  // namespace edgewise::tests
