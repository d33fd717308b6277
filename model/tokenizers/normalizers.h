// What is done to a text before it is split: the normalizers of tokenizer.json.
#ifndef EDGEWISE_MODEL_TOKENIZERS_NORMALIZERS_H_
#define EDGEWISE_MODEL_TOKENIZERS_NORMALIZERS_H_

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/tokenizers/aligned_text.h"

namespace edgewise::tokenizers {

// Immutable; may be used from any thread.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // INVALID_ARGUMENT: a pattern takes too long for the text.
  virtual absl::Status Normalize(AlignedText& text) const = 0;
};

// From an object of tokenizer.json whose path there is `path`. INVALID_ARGUMENT names the field that is missing, wrong
// or not served.
absl::StatusOr<std::unique_ptr<Normalizer>> ReadNormalizer(const nlohmann::json& object, const std::string& path);

}  // namespace edgewise::tokenizers

#endif  // EDGEWISE_MODEL_TOKENIZERS_NORMALIZERS_H_
