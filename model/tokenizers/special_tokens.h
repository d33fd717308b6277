// What tokenizer_config.json adds to tokenizer.json.
#ifndef EDGEWISE_MODEL_TOKENIZERS_SPECIAL_TOKENS_H_
#define EDGEWISE_MODEL_TOKENIZERS_SPECIAL_TOKENS_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace edgewise {

// Ids of the special tokens by their part; -1: tokenizer_config.json names none.
struct SpecialTokens {
  int32_t bos = -1, eos = -1, unk = -1, sep = -1, pad = -1, cls = -1, mask = -1;
};

namespace tokenizers {

// `config`: tokenizer_config.json. `id_of`: the id of a token, or -1. INVALID_ARGUMENT: a field is wrong, or names a
// token that is not there or has another id there.
absl::StatusOr<SpecialTokens> ReadSpecialTokens(const nlohmann::json& config,
                                                const std::function<int32_t(const std::string&)>& id_of);

// INVALID_ARGUMENT: fields of `config` that transformers sets in the normalizer of BERT contradict that of `tokenizer`,
// tokenizer.json.
absl::Status CheckAgainstConfig(const nlohmann::json& tokenizer, const nlohmann::json& config);

// The tokenizer.json that transformers makes of BERT's vocab.txt and `config`. INVALID_ARGUMENT: `config` is for
// another tokenizer, or a token of the template is missing.
absl::StatusOr<nlohmann::json> BertTokenizerJson(const std::string& vocab_txt, const nlohmann::json& config);

}  // namespace tokenizers
}  // namespace edgewise

#endif  // EDGEWISE_MODEL_TOKENIZERS_SPECIAL_TOKENS_H_
