// Attention kinds. Each is one AttentionKind in a file of its own: dense.cc, sbm.cc, ssa.cc, block.cc. Code outside
// this folder tells kinds apart by the members of AttentionKind only. docs/architecture.md, "Adding things", lists the
// files that a new kind touches.
#ifndef EDGEWISE_MODEL_KINDS_KIND_H_
#define EDGEWISE_MODEL_KINDS_KIND_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/config/config.h"
#include "model/kinds/patterns.h"

namespace edgewise {

class JsonObject;  // base/json_object.h

// The most windows, sources or blocks that a field may ask for: as many as a model may have positions.
inline constexpr int32_t kMaxPlaces = 1 << 20;

// A tensor that a checkpoint must have, or may have where it is `optional`.
struct TensorShape {
  std::string name;
  std::vector<int64_t> shape;
  bool optional = false;
};

// Immutable; any thread may call the functions.
struct AttentionKind {
  const char* name;          // in config.json
  bool causal = true;        // causal models may have this kind
  bool draws = false;        // edges are random
  bool memberships = false;  // patterns are DrawnRows: the backend draws from memberships, and drops under a budget
  bool host_drops = false;   // `patterns` drops edges under a budget, and so needs the allowance

  // Reads the fields of one object of `attention` into `layers`, whose `kind` is set: into all layers of the model, or
  // into one where config.json lists an object per layer (`listed`). `config` lacks `attention` and `budget_shares`.
  // Errors go to object.Fail. Null: the kind has no fields.
  void (*parse)(JsonObject& object, const ModelConfig& config, bool listed,
                std::span<AttentionConfig> layers) = nullptr;
  // The part of AttentionName behind the kind's name and a slash. Null: AttentionName is the kind's name.
  std::string (*variant)(const AttentionConfig& attention) = nullptr;
  // The tensors of one layer, by their names behind "layers.N.attention.". Null: the kind has none.
  std::vector<TensorShape> (*tensors)(const ModelConfig& config, const AttentionConfig& attention) = nullptr;
  // Edges of one head in one sequence that no cap drops, whatever is drawn.
  uint64_t (*least_edges)(const AttentionSpec& choice, const QueryRange& range);
  // MakePatterns for an input without a given graph.
  MemberPatterns (*patterns)(const AttentionSpec& choice, std::span<const QueryRange> ranges, uint64_t allowance);
};

extern const AttentionKind kSbmKind, kSsaKind, kBlockKind;  // kDenseKind: model/config/config.h

// The kinds that a config.json may name. Kinds() has all that Edgewise serves: dense, sbm, ssa and block.
using AttentionKinds = std::span<const AttentionKind* const>;
AttentionKinds Kinds();

// "dense", "sbm/bernoulli", "ssa/local", "block/learned", ...: the names of all layers, each once, in the order of the
// layers, joined by commas.
std::string AttentionName(std::span<const AttentionConfig> layers);
inline std::string AttentionName(const ModelConfig& config) { return AttentionName(config.attention); }

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_KINDS_KIND_H_
