// The special tokens that the files beside tokenizer.json give, joined as transformers 5 joins them.
#ifndef EDGEWISE_MODEL_TOKENIZERS_TOKEN_FILES_H_
#define EDGEWISE_MODEL_TOKENIZERS_TOKEN_FILES_H_

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/tokenizers/vocabulary.h"

namespace edgewise {

// Texts of files; empty: there is no such file.
struct TokenFiles {
  std::string tokenizer_config = "", special_tokens_map = "", added_tokens = "";
};

namespace tokenizers {

struct GivenToken {
  nlohmann::json entry;   // as in tokenizer.json's added_tokens, without an id
  bool own_name = false;  // its name is this tokenizer's own, such as image_token
};

struct GivenTokens {
  nlohmann::json config;  // tokenizer_config.json: an object, empty where there is no such file
  // The texts by name (bos_token, image_token, ...); null: a file says that there is none.
  std::map<std::string, nlohmann::json> named;
  std::vector<GivenToken> tokens;  // in the order in which transformers adds those that are lacking
  size_t before_pad = 0;           // how many of them come before the pad token
};

// special_tokens_map.json counts before tokenizer_config.json, and not at all where the latter has
// added_tokens_decoder, which counts before added_tokens.json. INVALID_ARGUMENT: a file is no JSON object, or has no
// token where one is expected; the message begins with its name.
// `defaults`: the tokens of roles that no file names, by role; they get no name.
absl::StatusOr<GivenTokens> ReadTokenFiles(const TokenFiles& files,
                                           const std::map<std::string, std::string>& defaults = {});

// The token that `tokenizer_json` pads with, where no file says which one does: then it is one of the given ones too,
// without a name. Null: there is none, or it is not needed.
nlohmann::json TakePad(const nlohmann::json& tokenizer_json, GivenTokens& given);

// The given tokens that `list`, tokenizer.json's added_tokens, lacks, with the ids that transformers adds them with:
// that of the word or the next free one. None where the list is wrong. INVALID_ARGUMENT: two that the vocabulary lacks
// have names of this tokenizer's own, so that their order, and with it their ids, is not known.
absl::StatusOr<std::vector<nlohmann::json>> LackingTokens(const nlohmann::json& list, const GivenTokens& given,
                                                          const Vocabulary& vocabulary);

}  // namespace tokenizers
}  // namespace edgewise

#endif  // EDGEWISE_MODEL_TOKENIZERS_TOKEN_FILES_H_
