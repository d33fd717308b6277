// Shared by the pre-tokenizer and the decoder Metaspace: a character that stands for the space.
#ifndef EDGEWISE_MODEL_TOKENIZERS_METASPACE_H_
#define EDGEWISE_MODEL_TOKENIZERS_METASPACE_H_

#include "base/json_object.h"

namespace edgewise::tokenizers {

struct Metaspace {
  enum class Prepend { kFirst, kNever, kAlways };
  char32_t replacement = 0x2581;
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};

// The fields but for "type". The reader fails where one is wrong.
Metaspace ReadMetaspace(JsonObject& fields);

}  // namespace edgewise::tokenizers

#endif  // EDGEWISE_MODEL_TOKENIZERS_METASPACE_H_
