// The ids of special tokens, and what tokenizer_config.json says of BERT's normalizer and vocabulary.
#ifndef EDGEWISE_MODEL_TOKENIZERS_SPECIAL_TOKENS_H_
#define EDGEWISE_MODEL_TOKENIZERS_SPECIAL_TOKENS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/tokenizers/token_files.h"

namespace edgewise {

// Ids of the special tokens by their part; -1: no file names one.
struct SpecialTokens {
  int32_t bos = -1, eos = -1, unk = -1, sep = -1, pad = -1, cls = -1, mask = -1;
  // The texts of these and of others by the names that the files have: bos_token, image_token, ... Nothing: a file says
  // that there is no such token.
  std::map<std::string, std::optional<std::string>> named;
};

namespace tokenizers {

// `id_of`: the id of a token, or -1; the tokenizer has all that are given. INVALID_ARGUMENT: added_tokens_decoder of
// tokenizer_config.json says another id.
absl::StatusOr<SpecialTokens> ReadSpecialTokens(const GivenTokens& given,
                                                const std::function<int32_t(const std::string&)>& id_of);

// INVALID_ARGUMENT: fields of `config` that transformers sets in the normalizer of BERT contradict that of `tokenizer`,
// tokenizer.json.
absl::Status CheckAgainstConfig(const nlohmann::json& tokenizer, const nlohmann::json& config);

// The special tokens that BERT has where no file names others, by role.
const std::map<std::string, std::string>& BertTokens();

// The tokenizer.json that transformers makes of BERT's vocab.txt and the other files. INVALID_ARGUMENT:
// tokenizer_config.json is for another tokenizer, or vocab.txt lacks the unknown token or one of the template.
absl::StatusOr<nlohmann::json> BertTokenizerJson(const std::string& vocab_txt, const GivenTokens& given);

}  // namespace tokenizers
}  // namespace edgewise

#endif  // EDGEWISE_MODEL_TOKENIZERS_SPECIAL_TOKENS_H_
