#include "model/kinds/ssa.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/json_object.h"
#include "model/kinds/kind.h"

namespace edgewise {
namespace {

using nlohmann::json;

bool IsSigma(const json& value) {
  return value.is_number() && value.get<double>() >= 0.0 && value.get<double>() <= kMaxSigma;
}

void ParseSigma(JsonObject& object, bool listed, AttentionConfig& attention, double& last_sigma) {
  const json& sigma = object.Value("sigma", true);
  if (sigma.is_null()) return;
  const bool pair = sigma.is_array() && sigma.size() == 2 && !listed;
  if (pair ? !IsSigma(sigma[0]) || !IsSigma(sigma[1]) : !IsSigma(sigma)) {
    return object.FailAt("sigma", sigma,
                         absl::StrCat("allowed: a number from 0 to ", kMaxSigma,
                                      listed ? "" : ", or two of them [first layer, last layer]"));
  }
  attention.sigma = (pair ? sigma[0] : sigma).get<double>();
  last_sigma = (pair ? sigma[1] : sigma).get<double>();
}

void ParseGrid(JsonObject& object, int32_t length, AttentionConfig& attention) {
  const json& grid = object.Value("grid", false);
  if (grid.is_null()) return;
  if (!grid.is_array() || grid.size() != 2 || !IsInteger(grid[0], 1, kMaxPlaces) ||
      !IsInteger(grid[1], 1, kMaxPlaces) || grid[0].get<int64_t>() * grid[1].get<int64_t>() != length) {
    return object.FailAt(
        "grid", grid,
        absl::StrCat("allowed: [rows, columns], whose product is max_position_embeddings (", length, ")"));
  }
  attention.grid_rows = grid[0].get<int32_t>();
  attention.grid_columns = grid[1].get<int32_t>();
}

void Parse(JsonObject& object, const ModelConfig& config, bool listed, std::span<AttentionConfig> layers) {
  AttentionConfig attention = layers[0];
  double last_sigma = 0.0;
  attention.local = object.Choice("bias", {"local", "none"}) == 0;
  if (attention.local) {
    object.Refuse({"keep"}, "bias \"none\"");
    if (object.Has("window_tokens")) {
      object.Refuse({"windows", "grid"}, "windows without window_tokens");
      attention.window_tokens = object.Integer("window_tokens", 1, kMaxPlaces);
    } else {
      attention.windows = object.Integer("windows", 1, kMaxPlaces);
      ParseGrid(object, config.max_position_embeddings, attention);
    }
    ParseSigma(object, listed, attention, last_sigma);
  } else {
    object.Refuse({"sigma", "grid", "window_tokens"}, "bias \"local\"");
    attention.keep = object.Integer("keep", 1, kMaxPlaces, 0);
    attention.windows = object.Integer("windows", 1, kMaxPlaces, 0);
    if (object.Has("keep") == object.Has("windows")) {
      object.Fail(absl::StrCat(object.Path(object.Has("keep") ? "windows is given beside keep" : "keep is missing"),
                               "; bias \"none\" has keep or windows"));
    }
  }
  if (listed && object.Has("last_layers")) {
    object.Fail(absl::StrCat(object.Path("last_layers"), " is given; in a list the dense layers are named as such"));
  }
  SpreadLayers(attention, last_sigma, object.Integer("last_layers", 1, config.num_hidden_layers, 0), layers);
}

std::string Variant(const AttentionConfig& attention) { return attention.local ? "local" : "none"; }

// Each window keeps one source.
uint64_t LeastEdges(const AttentionSpec&, const QueryRange& range) {
  return range.sequence->valid() - range.first_query;
}

MemberPatterns Patterns(const AttentionSpec& choice, std::span<const QueryRange> ranges, uint64_t allowance) {
  MemberPatterns made{std::pmr::vector<AttentionPattern>(choice.memory)};
  std::pmr::vector<GroupedKeys> sequences(choice.memory);
  for (size_t side = 0; side < ranges.size(); ++side) {
    sequences.push_back(SsaGroups(choice, static_cast<uint32_t>(side), ranges[side]));
  }
  if (allowance != kNoCap) made.capped = DropSources(sequences, choice.config->num_attention_heads, allowance);
  for (GroupedKeys& groups : sequences) made.patterns.push_back(std::move(groups));
  return made;
}

}  // namespace

const AttentionKind kSsaKind = {.name = "ssa",
                                .draws = true,
                                .host_drops = true,
                                .parse = Parse,
                                .variant = Variant,
                                .least_edges = LeastEdges,
                                .patterns = Patterns};

void SpreadLayers(const AttentionConfig& attention, double last_sigma, int64_t last_layers,
                  std::span<AttentionConfig> layers) {
  const int32_t count = static_cast<int32_t>(layers.size());
  for (int32_t l = 0; l < count; ++l) {
    const bool dense = last_layers > 0 && l < count - last_layers;
    layers[l] = dense ? AttentionConfig() : attention;
    if (count > 1 && !dense) layers[l].sigma += (last_sigma - attention.sigma) * l / (count - 1);
  }
}

}  // namespace edgewise
