#include "tests/model/toy_kind.h"

#include "base/json_object.h"
#include "model/kinds/kind.h"
#include "model/kinds/ssa.h"

namespace edgewise::testing {
namespace {

void Parse(JsonObject& object, const ModelConfig&, bool, std::span<AttentionConfig> layers) {
  for (AttentionConfig& layer : layers) layer.stride = object.Integer("stride", 1, kMaxPlaces);
}

// Those to the first token.
uint64_t LeastEdges(const AttentionSpec&, const QueryRange& range) {
  return range.sequence->valid() - range.first_query;
}

MemberPatterns Patterns(const AttentionSpec& choice, std::span<const QueryRange> ranges, uint64_t allowance) {
  std::pmr::vector<GroupedKeys> sequences(choice.memory);
  for (const QueryRange& range : ranges) {
    GroupedKeys& groups = sequences.emplace_back(NoGroups(choice, range));
    groups.group_begin.push_back(range.sequence->valid());
    for (int32_t key = 0; key < range.sequence->valid(); key += choice.attention->stride) groups.keys.push_back(key);
    groups.key_offsets.push_back(static_cast<int64_t>(groups.keys.size()));
  }
  MemberPatterns made{std::pmr::vector<AttentionPattern>(choice.memory)};
  if (allowance != kNoCap) made.capped = DropSources(sequences, choice.config->num_attention_heads, allowance);
  for (GroupedKeys& groups : sequences) made.patterns.push_back(std::move(groups));
  return made;
}

}  // namespace

const AttentionKind kEveryNthKind = {
    .name = "every_nth", .host_drops = true, .parse = Parse, .least_edges = LeastEdges, .patterns = Patterns};

AttentionKinds KindsWithToy() {
  static const std::vector<const AttentionKind*> kinds = [] {
    std::vector<const AttentionKind*> all(Kinds().begin(), Kinds().end());
    all.push_back(&kEveryNthKind);
    return all;
  }();
  return kinds;
}

}  // namespace edgewise::testing
