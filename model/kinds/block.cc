// Attention kind block: blocks of positions that attend to each other, by a fixed or a learned pattern.
#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "model/checkpoint/json_object.h"
#include "model/kinds/block_layout.h"
#include "model/kinds/kind.h"

namespace edgewise {
namespace {

using nlohmann::json;

const std::vector<std::string> kPatterns = {"diagonal", "local", "strided", "first_and_diagonal", "list", "learned"};

void ParseBlockSize(JsonObject& object, AttentionConfig& attention) {
  const json& size = object.Value("block_size", true);
  if (size.is_null()) return;
  const bool learned = attention.pattern == BlockPattern::kLearned;
  if (!size.is_object() || learned) {
    if (IsInteger(size, 1, kMaxPlaces)) {
      attention.block_size = size.get<int32_t>();
      return;
    }
    object.Fail(absl::StrCat(object.Path("block_size"), " is ", ShowJson(size), "; allowed: an integer from 1 to ",
                             kMaxPlaces, learned ? "" : ", or an object of min, max and alpha"));
    return;
  }
  JsonObject range(size, object.Path("block_size"));
  attention.min_block = static_cast<int32_t>(range.Integer("min", 1, kMaxPlaces));
  attention.max_block = static_cast<int32_t>(range.Integer("max", attention.min_block, kMaxPlaces));
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
    if (!block.is_array() || block.size() != 2 || !IsInteger(block[0], 0, kMaxPlaces) ||
        !IsInteger(block[1], 0, kMaxPlaces)) {
      object.Fail(absl::StrCat(object.Path("blocks"), "[", i, "] is ", ShowJson(block),
                               "; allowed: [row, column], each from 0 to ", kMaxPlaces));
      return;
    }
    attention.blocks.emplace_back(block[0].get<int32_t>(), block[1].get<int32_t>());
  }
  std::sort(attention.blocks.begin(), attention.blocks.end());
  attention.blocks.erase(std::unique(attention.blocks.begin(), attention.blocks.end()), attention.blocks.end());
}

void Parse(JsonObject& object, const ModelConfig&, bool, std::span<AttentionConfig> layers) {
  AttentionConfig& attention = layers[0];
  attention.pattern = static_cast<BlockPattern>(object.Choice("pattern", kPatterns));
  ParseBlockSize(object, attention);
  if (attention.pattern == BlockPattern::kLocal) {
    attention.width = static_cast<int32_t>(object.Integer("width", 0, kMaxPlaces, 1));
  } else {
    object.Refuse({"width"}, "pattern \"local\"");
  }
  if (attention.pattern == BlockPattern::kStrided) {
    attention.stride = static_cast<int32_t>(object.Integer("stride", 1, kMaxPlaces));
  } else {
    object.Refuse({"stride"}, "pattern \"strided\"");
  }
  if (attention.pattern == BlockPattern::kList) {
    ParseBlocks(object, attention);
  } else {
    object.Refuse({"blocks"}, "pattern \"list\"");
  }
  if (attention.pattern == BlockPattern::kLearned) {
    if (!object.Value("threshold", true).is_null()) attention.threshold = object.Number("threshold", 0.0, 1.0, 0.5);
  } else {
    object.Refuse({"threshold"}, "pattern \"learned\"");
  }
  std::fill(layers.begin() + 1, layers.end(), attention);
}

std::string Variant(const AttentionConfig& attention) { return kPatterns[static_cast<size_t>(attention.pattern)]; }

std::vector<TensorShape> Tensors(const ModelConfig& config, const AttentionConfig& attention) {
  if (attention.pattern != BlockPattern::kLearned) return {};
  const int64_t blocks = (config.max_position_embeddings + attention.block_size - 1) / attention.block_size;
  return {{"block_scores", {blocks, blocks}}};
}

uint64_t LeastEdges(const AttentionSpec& choice, const QueryRange& range) {
  return BlockLayout(choice, range).DiagonalEdges();
}

MemberPatterns Patterns(const AttentionSpec& choice, std::span<const QueryRange> ranges, uint64_t allowance) {
  MemberPatterns made;
  std::vector<BlockLayout> layouts;
  std::vector<std::vector<Block>> sequences;
  for (const QueryRange& range : ranges) {
    layouts.emplace_back(choice, range);
    sequences.push_back(layouts.back().Blocks());
  }
  if (allowance != kNoCap) made.capped = DropBlocks(sequences, choice.config->num_attention_heads, allowance);
  for (size_t s = 0; s < ranges.size(); ++s) made.patterns.push_back(layouts[s].Groups(sequences[s]));
  return made;
}

}  // namespace

const AttentionKind kBlockKind = {.name = "block",
                                  .host_drops = true,
                                  .parse = Parse,
                                  .variant = Variant,
                                  .tensors = Tensors,
                                  .least_edges = LeastEdges,
                                  .patterns = Patterns};

}  // namespace edgewise
