#include "model/checkpoint/hugging_face/text_limit.h"

#include "absl/strings/str_cat.h"
#include "base/json_object.h"
#include "model/checkpoint/hugging_face/sentence_settings.h"
#include "model/config/config.h"

namespace edgewise::hugging_face {

absl::StatusOr<int32_t> ReadModelMaxLength(ModelFolder& files) {
  constexpr char kFile[] = "tokenizer_config.json", kField[] = "model_max_length";
  const absl::StatusOr<nlohmann::json> config = ReadJson(files, kFile);
  if (absl::IsNotFound(config.status())) return 0;
  if (!config.ok()) return config.status();
  const nlohmann::json limit = config->is_object() ? config->value(kField, nlohmann::json()) : nlohmann::json();
  if (limit.is_null()) return 0;
  // transformers writes 1e30 where there is no limit.
  if (limit.is_number() && limit.get<double>() > kMaxPositions) return 0;
  if (IsInteger(limit, 1, kMaxPositions)) return limit.get<int32_t>();
  return InvalidIn(kFile, absl::StrCat(kField, " is ", ShowJson(limit), "; a number of tokens is expected, 1 or more"));
}

}  // namespace edgewise::hugging_face
