// The normalizers of tokenizer.json: they change a text before it is split.
#ifndef EDGEWISE_MODEL_TOKENIZERS_NORMALIZERS_H_
#define EDGEWISE_MODEL_TOKENIZERS_NORMALIZERS_H_

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/tokenizers/aligned_text.h"
#include "model/tokenizers/fields.h"

namespace edgewise::tokenizers {

// Immutable; may be used from any thread.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // INVALID_ARGUMENT: a pattern takes too long for the text, or the text becomes longer than work.most_bytes. Ends as
  // the bounds of `work` say.
  virtual absl::Status Normalize(AlignedText& text, Work& work) const = 0;
};

// From an object of tokenizer.json whose path there is `path`. INVALID_ARGUMENT names the field that is missing, wrong
// or not served; or the steps are too many.
absl::StatusOr<std::unique_ptr<Normalizer>> ReadNormalizer(const nlohmann::json& object, const std::string& path,
                                                           Steps& steps);

}  // namespace edgewise::tokenizers

#endif  // EDGEWISE_MODEL_TOKENIZERS_NORMALIZERS_H_
