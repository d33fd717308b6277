// Tokens and their ids.
#ifndef EDGEWISE_MODEL_TOKENIZERS_VOCABULARY_H_
#define EDGEWISE_MODEL_TOKENIZERS_VOCABULARY_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/json_object.h"

namespace edgewise::tokenizers {

// Immutable once it is filled; may then be used from any thread.
class Vocabulary {
 public:
  // Whether no other token had the id. The last id of a token counts.
  bool Add(const std::string& token, int32_t id);

  // -1: there is no such token.
  int32_t Id(std::string_view token) const;
  // Null: no token has the id.
  const std::string* Token(int32_t id) const;
  size_t size() const { return ids_.size(); }   // tokens
  size_t longest() const { return longest_; }   // bytes of a token
  int32_t most_id() const { return most_id_; }  // -1: it is empty

 private:
  absl::flat_hash_map<std::string, int32_t> ids_;
  absl::flat_hash_map<int32_t, std::string> tokens_;
  size_t longest_ = 0;
  int32_t most_id_ = -1;
};

// The field "vocab" as an object of ids. The reader fails where it is wrong, or where two tokens have one id.
Vocabulary ReadVocabulary(JsonObject& fields);

}  // namespace edgewise::tokenizers

#endif  // EDGEWISE_MODEL_TOKENIZERS_VOCABULARY_H_
