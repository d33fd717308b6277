// Tokens that are found in the text before anything is split: special tokens, and words that users added.
#ifndef EDGEWISE_MODEL_TOKENIZERS_ADDED_TOKENS_H_
#define EDGEWISE_MODEL_TOKENIZERS_ADDED_TOKENS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/tokenizers/byte_trie.h"
#include "model/tokenizers/normalizers.h"
#include "model/tokenizers/vocabulary.h"
#include "model/tokenizers/work.h"

namespace edgewise::tokenizers {

// Immutable; may be used from any thread.
class AddedTokens {
 public:
  static constexpr size_t kMost = 100'000;

  // From the list "added_tokens" of tokenizer.json and `more` such entries. `normalizer` may be null. INVALID_ARGUMENT
  // names the field that is missing or wrong, or an id that `tokenizers` would not give: a token that `vocabulary`
  // lacks has the next free id; or there are more than kMost.
  static absl::StatusOr<AddedTokens> Read(const nlohmann::json& list, const std::vector<nlohmann::json>& more,
                                          const Vocabulary& vocabulary, const Normalizer* normalizer);

  // A part of a text that is not empty, and the id of the added token that it is; -1: it is none.
  using Take = absl::FunctionRef<absl::Status(AlignedText, int32_t)>;
  // Finds the tokens that are not normalised in `text`; normalises what is between them; and finds the others there.
  // Each part is handed on before the next is found. Sets work.most_bytes for each.
  absl::Status Extract(std::string_view text, const Normalizer* normalizer, Work& work, Take take) const;

  int32_t Id(std::string_view content) const;  // -1: there is none
  // As decoders see it: normalised where the token is. Null: no added token has the id.
  const std::string* Text(int32_t id) const;
  // Whether a text, as Text gives it, is that of a special token.
  bool IsSpecial(const std::string& text) const { return special_.contains(text); }
  int32_t most_id() const { return most_id_; }  // -1: there are none

 private:
  struct Added {
    std::string content;
    std::string text;  // normalised where the token is
    bool single_word = false, strip_left = false, strip_right = false, normalized = false;
  };

  absl::Status Index();
  // Finds the tokens of `trie`: bytes [begin, end) of `text` and their id, and what is between them.
  absl::Status Find(std::string_view text, const ByteTrie& trie, Work& work,
                    absl::FunctionRef<absl::Status(uint32_t, uint32_t, int32_t)> take) const;

  absl::flat_hash_map<int32_t, Added> tokens_;
  absl::flat_hash_map<std::string, int32_t> ids_;
  absl::flat_hash_set<std::string> special_;
  ByteTrie as_given_, normalized_;
  int32_t most_id_ = -1;
};

}  // namespace edgewise::tokenizers

#endif  // EDGEWISE_MODEL_TOKENIZERS_ADDED_TOKENS_H_
