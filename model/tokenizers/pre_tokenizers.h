// How a normalised text is cut into words: the pre-tokenizers of tokenizer.json.
#ifndef EDGEWISE_MODEL_TOKENIZERS_PRE_TOKENIZERS_H_
#define EDGEWISE_MODEL_TOKENIZERS_PRE_TOKENIZERS_H_

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/tokenizers/aligned_text.h"

namespace edgewise::tokenizers {

// A word that the model will tokenize, or an added token, which nothing changes any more.
struct Piece {
  AlignedText text;
  int32_t added_token = -1;  // its id; -1: a word
};

// Immutable; may be used from any thread.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Cuts the words among `pieces`, in their order. No word is empty. INVALID_ARGUMENT: a pattern takes too long.
  virtual absl::Status Cut(std::vector<Piece>& pieces) const = 0;
};

// From an object of tokenizer.json whose path there is `path`. INVALID_ARGUMENT names the field that is missing, wrong
// or not served.
absl::StatusOr<std::unique_ptr<PreTokenizer>> ReadPreTokenizer(const nlohmann::json& object, const std::string& path);

}  // namespace edgewise::tokenizers

#endif  // EDGEWISE_MODEL_TOKENIZERS_PRE_TOKENIZERS_H_
