// How the problems of an attention call are cut into items of work: by their shapes and patterns alone, never by what
// is drawn. Host code; the arrays that items point to are staged for the device.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_ITEMS_H_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_ITEMS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/device/runtime.h"

namespace edgewise::cuda {

// A graph that all pairs or groups gave goes back to the tile kernel; any other is rows of its own.
PatternKind KindOf(const AttentionPattern& pattern);

// Items of the problems whose edges are rows of their own.
struct RowItems {
  std::vector<RowItem> rows, dense, sampled;  // as in DeviceCall
  int64_t sampled_heads = 0;
};

// Adds those of a problem of kind kDrawn or kGiven; sets staged.sampled. Heads without multiplicity may be dense; of
// given heads it is known here which are.
void AddRowItems(const AttentionProblem& problem, int32_t index, int32_t num_heads, DeviceProblem& staged,
                 RowItems& items);

// The longest first, so that none of them is the last to start. `staged` [problems].
void StageRowItems(RowItems& items, std::span<const DeviceProblem> staged, Staging& staging, DeviceCall& call);

// Items of a problem of kind kTiles. Rows of a given graph share an item where one's keys begin the other's.
void AddTileItems(const AttentionProblem& problem, int32_t index, int32_t num_heads, Staging& staging,
                  std::vector<TileItem>& items);

// Puts the items in the order in which they start: those for blocks of several warps, then those for blocks of one;
// among each the longest first, so that none of them is the last to start. How many the latter are: the items of at
// most kWarpQueries queries where they are most of all items, else none, since a launch of their own begins only once
// the other has ended.
int64_t OrderTileItems(std::vector<TileItem>& items);

// Sets row_offsets, given_keys and multiplicity of a problem of kind kGiven.
void StageGivenRows(const AttentionProblem& problem, int32_t num_heads, Staging& staging, DeviceProblem& staged);

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_ITEMS_H_
