#include "tests/model/tokenizers/tokenizer_case.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "tests/support/paths.h"

namespace edgewise::tests {

using nlohmann::json;

const std::vector<std::string>& TokenizerKinds() {
  static const std::vector<std::string>& kinds = *new std::vector<std::string>{
      "bert",   "bert-cased", "gpt2",        "roberta",       "llama3", "qwen",       "modernbert",
      "llama2", "mistral",    "xlm-roberta", "unigram-bytes", "mixed",  "word-level", "scripts"};
  return kinds;
}

json ReadTokenizerFile(const std::string& name) {
  std::ifstream file(TokenizersFolder() + "/" + name + ".json", std::ios::binary);
  EXPECT_TRUE(file) << name;
  return json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
}

json TokenizerJson(const std::string& kind) { return ReadTokenizerFile(kind)["tokenizer"]; }

std::unique_ptr<HfTokenizer> MakeTokenizer(const json& tokenizer_json) {
  auto tokenizer = HfTokenizer::Read(tokenizer_json.dump());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::string Refusal(const json& tokenizer_json, const std::string& config) {
  const auto tokenizer = HfTokenizer::Read(tokenizer_json.dump(), {.tokenizer_config = config});
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(tokenizer.status().message());
}

}  // namespace edgewise::tests
