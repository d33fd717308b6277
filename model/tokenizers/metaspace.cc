#include "model/tokenizers/metaspace.h"

#include "model/tokenizers/fields.h"

namespace edgewise::tokenizers {

Metaspace ReadMetaspace(JsonObject& fields) {
  Metaspace metaspace;
  metaspace.replacement = RequiredCharacter(fields, "replacement");
  metaspace.prepend = static_cast<Metaspace::Prepend>(fields.Choice("prepend_scheme", {"first", "never", "always"}, 2));
  if (!fields.Value("split", false).is_null()) metaspace.split = fields.Boolean("split", true);
  const nlohmann::json& prefix = fields.Value("add_prefix_space", false);  // of files before prepend_scheme
  if (!prefix.is_null() && !fields.Boolean("add_prefix_space", true)) {
    if (fields.Has("prepend_scheme") && metaspace.prepend != Metaspace::Prepend::kNever) {
      fields.FailAt("add_prefix_space", prefix, "it contradicts prepend_scheme");
    }
    metaspace.prepend = Metaspace::Prepend::kNever;
  }
  OptionalString(fields, "str_rep");
  return metaspace;
}

}  // namespace edgewise::tokenizers
