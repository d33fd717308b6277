// Attention kind ssa: runs of neighbouring queries that attend to a sampled set of sources (docs/model-format.md, "SSA,
// exactly"), and how a request puts it in the place of a model's own attention.
#ifndef EDGEWISE_MODEL_KINDS_SSA_H_
#define EDGEWISE_MODEL_KINDS_SSA_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/attention.h"
#include "model/checkpoint/config.h"
#include "model/kinds/patterns.h"

namespace edgewise {

// The attention of every layer of a request that asks for SSA on a model whose layers are dense or SSA. It replaces the
// model's: with `windows` the bias is local (`sigma`: one number, or those of the first and the last layer;
// one-dimensional), with `keep` there is none; 0: not given. The layers below the last `last_layers` are dense; 0: none
// is. INVALID_ARGUMENT: the message begins with the name of the argument and says what is allowed.
absl::StatusOr<std::vector<AttentionConfig>> OverrideAttention(const ModelConfig& config, const std::string& kind,
                                                               uint32_t windows, uint32_t keep,
                                                               const std::vector<double>& sigma, uint32_t last_layers);

// The sources of one window of a causal model by position, ascending; pads and places beyond the text are among them. A
// query of the window attends to those that are tokens and do not come after it. Random: seed, sample, layer and
// window.
std::vector<int32_t> SsaSources(const AttentionSpec& choice, int32_t window);

// The sources of the windows that a growing text was last in, one per layer and sample of one seed. One thread.
class SourceCache {
 public:
  const std::vector<int32_t>& Get(const AttentionSpec& choice, int32_t window);

 private:
  struct Window {
    int32_t index = -1;
    std::vector<int32_t> sources;
  };
  std::map<std::pair<int32_t, uint32_t>, Window> windows_;  // by (layer, sample)
};

// The groups of one sequence, without a budget. `side`: its index in the input.
GroupedKeys SsaGroups(const AttentionSpec& choice, uint32_t side, const QueryRange& range);

// Drops sources until `heads` heads of all sequences have at most `allowance` edges: every group keeps its first m
// sources, and the first groups one more while it fits. The first source stays. Returns whether any was dropped.
bool DropSources(std::span<GroupedKeys> sequences, uint64_t heads, uint64_t allowance);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_KINDS_SSA_H_
