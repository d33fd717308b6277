// Attention kind ssa: neighbouring queries, a window, attend to a sampled set of keys, the window's sources
// (docs/model-format.md, "SSA, exactly").
#ifndef EDGEWISE_MODEL_KINDS_SSA_H_
#define EDGEWISE_MODEL_KINDS_SSA_H_

#include <cstdint>
#include <map>
#include <memory_resource>
#include <span>
#include <utility>
#include <vector>

#include "kernels/attention.h"
#include "model/config/config.h"
#include "model/kinds/patterns.h"

namespace edgewise {

inline constexpr double kMaxSigma = 1e6;

// Fills the layers of a model with `attention`, whose sigma goes linearly to `last_sigma` in the last layer. The layers
// below the last `last_layers` are dense; 0: none is.
void SpreadLayers(const AttentionConfig& attention, double last_sigma, int64_t last_layers,
                  std::span<AttentionConfig> layers);

using Places = std::pmr::vector<int32_t>;

// The sources of one window of a causal model, in choice.memory: ascending positions, some of them pads or beyond the
// text. A query of the window attends to the sources that are tokens and do not come after it. Drawn by seed, sample,
// layer and window.
Places SsaSources(const AttentionSpec& choice, int32_t window);

// The sources of the window that a growing text was last in, for each layer and sample of one seed. One thread.
class SourceCache {
 public:
  std::span<const int32_t> Get(const AttentionSpec& choice, int32_t window);

 private:
  struct Window {
    int32_t index = -1;
    std::vector<int32_t> sources;
  };
  std::map<std::pair<int32_t, uint32_t>, Window> windows_;  // by (layer, sample)
};

// The groups of one sequence without a budget. `side` is the index of the sequence in the input.
GroupedKeys SsaGroups(const AttentionSpec& choice, uint32_t side, const QueryRange& range);

// Drops sources until `heads` heads of all sequences have at most `allowance` edges: every group keeps its first m
// sources (m >= 1) in the order of docs/model-format.md, "Under a budget", and the first groups keep one more while it
// fits. Returns whether a source was dropped.
bool DropSources(std::span<GroupedKeys> sequences, uint64_t heads, uint64_t allowance);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_KINDS_SSA_H_
