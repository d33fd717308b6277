// The tokenizers of tests/testdata_tokenizers.
#ifndef EDGEWISE_TESTS_MODEL_TOKENIZERS_TOKENIZER_CASE_H_
#define EDGEWISE_TESTS_MODEL_TOKENIZERS_TOKENIZER_CASE_H_

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/tokenizers/hf_tokenizer.h"

namespace edgewise::tests {

// The names of the files: bert, gpt2, ...
const std::vector<std::string>& TokenizerKinds();

nlohmann::json ReadTokenizerFile(const std::string& name);

// The tokenizer.json of a kind.
nlohmann::json TokenizerJson(const std::string& kind);

// Of a file that must be good.
std::unique_ptr<HfTokenizer> MakeTokenizer(const nlohmann::json& tokenizer_json);

// The message of a file that must be refused.
std::string Refusal(const nlohmann::json& tokenizer_json, const std::string& config = "");

}  // namespace edgewise::tests

#endif  // EDGEWISE_TESTS_MODEL_TOKENIZERS_TOKENIZER_CASE_H_
