#include "model/kinds/kind.h"

namespace edgewise {

AttentionKinds Kinds() {
  static constexpr const AttentionKind* kKinds[] = {&kDenseKind, &kSbmKind, &kSsaKind, &kBlockKind};
  return kKinds;
}

}  // namespace edgewise
