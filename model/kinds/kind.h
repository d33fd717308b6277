// An attention kind is one AttentionKind, in a file of its own: dense.cc, sbm.cc, ssa.cc, block.cc. Nothing outside
// this folder tells kinds apart but by its members. docs/architecture.md, "Adding things", lists what a new kind
// touches.
#ifndef EDGEWISE_MODEL_KINDS_KIND_H_
#define EDGEWISE_MODEL_KINDS_KIND_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/checkpoint/config.h"
#include "model/kinds/patterns.h"

namespace edgewise {

class JsonObject;  // model/checkpoint/json_object.h

inline constexpr int64_t kMaxPlaces = 1 << 20;  // windows, sources, blocks: as many as a model may have positions

struct TensorShape {
  std::string name;
  std::vector<int64_t> shape;
  bool optional = false;
};

struct AttentionKind {
  const char* name;          // as config.json writes it
  bool causal = true;        // causal models may have it
  bool draws = false;        // its edges are random
  bool memberships = false;  // its patterns are DrawnRows: the backend draws from the layer's memberships, and drops
  bool host_drops = false;   // `patterns` keeps to the allowance, which must be known by then

  // Reads the fields of one object of `attention` into `layers`, whose `kind` is set: all layers of the model, or one
  // where the objects are listed layer by layer (`listed`). `config` is complete but for `attention` and
  // `budget_shares`. Errors go to object.Fail. Null: the kind has no fields.
  void (*parse)(JsonObject& object, const ModelConfig& config, bool listed,
                std::span<AttentionConfig> layers) = nullptr;
  // ListModels calls the layer's attention name/variant. Null: the name alone.
  std::string (*variant)(const AttentionConfig& attention) = nullptr;
  // The weights of one layer, named without "layers.N.attention.". Null: none.
  std::vector<TensorShape> (*tensors)(const ModelConfig& config, const AttentionConfig& attention) = nullptr;
  // Edges of one head that no cap drops. Does not depend on what is drawn.
  uint64_t (*least_edges)(const AttentionSpec& choice, const QueryRange& range);
  // MakePatterns, where no graph is given.
  MemberPatterns (*patterns)(const AttentionSpec& choice, std::span<const QueryRange> ranges, uint64_t allowance);
};

extern const AttentionKind kSbmKind, kSsaKind, kBlockKind;  // kDenseKind: model/checkpoint/config.h

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_KINDS_KIND_H_
