// SSA: runs of neighbouring queries that attend to a sampled set of sources (docs/model-format.md, "SSA, exactly").
#ifndef EDGEWISE_MODEL_KINDS_SSA_SOURCES_H_
#define EDGEWISE_MODEL_KINDS_SSA_SOURCES_H_

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "kernels/attention.h"
#include "model/kinds/patterns.h"

namespace edgewise {

// The windows of a causal model are places in the context, whatever the text: 0 .. windows - 1. Bias none has one.
int32_t SsaWindowOf(const ModelConfig& config, const AttentionConfig& attention, int32_t position);

// The first position of such a window, and the one behind its last.
std::pair<int32_t, int32_t> SsaWindow(const ModelConfig& config, const AttentionConfig& attention, int32_t window);

// How many of `length` places are sources with bias none.
int32_t SsaKept(const AttentionConfig& attention, int32_t length);

// Windows a = 0 .. count - 1 of `length` places: the first of window a. a = count: the end.
int32_t WindowBegin(int32_t a, int32_t length, int32_t count);

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

#endif  // EDGEWISE_MODEL_KINDS_SSA_SOURCES_H_
