#include "model/checkpoint/attention_config.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/kinds/kind.h"

namespace edgewise {
namespace {

using nlohmann::json;

// One object of `attention`, which says what `layers` are.
void ParseEntry(const json& value, const std::string& path, bool listed, const ModelConfig& config,
                AttentionKinds kinds, std::span<AttentionConfig> layers, JsonObject& parent) {
  JsonObject object(value, path);
  std::vector<std::string> names, causal;
  for (const AttentionKind* kind : kinds) {
    names.push_back(kind->name);
    if (kind->causal) causal.push_back(kind->name);
  }
  const AttentionKind& kind = *kinds[object.Choice("kind", names)];
  if (config.causal && !kind.causal) {
    object.Fail(absl::StrCat(object.Path("kind"), " is \"", kind.name,
                             "\"; allowed on a causal model: ", absl::StrJoin(causal, ", ")));
  }
  for (AttentionConfig& layer : layers) layer.kind = &kind;
  if (kind.parse != nullptr) kind.parse(object, config, listed, layers);
  const absl::Status status = object.Finish();
  if (!status.ok()) parent.Fail(std::string(status.message()));
}

}  // namespace

void ParseAttention(JsonObject& object, AttentionKinds kinds, ModelConfig& config) {
  const json& value = object.Value("attention", true);
  const size_t layers = config.num_hidden_layers;
  config.attention.resize(layers);
  const std::span<AttentionConfig> all(config.attention);
  if (value.is_object()) return ParseEntry(value, "attention", false, config, kinds, all, object);
  if (!value.is_array() || value.size() != layers) {
    return object.Fail(
        absl::StrCat("attention: an object, or a list of ", layers, " objects (one per layer) is expected"));
  }
  for (size_t l = 0; l < layers; ++l) {
    ParseEntry(value[l], absl::StrCat("attention[", l, "]"), true, config, kinds, all.subspan(l, 1), object);
    if (config.tied_layers && value[l] != value[0]) {
      object.Fail(absl::StrCat("attention[", l, "] differs from attention[0]; tied layers share theirs"));
    }
  }
}

std::string AttentionName(const ModelConfig& config) {
  std::vector<std::string> names;
  for (const AttentionConfig& attention : config.attention) {
    const AttentionKind& kind = *attention.kind;
    const std::string name =
        kind.variant == nullptr ? kind.name : absl::StrCat(kind.name, "/", kind.variant(attention));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return absl::StrJoin(names, ",");
}

}  // namespace edgewise
