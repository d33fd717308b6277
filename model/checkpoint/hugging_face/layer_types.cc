#include "model/checkpoint/hugging_face/layer_types.h"

#include "absl/strings/str_cat.h"

namespace edgewise::hugging_face {

std::optional<std::vector<bool>> ReadLayerTypes(JsonObject& object, int32_t layers) {
  const nlohmann::json& types = object.Value("layer_types", false);
  if (types.is_null()) return std::nullopt;
  if (!types.is_array() || types.size() != static_cast<size_t>(layers)) {
    object.FailAt("layer_types", types, absl::StrCat("a list of ", layers, " strings is expected"));
    return std::nullopt;
  }
  std::vector<bool> windows;
  for (const nlohmann::json& type : types) {
    if (type != "sliding_attention" && type != "full_attention") {
      object.FailAt(absl::StrCat("layer_types[", windows.size(), "]"), type,
                    "served: full_attention, sliding_attention");
      return std::nullopt;
    }
    windows.push_back(type == "sliding_attention");
  }
  return windows;
}

}  // namespace edgewise::hugging_face
