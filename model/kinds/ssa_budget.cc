// The sources of ssa that an edge budget leaves (docs/model-format.md, "Under a budget").
#include <algorithm>
#include <bit>
#include <limits>

#include "model/kinds/ssa.h"

namespace edgewise {
namespace {

// The numbers below `count` in the order of their reversed bits: 0, the middle, the quarters and so on. The first m of
// them are spread evenly, for every m.
std::pmr::vector<int64_t> SpreadOrder(int64_t count, std::pmr::memory_resource* memory) {
  std::pmr::vector<int64_t> order(memory);
  order.reserve(std::bit_ceil(static_cast<uint64_t>(count)));
  order.resize(std::min<int64_t>(count, 1), 0);
  for (int64_t step = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count))) / 2; step > 0; step /= 2) {
    const size_t before = order.size();
    for (size_t i = 0; i < before; ++i) order.push_back(order[i] + step);
  }
  std::erase_if(order, [&](int64_t place) { return place >= count; });
  return order;
}

// One group of one sequence, and the order in which its keys are kept.
struct Window {
  GroupedKeys* groups;
  size_t index;
  std::pmr::vector<int64_t> order;  // indices of keys, from key_offsets[index] on
  int64_t kept = 0;
};

// The number of queries of group g that attend to `key`.
uint64_t QueriesOf(const GroupedKeys& groups, size_t g, int32_t key) {
  const int32_t end = groups.group_begin[g + 1];
  const int32_t begin = groups.causal ? std::max(groups.group_begin[g], key) : groups.group_begin[g];
  return static_cast<uint64_t>(std::max(0, end - begin));
}

// Removes the keys that are not kept from the groups of a sequence, which are `windows`, in order.
void KeepOnly(GroupedKeys& groups, std::span<const Window> windows) {
  int64_t kept = 0;
  for (const Window& window : windows) kept += window.kept;
  std::pmr::vector<int32_t> keys(groups.keys.get_allocator());
  keys.reserve(static_cast<size_t>(kept));
  std::pmr::vector<int64_t> offsets(1, 0, groups.keys.get_allocator());
  offsets.reserve(groups.key_offsets.size());
  for (const Window& window : windows) {
    const auto first = groups.keys.begin() + groups.key_offsets[window.index];
    const size_t before = keys.size();
    for (int64_t i = 0; i < window.kept; ++i) keys.push_back(first[window.order[i]]);
    std::sort(keys.begin() + static_cast<int64_t>(before), keys.end());
    offsets.push_back(static_cast<int64_t>(keys.size()));
  }
  groups.keys = std::move(keys);
  groups.key_offsets = std::move(offsets);
}

// Edges of one head.
uint64_t EdgesOf(const GroupedKeys& groups) {
  uint64_t edges = 0;
  for (size_t g = 0; g + 1 < groups.group_begin.size(); ++g) {
    for (int64_t k = groups.key_offsets[g]; k < groups.key_offsets[g + 1]; ++k) {
      edges += QueriesOf(groups, g, groups.keys[k]);
    }
  }
  return edges;
}

}  // namespace

bool DropSources(std::span<GroupedKeys> sequences, uint64_t heads, uint64_t allowance) {
  uint64_t all = 0;
  for (const GroupedKeys& groups : sequences) all += EdgesOf(groups);
  if (heads * all <= allowance) return false;

  std::pmr::memory_resource* const memory = sequences[0].keys.get_allocator().resource();
  std::pmr::vector<Window> windows(memory);
  int64_t most = 0;  // the most sources of a window
  for (GroupedKeys& groups : sequences) {
    for (size_t g = 0; g + 1 < groups.group_begin.size(); ++g) {
      const int64_t keys = groups.key_offsets[g + 1] - groups.key_offsets[g];
      windows.push_back({&groups, g, SpreadOrder(keys, memory)});
      most = std::max(most, keys);
    }
  }
  // Rank by rank and window by window, until a source does not fit.
  uint64_t used = 0;
  bool fits = true;
  for (int64_t rank = 0; rank < most && fits; ++rank) {
    for (Window& window : windows) {
      if (rank >= static_cast<int64_t>(window.order.size())) continue;
      const int64_t place = window.groups->key_offsets[window.index] + window.order[rank];
      const uint64_t edges = heads * QueriesOf(*window.groups, window.index, window.groups->keys[place]);
      fits = rank == 0 || (used <= allowance && edges <= allowance - used);
      if (!fits) break;
      used += edges;
      window.kept = rank + 1;
    }
  }
  std::span<const Window> rest = windows;
  for (GroupedKeys& groups : sequences) {
    const size_t own = groups.group_begin.size() - 1;
    KeepOnly(groups, rest.first(own));
    rest = rest.subspan(own);
  }
  return true;
}

}  // namespace edgewise
