#include "model/kinds/kind.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace edgewise {

AttentionKinds Kinds() {
  static constexpr const AttentionKind* kKinds[] = {&kDenseKind, &kSbmKind, &kSsaKind, &kBlockKind};
  return kKinds;
}

std::string AttentionName(std::span<const AttentionConfig> layers) {
  std::vector<std::string> names;
  for (const AttentionConfig& attention : layers) {
    const AttentionKind& kind = *attention.kind;
    const std::string name =
        kind.variant == nullptr ? kind.name : absl::StrCat(kind.name, "/", kind.variant(attention));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return absl::StrJoin(names, ",");
}

}  // namespace edgewise
