#include "model/checkpoint/attention_config.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "text/field_error.h"

namespace edgewise {
namespace {

using nlohmann::json;

const std::vector<std::string> kKinds = {"dense", "sbm", "ssa", "block"};
const std::vector<std::string> kLaws = {"bernoulli", "poisson_set", "poisson_multi"};
const std::vector<std::string> kPatterns = {"diagonal", "local", "strided", "first_and_diagonal", "list", "learned"};

constexpr int64_t kMost = 1 << 20;  // windows, sources, blocks: as many as a model may have positions
constexpr double kMaxSigma = 1e6;

// An entry of `attention` before it is spread over the layers.
struct Entry {
  AttentionConfig attention;
  double last_sigma = 0.0;  // ssa: of the last layer; attention.sigma is the first's
  int64_t last_layers = 0;  // 0: all
};

std::vector<AttentionConfig> Spread(const Entry& entry, int32_t layers) {
  std::vector<AttentionConfig> spread(layers, entry.attention);
  const double first = entry.attention.sigma;
  for (int32_t l = 0; l < layers; ++l) {
    if (layers > 1) spread[l].sigma = first + (entry.last_sigma - first) * l / (layers - 1);
    if (entry.last_layers > 0 && l < layers - entry.last_layers) spread[l] = AttentionConfig();
  }
  return spread;
}

bool IsSigma(const json& value) {
  return value.is_number() && value.get<double>() >= 0.0 && value.get<double>() <= kMaxSigma;
}

bool IsCount(const json& value, int64_t least) {
  return value.is_number_integer() && value.get<double>() <= static_cast<double>(kMost) &&
         value.get<int64_t>() >= least;
}

// Fields that another choice has.
void Refuse(JsonObject& object, const std::vector<const char*>& fields, const std::string& owner) {
  for (const char* field : fields) {
    if (object.Has(field)) object.Fail(absl::StrCat(object.Path(field), " is given; it belongs to ", owner));
  }
}

void ParseSigma(JsonObject& object, bool listed, Entry& entry) {
  const json& sigma = object.Value("sigma", true);
  if (sigma.is_null()) return;
  const bool pair = sigma.is_array() && sigma.size() == 2 && !listed;
  if (pair ? !IsSigma(sigma[0]) || !IsSigma(sigma[1]) : !IsSigma(sigma)) {
    object.Fail(absl::StrCat(object.Path("sigma"), " is ", ShowJson(sigma), "; allowed: a number from 0 to ", kMaxSigma,
                             listed ? "" : ", or two of them [first layer, last layer]"));
    return;
  }
  entry.attention.sigma = (pair ? sigma[0] : sigma).get<double>();
  entry.last_sigma = (pair ? sigma[1] : sigma).get<double>();
}

void ParseGrid(JsonObject& object, int32_t length, AttentionConfig& attention) {
  const json& grid = object.Value("grid", false);
  if (grid.is_null()) return;
  if (!grid.is_array() || grid.size() != 2 || !IsCount(grid[0], 1) || !IsCount(grid[1], 1) ||
      grid[0].get<int64_t>() * grid[1].get<int64_t>() != length) {
    object.Fail(absl::StrCat(object.Path("grid"), " is ", ShowJson(grid),
                             "; allowed: [rows, columns], whose product is ", "max_position_embeddings (", length,
                             ")"));
    return;
  }
  attention.grid_rows = grid[0].get<int32_t>();
  attention.grid_columns = grid[1].get<int32_t>();
}

void ParseSsa(JsonObject& object, bool listed, const ModelConfig& config, Entry& entry) {
  AttentionConfig& attention = entry.attention;
  attention.local = object.Choice("bias", {"local", "none"}) == 0;
  if (attention.local) {
    Refuse(object, {"keep"}, "bias \"none\"");
    attention.windows = static_cast<int32_t>(object.Integer("windows", 1, kMost));
    ParseSigma(object, listed, entry);
    ParseGrid(object, config.max_position_embeddings, attention);
  } else {
    Refuse(object, {"sigma", "grid"}, "bias \"local\"");
    attention.keep = static_cast<int32_t>(object.Integer("keep", 1, kMost, 0));
    attention.windows = static_cast<int32_t>(object.Integer("windows", 1, kMost, 0));
    if (object.Has("keep") == object.Has("windows")) {
      object.Fail(absl::StrCat(object.Path(object.Has("keep") ? "windows is given beside keep" : "keep is missing"),
                               "; bias \"none\" has keep or windows"));
    }
  }
  if (listed && object.Has("last_layers")) {
    object.Fail(absl::StrCat(object.Path("last_layers"), " is given; in a list the dense layers are named as such"));
  }
  entry.last_layers = object.Integer("last_layers", 1, config.num_hidden_layers, 0);
}

void ParseBlockSize(JsonObject& object, AttentionConfig& attention) {
  const json& size = object.Value("block_size", true);
  if (size.is_null()) return;
  const bool learned = attention.pattern == BlockPattern::kLearned;
  if (!size.is_object() || learned) {
    if (IsCount(size, 1)) {
      attention.block_size = size.get<int32_t>();
      return;
    }
    object.Fail(absl::StrCat(object.Path("block_size"), " is ", ShowJson(size), "; allowed: an integer from 1 to ",
                             kMost, learned ? "" : ", or an object of min, max and alpha"));
    return;
  }
  JsonObject range(size, object.Path("block_size"));
  attention.min_block = static_cast<int32_t>(range.Integer("min", 1, kMost));
  attention.max_block = static_cast<int32_t>(range.Integer("max", attention.min_block, kMost));
  if (!range.Value("alpha", true).is_null()) attention.alpha = range.Number("alpha", 0.0, 1.0, 0.0);
  const absl::Status status = range.Finish();
  if (!status.ok()) object.Fail(std::string(status.message()));
}

void ParseBlocks(JsonObject& object, AttentionConfig& attention) {
  const json& blocks = object.Value("blocks", true);
  if (blocks.is_null()) return;
  if (!blocks.is_array() || blocks.empty()) {
    object.Fail(absl::StrCat(object.Path("blocks"), " is ", ShowJson(blocks), "; a list of [row, column] is expected"));
    return;
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    const json& block = blocks[i];
    if (!block.is_array() || block.size() != 2 || !IsCount(block[0], 0) || !IsCount(block[1], 0)) {
      object.Fail(absl::StrCat(object.Path("blocks"), "[", i, "] is ", ShowJson(block),
                               "; allowed: [row, column], each from 0 to ", kMost));
      return;
    }
    attention.blocks.emplace_back(block[0].get<int32_t>(), block[1].get<int32_t>());
  }
  std::sort(attention.blocks.begin(), attention.blocks.end());
  attention.blocks.erase(std::unique(attention.blocks.begin(), attention.blocks.end()), attention.blocks.end());
}

void ParseBlock(JsonObject& object, AttentionConfig& attention) {
  attention.pattern = static_cast<BlockPattern>(object.Choice("pattern", kPatterns));
  ParseBlockSize(object, attention);
  if (attention.pattern == BlockPattern::kLocal) {
    attention.width = static_cast<int32_t>(object.Integer("width", 0, kMost, 1));
  } else {
    Refuse(object, {"width"}, "pattern \"local\"");
  }
  if (attention.pattern == BlockPattern::kStrided) {
    attention.stride = static_cast<int32_t>(object.Integer("stride", 1, kMost));
  } else {
    Refuse(object, {"stride"}, "pattern \"strided\"");
  }
  if (attention.pattern == BlockPattern::kList) {
    ParseBlocks(object, attention);
  } else {
    Refuse(object, {"blocks"}, "pattern \"list\"");
  }
  if (attention.pattern == BlockPattern::kLearned) {
    if (!object.Value("threshold", true).is_null()) attention.threshold = object.Number("threshold", 0.0, 1.0, 0.5);
  } else {
    Refuse(object, {"threshold"}, "pattern \"learned\"");
  }
}

// `listed`: one of several, one per layer.
Entry ParseEntry(const json& value, const std::string& path, bool listed, const ModelConfig& config,
                 JsonObject& parent) {
  Entry entry;
  AttentionConfig& attention = entry.attention;
  JsonObject object(value, path);
  attention.kind = static_cast<AttentionKind>(object.Choice("kind", kKinds));
  switch (attention.kind) {
    case AttentionKind::kDense:
      break;
    case AttentionKind::kSbm:
      if (config.causal) {
        object.Fail(absl::StrCat(object.Path("kind"), " is \"sbm\"; allowed on a causal model: dense, ssa, block"));
      }
      attention.num_clusters = static_cast<int32_t>(object.Integer("num_clusters", 1, 4096));
      attention.law = static_cast<Law>(object.Choice("law", kLaws));
      attention.exploration = static_cast<float>(object.Number("exploration", 0.0, 1.0, 0.0));
      attention.self_loops = object.Boolean("self_loops", false);
      attention.local_window = static_cast<int32_t>(object.Integer("local_window", 0, 2 * kMost, 0));
      break;
    case AttentionKind::kSsa:
      ParseSsa(object, listed, config, entry);
      break;
    case AttentionKind::kBlock:
      ParseBlock(object, attention);
      break;
  }
  const absl::Status status = object.Finish();
  if (!status.ok()) parent.Fail(std::string(status.message()));
  return entry;
}

std::string NameOf(const AttentionConfig& attention) {
  const std::string& kind = kKinds[static_cast<size_t>(attention.kind)];
  switch (attention.kind) {
    case AttentionKind::kDense:
      return kind;
    case AttentionKind::kSbm:
      return absl::StrCat(kind, "/", kLaws[static_cast<size_t>(attention.law)]);
    case AttentionKind::kSsa:
      return absl::StrCat(kind, "/", attention.local ? "local" : "none");
    case AttentionKind::kBlock:
      return absl::StrCat(kind, "/", kPatterns[static_cast<size_t>(attention.pattern)]);
  }
  return kind;
}

}  // namespace

void ParseAttention(JsonObject& object, ModelConfig& config) {
  const json& value = object.Value("attention", true);
  const size_t layers = config.num_hidden_layers;
  if (value.is_object()) {
    config.attention = Spread(ParseEntry(value, "attention", false, config, object), config.num_hidden_layers);
    return;
  }
  if (!value.is_array() || value.size() != layers) {
    object.Fail(absl::StrCat("attention: an object, or a list of ", layers, " objects (one per layer) is expected"));
    config.attention.assign(layers, {});
    return;
  }
  for (size_t l = 0; l < layers; ++l) {
    config.attention.push_back(
        ParseEntry(value[l], absl::StrCat("attention[", l, "]"), true, config, object).attention);
    if (config.tied_layers && value[l] != value[0]) {
      object.Fail(absl::StrCat("attention[", l, "] differs from attention[0]; tied layers share theirs"));
    }
  }
}

absl::StatusOr<std::vector<AttentionConfig>> OverrideAttention(const ModelConfig& config, const std::string& kind,
                                                               uint32_t windows, uint32_t keep,
                                                               const std::vector<double>& sigma, uint32_t last_layers) {
  if (kind != "ssa") return FieldError("kind", absl::StrCat("is ", ShowJson(json(kind)), "; allowed: ssa"));
  for (const AttentionConfig& attention : config.attention) {
    if (attention.kind != AttentionKind::kDense && attention.kind != AttentionKind::kSsa) {
      return FieldError("kind", absl::StrCat("is \"ssa\"; this model's attention is ", AttentionName(config),
                                             ", and only dense and ssa layers can be overridden"));
    }
  }
  Entry entry;
  entry.attention.kind = AttentionKind::kSsa;
  entry.attention.local = windows > 0;
  if (windows == 0 && keep == 0) return FieldError("windows", "is 0; allowed: windows or keep from 1");
  if (windows > kMost) return FieldError("windows", absl::StrCat("is ", windows, "; allowed: 1 to ", kMost));
  if (keep > kMost) return FieldError("keep", absl::StrCat("is ", keep, "; allowed: 1 to ", kMost));
  if (windows > 0 && keep > 0)
    return FieldError("keep", absl::StrCat("is ", keep, " beside windows; allowed: one of them"));
  entry.attention.windows = static_cast<int32_t>(windows);
  entry.attention.keep = static_cast<int32_t>(keep);
  const size_t sigmas = sigma.size();
  if (windows > 0 ? sigmas != 1 && sigmas != 2 : sigmas != 0) {
    return FieldError("sigma",
                      absl::StrCat("has ", sigmas, " entries; allowed: ",
                                   windows > 0 ? "1, or 2 (of the first and of the last layer)" : "none beside keep"));
  }
  for (size_t i = 0; i < sigmas; ++i) {
    if (!(sigma[i] >= 0.0 && sigma[i] <= kMaxSigma)) {
      return FieldError(absl::StrCat("sigma[", i, "]"), absl::StrCat("is ", sigma[i], "; allowed: 0 to ", kMaxSigma));
    }
  }
  if (sigmas > 0) entry.attention.sigma = sigma.front();
  if (sigmas > 0) entry.last_sigma = sigma.back();
  if (last_layers > static_cast<uint32_t>(config.num_hidden_layers)) {
    return FieldError("last_layers", absl::StrCat("is ", last_layers, "; the model has ", config.num_hidden_layers,
                                                  " layers (0: all)"));
  }
  entry.last_layers = last_layers;
  return Spread(entry, config.num_hidden_layers);
}

std::string AttentionName(const ModelConfig& config) {
  std::vector<std::string> names;
  for (const AttentionConfig& attention : config.attention) {
    const std::string name = NameOf(attention);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return absl::StrJoin(names, ",");
}

}  // namespace edgewise
