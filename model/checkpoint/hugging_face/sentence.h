// The modules of a sentence-transformers folder: how rows become the vector of a text.
#ifndef EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_SENTENCE_H_
#define EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_SENTENCE_H_

#include <string>

#include "absl/status/statusor.h"
#include "model/checkpoint/config.h"

namespace edgewise::hugging_face {

struct SentenceModules {
  Pooling pooling = Pooling::kMeanValid;
  bool normalize = false;
};

// Reads modules.json and the config.json of the Pooling module. NOT_FOUND: there is no modules.json. INVALID_ARGUMENT:
// a module or a way of pooling is not served; the message begins with the name of the file.
absl::StatusOr<SentenceModules> ReadSentenceModules(const std::string& directory);

}  // namespace edgewise::hugging_face

#endif  // EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_SENTENCE_H_
