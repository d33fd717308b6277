// The post-processors of tokenizer.json: they put tokens around those of one text, or of two.
#ifndef EDGEWISE_MODEL_TOKENIZERS_POST_PROCESSOR_H_
#define EDGEWISE_MODEL_TOKENIZERS_POST_PROCESSOR_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json_object.h"
#include "model/tokenizers/encoding.h"
#include "model/tokenizers/fields.h"

namespace edgewise::tokenizers {

// The tokens of one text, before the template. All vectors have one element per token; where only ids are wanted, the
// others are empty.
struct TextTokens {
  std::vector<int32_t> ids;
  std::vector<Span> offsets;
  std::vector<int32_t> words;
  // The spaces (of the byte alphabet or of Unicode) that the token's text begins and ends with. A token that is all
  // space counts them in both.
  std::vector<Span> spaces;
};

// The characters of a token's text that are spaces: {those it begins with, those it ends with}.
Span CountSpaces(std::string_view token);

// Immutable; may be used from any thread.
class PostProcessor {
 public:
  static constexpr size_t kMostAdded = 1000;  // tokens that a template adds, and its pieces

  // The one of a tokenizer.json where "post_processor" is null: the second text follows the first.
  PostProcessor();
  // From the object "post_processor". INVALID_ARGUMENT names the field that is missing, wrong or not served, or a
  // template that has more tokens than kMostAdded.
  static absl::StatusOr<PostProcessor> Read(const nlohmann::json& object, const std::string& path);

  // Tokens that the template adds to one text or to two.
  size_t AddedTokens(bool two) const;
  // The greatest of their ids, in both templates; -1: there are none.
  int32_t most_id() const;
  // The greatest type that the template gives a token, those of the texts included.
  int32_t most_type(bool two) const;
  // Whether TrimOffsets changes any, and needs TextTokens::spaces.
  bool trims() const { return !trims_.empty(); }
  // Takes spaces out of the offsets where the file says so. `text` is the one that the tokens came from.
  void TrimOffsets(std::string_view text, TextTokens& tokens) const;
  // Joins the tokens of one text, or of two, by the template; without its special tokens where `special` is false.
  Encoding Join(const std::vector<TextTokens>& texts, bool special, bool only_ids) const;

 private:
  struct Step {
    int text = -1;  // whose tokens follow: 0, 1; -1: `ids`
    int32_t type_id = 0;
    std::vector<int32_t> ids;  // special tokens
  };
  using Template = std::vector<Step>;

  // Adds one post-processor to those that were read before.
  absl::Status Add(const nlohmann::json& object, const std::string& path, Steps& steps);
  void Surround(int32_t cls, int32_t sep, bool roberta);
  static Template ReadTemplate(JsonObject& fields, const std::string& name, int texts);

  Template single_, pair_;
  std::vector<bool> trims_;  // each: whether the first space of the text may be one that was put there
  bool has_template_ = false;
};

}  // namespace edgewise::tokenizers

#endif  // EDGEWISE_MODEL_TOKENIZERS_POST_PROCESSOR_H_
