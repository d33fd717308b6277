#include "model/kinds/override.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/field_error.h"
#include "base/json_object.h"
#include "base/status_macros.h"
#include "model/config/config.h"
#include "model/input/input.h"
#include "model/kinds/block.h"
#include "model/kinds/kind.h"
#include "model/kinds/ssa.h"

namespace edgewise {
namespace {

using nlohmann::json;

constexpr int32_t kMost = std::numeric_limits<int32_t>::max();

// A field that was given, and as messages show it.
using Given = std::pair<const char*, std::string>;

// The fields of `override` that belong to one kind, those that were given.
std::vector<Given> SsaFields(const AttentionOverride& override) {
  std::vector<Given> given;
  if (override.windows > 0) given.emplace_back("windows", absl::StrCat(override.windows));
  if (override.window_tokens > 0) given.emplace_back("window_tokens", absl::StrCat(override.window_tokens));
  if (override.keep > 0) given.emplace_back("keep", absl::StrCat(override.keep));
  if (!override.sigma.empty()) given.emplace_back("sigma", absl::StrJoin(override.sigma, ", "));
  return given;
}

std::vector<Given> BlockFields(const AttentionOverride& override) {
  std::vector<Given> given;
  if (override.block_size > 0) given.emplace_back("block_size", absl::StrCat(override.block_size));
  if (!override.pattern.empty()) given.emplace_back("pattern", ShowJson(json(override.pattern)));
  if (override.width) given.emplace_back("width", absl::StrCat(*override.width));
  if (override.stride > 0) given.emplace_back("stride", absl::StrCat(override.stride));
  if (override.threshold) given.emplace_back("threshold", absl::StrCat(*override.threshold));
  return given;
}

// Refuses the first of `given`.
absl::Status RefuseAll(const std::vector<Given>& given, const std::string& owner) {
  if (given.empty()) return absl::OkStatus();
  return FieldError(given[0].first, absl::StrCat("is ", given[0].second, "; it belongs to ", owner));
}

absl::Status CheckCount(const char* field, uint32_t count, int64_t least = 1) {
  if (count >= least && count <= uint32_t{kMaxPlaces}) return absl::OkStatus();
  return FieldError(field, absl::StrCat("is ", count, "; allowed: ", least, " to ", kMaxPlaces));
}

// The weights of sbm and of learned blocks were trained for these alone.
absl::Status CheckReplaceable(const ModelConfig& config, const AttentionOverride& override) {
  for (const AttentionConfig& attention : config.attention) {
    if (attention.kind != &kDenseKind && attention.kind != &kSsaKind) {
      return FieldError(
          "kind", absl::StrCat("is \"", override.kind, "\"; this model's attention is ",
                               AttentionName(config.attention), ", and only dense and ssa layers can be overridden"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSigma(const AttentionOverride& override) {
  const size_t sigmas = override.sigma.size();
  const bool local = override.keep == 0;
  if (local ? sigmas != 1 && sigmas != 2 : sigmas != 0) {
    return FieldError("sigma",
                      absl::StrCat("has ", sigmas, " entries; allowed: ",
                                   local ? "1, or 2 (of the first and of the last layer)" : "none beside keep"));
  }
  for (size_t i = 0; i < sigmas; ++i) {
    const double sigma = override.sigma[i];
    if (!(sigma >= 0.0 && sigma <= kMaxSigma)) {
      return FieldError(absl::StrCat("sigma[", i, "]"), absl::StrCat("is ", sigma, "; allowed: 0 to ", kMaxSigma));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<AttentionConfig> Ssa(const AttentionOverride& override) {
  RETURN_IF_ERROR(RefuseAll(BlockFields(override), "kind \"block\""));
  const std::pair<const char*, uint32_t> sizes[] = {
      {"windows", override.windows}, {"window_tokens", override.window_tokens}, {"keep", override.keep}};
  const char* given = nullptr;
  for (const auto& [field, size] : sizes) {
    if (size == 0) continue;
    RETURN_IF_ERROR(CheckCount(field, size));
    if (given != nullptr) {
      return FieldError(field, absl::StrCat("is ", size, " beside ", given, "; allowed: one of them"));
    }
    given = field;
  }
  if (given == nullptr) return FieldError("windows", "is 0; allowed: windows, window_tokens or keep from 1");
  RETURN_IF_ERROR(CheckSigma(override));
  AttentionConfig ssa;
  ssa.kind = &kSsaKind;
  ssa.local = override.keep == 0;
  ssa.windows = static_cast<int32_t>(override.windows);
  ssa.window_tokens = static_cast<int32_t>(override.window_tokens);
  ssa.keep = static_cast<int32_t>(override.keep);
  if (ssa.local) ssa.sigma = override.sigma.front();
  return ssa;
}

// A pattern that needs no weights. List is a model's own: it is as long as its blocks are many.
absl::StatusOr<AttentionConfig> Block(const AttentionOverride& override) {
  AttentionConfig block;
  block.kind = &kBlockKind;
  const std::vector<std::string>& names = BlockPatternNames();
  const auto found = std::find(names.begin(), names.end(), override.pattern);
  block.pattern = static_cast<BlockPattern>(found - names.begin());
  if (found == names.end() || block.pattern == BlockPattern::kList) {
    std::vector<std::string> allowed = names;
    std::erase(allowed, names[static_cast<size_t>(BlockPattern::kList)]);
    return FieldError(
        "pattern", absl::StrCat("is ", ShowJson(json(override.pattern)), "; allowed: ", absl::StrJoin(allowed, ", ")));
  }
  RETURN_IF_ERROR(CheckCount("block_size", override.block_size));
  block.block_size = static_cast<int32_t>(override.block_size);
  if (override.threshold) {
    return FieldError("threshold", absl::StrCat("is ", *override.threshold,
                                                "; it belongs to pattern \"learned\", the only one with scores"));
  }
  if (block.pattern == BlockPattern::kLocal) {
    const uint32_t width = override.width.value_or(1);
    RETURN_IF_ERROR(CheckCount("width", width, 0));
    block.width = static_cast<int32_t>(width);
  } else if (override.width) {
    return FieldError("width", absl::StrCat("is ", *override.width, "; it belongs to pattern \"local\""));
  }
  if (block.pattern == BlockPattern::kStrided) {
    RETURN_IF_ERROR(CheckCount("stride", override.stride));
    block.stride = static_cast<int32_t>(override.stride);
  } else if (override.stride > 0) {
    return FieldError("stride", absl::StrCat("is ", override.stride, "; it belongs to pattern \"strided\""));
  }
  return block;
}

// The model's own layers, where the scores of the learned blocks are compared with another threshold.
absl::StatusOr<std::vector<AttentionConfig>> AnotherThreshold(const ModelConfig& config,
                                                              const AttentionOverride& override) {
  std::vector<AttentionConfig> layers = config.attention;
  bool learned = false;
  for (AttentionConfig& layer : layers) {
    if (layer.kind != &kBlockKind || layer.pattern != BlockPattern::kLearned) continue;
    learned = true;
    layer.threshold = override.threshold.value_or(layer.threshold);
  }
  if (!learned) {
    return FieldError("pattern", absl::StrCat("is \"learned\"; this model's attention is ", AttentionName(layers),
                                              ", and only layers trained with scores of blocks have them"));
  }
  if (!override.threshold) return FieldError("threshold", "is missing; allowed: 0 to 1");
  if (!(*override.threshold >= 0.0 && *override.threshold <= 1.0)) {
    return FieldError("threshold", absl::StrCat("is ", *override.threshold, "; allowed: 0 to 1"));
  }
  AttentionOverride others = override;
  others.pattern.clear();
  others.threshold.reset();
  RETURN_IF_ERROR(RefuseAll(BlockFields(others), "the other patterns: the model has its learned blocks"));
  if (override.last_layers > 0) {
    return FieldError("last_layers", absl::StrCat("is ", override.last_layers,
                                                  "; allowed with pattern \"learned\": 0, as its layers "
                                                  "are the model's"));
  }
  return layers;
}

}  // namespace

absl::StatusOr<std::vector<AttentionConfig>> OverrideAttention(const ModelConfig& config,
                                                               const AttentionOverride& override) {
  const bool ssa = override.kind == kSsaKind.name, block = override.kind == kBlockKind.name;
  if (!ssa && !block) {
    return FieldError("kind", absl::StrCat("is ", ShowJson(json(override.kind)), "; allowed: ssa, block"));
  }
  if (block) RETURN_IF_ERROR(RefuseAll(SsaFields(override), "kind \"ssa\""));
  if (block && override.pattern == "learned") return AnotherThreshold(config, override);
  RETURN_IF_ERROR(CheckReplaceable(config, override));
  ASSIGN_OR_RETURN(const AttentionConfig attention, ssa ? Ssa(override) : Block(override));
  if (override.last_layers > static_cast<uint32_t>(config.num_hidden_layers)) {
    return FieldError("last_layers", absl::StrCat("is ", override.last_layers, "; the model has ",
                                                  config.num_hidden_layers, " layers (0: all)"));
  }
  std::vector<AttentionConfig> layers(config.num_hidden_layers);
  SpreadLayers(attention, override.sigma.empty() ? 0.0 : override.sigma.back(), override.last_layers, layers);
  return layers;
}

std::string SparseRemedy(const ModelConfig& config, const Draw& draw) {
  const bool dense = std::all_of(config.attention.begin(), config.attention.end(),
                                 [](const AttentionConfig& attention) { return attention.kind == &kDenseKind; });
  if (draw.attention != nullptr || !(dense || draw.dense)) return "";
  if (!dense) return ", as attention DENSE keeps every pair: leave it out";
  return absl::StrCat(
      ", as dense attention keeps every pair: make it sparse by override {kind: \"ssa\", windows: 4, "
      "sigma: [0.1]} (edgewise predict: --windows 4 --sigma 0.1)",
      draw.dense ? " instead of attention DENSE" : "", ", in the request or in a profile of config.json");
}

AttentionOverride ReadOverride(JsonObject& object) {
  const auto count = [&](const char* field) { return static_cast<uint32_t>(object.Integer(field, 0, kMost, 0)); };
  AttentionOverride override;
  override.kind = object.String("kind", "");
  override.windows = count("windows");
  override.window_tokens = count("window_tokens");
  override.keep = count("keep");
  override.last_layers = count("last_layers");
  override.block_size = count("block_size");
  override.pattern = object.String("pattern", "");
  if (object.Has("width")) override.width = count("width");
  override.stride = count("stride");
  if (object.Has("threshold")) override.threshold = object.Number("threshold", 0.0, 1.0, 0.0);
  const json& sigma = object.Value("sigma", false);
  if (sigma.is_number()) override.sigma = {sigma.get<double>()};
  if (!sigma.is_null() && !sigma.is_number() && !sigma.is_array()) {
    object.FailAt("sigma", sigma, "a number or a list of two is expected");
  }
  for (const json& number : sigma.is_array() ? sigma : json::array()) {
    if (!number.is_number()) {
      object.FailAt("sigma", number, "numbers are expected");
      break;
    }
    override.sigma.push_back(number.get<double>());
  }
  return override;
}

}  // namespace edgewise
