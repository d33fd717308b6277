#include "model/tokenizers/vocabulary.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "model/tokenizers/fields.h"

namespace edgewise::tokenizers {

using nlohmann::json;

bool Vocabulary::Add(const std::string& token, int32_t id) {
  ids_[token] = id;
  longest_ = std::max(longest_, token.size());
  most_id_ = std::max(most_id_, id);
  return tokens_.try_emplace(id, token).second;
}

int32_t Vocabulary::Id(std::string_view token) const {
  const auto found = ids_.find(View(token));
  return found == ids_.end() ? -1 : found->second;
}

const std::string* Vocabulary::Token(int32_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : &found->second;
}

Vocabulary ReadVocabulary(JsonObject& fields) {
  Vocabulary vocabulary;
  const json& entries = fields.Value("vocab", true);
  if (entries.is_null()) return vocabulary;
  if (!entries.is_object()) {
    fields.FailAt("vocab", entries, "an object from tokens to ids is expected");
    return vocabulary;
  }
  for (const auto& [token, id] : entries.items()) {
    if (!IsInteger(id, 0, kMostIds - 1)) {
      fields.Fail(absl::StrCat(fields.Path("vocab"), "[", ShowJson(json(token)), "] is ", ShowJson(id),
                               "; allowed: an integer from 0 to ", kMostIds - 1));
      return vocabulary;
    }
    if (!vocabulary.Add(token, id.get<int32_t>())) {
      fields.Fail(absl::StrCat(fields.Path("vocab"), "[", ShowJson(json(token)), "] is ", ShowJson(id), ", as [",
                               ShowJson(json(*vocabulary.Token(id.get<int32_t>()))), "]; every token has its own id"));
      return vocabulary;
    }
  }
  return vocabulary;
}

}  // namespace edgewise::tokenizers
