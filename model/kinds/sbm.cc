// Attention kind sbm: the backend draws edges from the memberships of queries and keys in clusters.
#include <algorithm>

#include "base/json_object.h"
#include "model/kinds/kind.h"

namespace edgewise {
namespace {

const std::vector<std::string> kLaws = {"bernoulli", "poisson_set", "poisson_multi"};

void Parse(JsonObject& object, const ModelConfig&, bool, std::span<AttentionConfig> layers) {
  AttentionConfig& attention = layers[0];
  attention.num_clusters = object.Integer("num_clusters", 1, 4096);
  attention.law = static_cast<Law>(object.Choice("law", kLaws));
  attention.exploration = static_cast<float>(object.Number("exploration", 0.0, 1.0, 0.0));
  attention.self_loops = object.Boolean("self_loops", false);
  attention.local_window = object.Integer("local_window", 0, 2 * kMaxPlaces, 0);
  std::fill(layers.begin() + 1, layers.end(), attention);
}

std::string Variant(const AttentionConfig& attention) { return kLaws[static_cast<size_t>(attention.law)]; }

std::vector<TensorShape> Tensors(const ModelConfig& config, const AttentionConfig& attention) {
  const int64_t heads = config.num_attention_heads, clusters = attention.num_clusters, d = config.head_dim;
  return {{"clusters", {heads, clusters, d}},
          {"membership.0.bias", {d}},
          {"membership.0.weight", {d, d}},
          {"membership.1.bias", {d}},
          {"membership.1.weight", {d, d}},
          {.name = "block_matrix", .shape = {heads, clusters, clusters}, .optional = true}};
}

// Pairs of valid tokens whose positions are at most `reach` apart.
uint64_t BandEdges(const ModelSequence& sequence, int32_t reach) {
  const std::vector<int32_t>& positions = sequence.positions;
  uint64_t pairs = 0;
  size_t low = 0, high = 0;
  for (int32_t position : positions) {
    while (positions[low] < position - reach) ++low;
    while (high < positions.size() && positions[high] <= position + reach) ++high;
    pairs += high - low;
  }
  return pairs;
}

uint64_t LeastEdges(const AttentionSpec& choice, const QueryRange& range) {
  const AttentionConfig& attention = *choice.attention;
  if (attention.local_window > 0) return BandEdges(*range.sequence, attention.local_window / 2);
  return attention.self_loops ? range.sequence->valid() - range.first_query : 0;
}

MemberPatterns Patterns(const AttentionSpec& choice, std::span<const QueryRange> ranges, uint64_t) {
  const AttentionConfig& attention = *choice.attention;
  MemberPatterns made{std::pmr::vector<AttentionPattern>(choice.memory)};
  for (uint32_t side = 0; side < ranges.size(); ++side) {
    DrawnRows drawn;
    drawn.law = attention.law;
    drawn.exploration = attention.exploration;
    drawn.self_loops = attention.self_loops;
    drawn.local_window = attention.local_window;
    drawn.key = {choice.seed, choice.sample, static_cast<uint32_t>(choice.layer), side};
    made.patterns.push_back(drawn);
  }
  return made;
}

}  // namespace

const AttentionKind kSbmKind = {.name = "sbm",
                                .causal = false,
                                .draws = true,
                                .memberships = true,
                                .parse = Parse,
                                .variant = Variant,
                                .tensors = Tensors,
                                .least_edges = LeastEdges,
                                .patterns = Patterns};

}  // namespace edgewise
