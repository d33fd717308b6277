// How a normalised text is cut into words: the pre-tokenizers of tokenizer.json.
#ifndef EDGEWISE_MODEL_TOKENIZERS_PRE_TOKENIZERS_H_
#define EDGEWISE_MODEL_TOKENIZERS_PRE_TOKENIZERS_H_

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/tokenizers/aligned_text.h"
#include "model/tokenizers/fields.h"

namespace edgewise::tokenizers {

// The fate of the matched parts when a text is split.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Takes one word after the other; an error ends the work with it.
using WordSink = absl::FunctionRef<absl::Status(AlignedText)>;

// Immutable; may be used from any thread.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Cuts `text` into words, each handed on before the next is cut. No word is empty. INVALID_ARGUMENT: a pattern takes
  // too long, or a word becomes longer than work.most_bytes. Ends as the bounds of `work` say.
  virtual absl::Status Cut(AlignedText text, Work& work, WordSink take) const = 0;
};

// From an object of tokenizer.json whose path there is `path`. INVALID_ARGUMENT names the field that is missing, wrong
// or not served; or the steps are too many.
absl::StatusOr<std::unique_ptr<PreTokenizer>> ReadPreTokenizer(const nlohmann::json& object, const std::string& path,
                                                               Steps& steps);

}  // namespace edgewise::tokenizers

#endif  // EDGEWISE_MODEL_TOKENIZERS_PRE_TOKENIZERS_H_
