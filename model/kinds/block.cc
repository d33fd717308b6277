#include "model/kinds/block.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/json_object.h"
#include "model/kinds/kind.h"

namespace edgewise {
namespace {

using nlohmann::json;

const std::vector<std::string> kPatterns = {"diagonal", "local", "strided", "first_and_diagonal", "list", "learned"};

void ParseBlockSize(JsonObject& object, AttentionConfig& attention) {
  const json& size = object.Value("block_size", true);
  if (size.is_null()) return;
  const bool learned = attention.pattern == BlockPattern::kLearned;
  if (IsInteger(size, 1, kMaxPlaces)) {
    attention.block_size = size.get<int32_t>();
    return;
  }
  if (!size.is_object() || learned) {
    return object.FailAt("block_size", size,
                         absl::StrCat("allowed: an integer from 1 to ", kMaxPlaces,
                                      learned ? "" : ", or an object of min, max and alpha"));
  }
  JsonObject range(size, object.Path("block_size"));
  attention.min_block = range.Integer("min", 1, kMaxPlaces);
  attention.max_block = range.Integer("max", attention.min_block, kMaxPlaces);
  if (!range.Value("alpha", true).is_null()) attention.alpha = range.Number("alpha", 0.0, 1.0, 0.0);
  range.FinishInto(object);
}

void ParseBlocks(JsonObject& object, AttentionConfig& attention) {
  const json& blocks = object.Value("blocks", true);
  if (blocks.is_null()) return;
  if (!blocks.is_array() || blocks.empty()) {
    return object.FailAt("blocks", blocks, "a list of [row, column] is expected");
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    const json& block = blocks[i];
    if (!block.is_array() || block.size() != 2 || !IsInteger(block[0], 0, kMaxPlaces) ||
        !IsInteger(block[1], 0, kMaxPlaces)) {
      return object.FailAt(absl::StrCat("blocks[", i, "]"), block,
                           absl::StrCat("allowed: [row, column], each from 0 to ", kMaxPlaces));
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
  const auto takes = [&](const char* field, BlockPattern pattern) {
    if (attention.pattern == pattern) return true;
    object.Refuse({field}, absl::StrCat("pattern \"", kPatterns[static_cast<size_t>(pattern)], "\""));
    return false;
  };
  if (takes("width", BlockPattern::kLocal)) attention.width = object.Integer("width", 0, kMaxPlaces, 1);
  if (takes("stride", BlockPattern::kStrided)) attention.stride = object.Integer("stride", 1, kMaxPlaces);
  if (takes("blocks", BlockPattern::kList)) ParseBlocks(object, attention);
  if (takes("threshold", BlockPattern::kLearned) && !object.Value("threshold", true).is_null()) {
    attention.threshold = object.Number("threshold", 0.0, 1.0, 0.5);
  }
  std::fill(layers.begin() + 1, layers.end(), attention);
}

std::string Variant(const AttentionConfig& attention) { return kPatterns[static_cast<size_t>(attention.pattern)]; }

std::vector<TensorShape> Tensors(const ModelConfig& config, const AttentionConfig& attention) {
  if (attention.pattern != BlockPattern::kLearned) return {};
  const int64_t blocks = (config.max_position_embeddings + attention.block_size - 1) / attention.block_size;
  return {{"block_scores", {blocks, blocks}}};
}

// floor(share * length) in decimal arithmetic; 0 <= share <= 1, length < 2^21.
int64_t FloorOfShare(double share, int64_t length) {
  char text[32];  // d.ddde-xx
  const char* const end = std::to_chars(text, text + sizeof(text), share, std::chars_format::scientific).ptr;
  int64_t digits = 0;
  int exponent = 0;  // share = digits * 10^-exponent
  const char* const mark = std::find<const char*>(text, end, 'e');
  for (const char* c = text; c != mark; ++c) {
    if (*c != '.') digits = digits * 10 + (*c - '0');
  }
  if (mark - text > 1) exponent = static_cast<int>(mark - text) - 2;
  int power = 0;  // at most 0; from_chars reads no number in "+00" and leaves it
  if (mark != end) std::from_chars(mark + 1, end, power);
  exponent -= power;
  if (exponent > 24) return 0;  // digits * length < 10^24
  __extension__ typedef unsigned __int128 Wide;
  Wide value = static_cast<Wide>(digits) * static_cast<Wide>(length);
  for (; exponent > 0; --exponent) value /= 10;
  return static_cast<int64_t>(value);
}

// A block of the pattern that has edges.
struct Block {
  int32_t row = 0, column = 0;
  bool kept = true;
  double score = 0.0;  // learned patterns
  uint64_t edges = 0;  // of one head
};

// One sequence cut into blocks of positions. It stores nothing per token, so the row of one new token costs time in
// proportion to its keys.
class BlockLayout {
 public:
  BlockLayout(const AttentionSpec& choice, const QueryRange& range);

  // The blocks of the pattern that have edges, by row, then by column.
  std::pmr::vector<Block> Blocks() const;
  // The edges of one head in those blocks of the pattern that are on the diagonal.
  uint64_t DiagonalEdges() const;
  // One group for each row of blocks that has queries; its keys are those of the kept blocks.
  GroupedKeys Groups(std::span<const Block> blocks) const;

 private:
  bool Has(int32_t row, int32_t column) const;  // the pattern has this block
  double Score(int32_t row, int32_t column) const;
  uint64_t Edges(int32_t row, int32_t column) const;  // of one head
  int32_t TokenAt(int32_t block) const;               // the number of valid tokens before a block
  int32_t QueriesBegin(int32_t row) const;

  const AttentionSpec& choice_;
  const QueryRange& range_;
  const std::vector<int32_t>& positions_;
  const int32_t first_query_;
  int32_t size_ = 0;                  // B
  int32_t first_row_ = 0, rows_ = 0;  // rows with queries: first_row_ .. rows_ - 1
};

BlockLayout::BlockLayout(const AttentionSpec& choice, const QueryRange& range)
    : choice_(choice), range_(range), positions_(range.sequence->positions), first_query_(range.first_query) {
  // The length ends with the last valid token: pads behind it do not count.
  const int32_t length = choice.config->causal ? choice.config->max_position_embeddings : positions_.back() + 1;
  size_ = BlockSize(*choice.attention, length);
  rows_ = positions_.back() / size_ + 1;
  first_row_ = positions_[first_query_] / size_;
}

int32_t BlockLayout::TokenAt(int32_t block) const {
  const int32_t tokens = static_cast<int32_t>(positions_.size());
  const int64_t position = static_cast<int64_t>(block) * size_;
  if (position > positions_.back()) return tokens;
  if (positions_.back() + 1 == tokens) return static_cast<int32_t>(position);  // no pads
  return static_cast<int32_t>(std::lower_bound(positions_.begin(), positions_.end(), position) - positions_.begin());
}

int32_t BlockLayout::QueriesBegin(int32_t row) const { return std::max(first_query_, TokenAt(row)); }

double BlockLayout::Score(int32_t row, int32_t column) const {
  const int64_t all = (choice_.config->max_position_embeddings + size_ - 1) / size_;
  return choice_.block_scores[row * all + column];
}

bool BlockLayout::Has(int32_t row, int32_t column) const {
  const AttentionConfig& attention = *choice_.attention;
  switch (attention.pattern) {
    case BlockPattern::kDiagonal:
      return row == column;
    case BlockPattern::kLocal:
      return std::abs(row - column) <= attention.width;
    case BlockPattern::kStrided:
      return (row - column) % attention.stride == 0;
    case BlockPattern::kFirstAndDiagonal:
      return row == column || column == 0;
    case BlockPattern::kList:
      return std::binary_search(attention.blocks.begin(), attention.blocks.end(), std::pair(row, column));
    case BlockPattern::kLearned:
      return 1.0 / (1.0 + std::exp(-Score(row, column))) >= attention.threshold;
  }
  return false;
}

uint64_t BlockLayout::Edges(int32_t row, int32_t column) const {
  const uint64_t queries = TokenAt(row + 1) - QueriesBegin(row);
  const uint64_t keys = TokenAt(column + 1) - TokenAt(column);
  if (!choice_.config->causal || column < row) return queries * keys;
  if (column > row || queries == 0) return 0;
  // The first query attends to `first` keys, the last query to all.
  const uint64_t first = QueriesBegin(row) - TokenAt(row) + 1;
  return queries * (first + keys) / 2;
}

std::pmr::vector<Block> BlockLayout::Blocks() const {
  const AttentionConfig& attention = *choice_.attention;
  std::pmr::vector<Block> blocks(choice_.memory);
  for (int32_t row = first_row_; row < rows_; ++row) {
    const auto add = [&](int32_t column) {
      const uint64_t edges = Edges(row, column);
      if (edges == 0 || !Has(row, column)) return;
      blocks.push_back(
          {row, column, true, attention.pattern == BlockPattern::kLearned ? Score(row, column) : 0.0, edges});
    };
    // The columns that may be in the pattern, ascending.
    int32_t first = 0, last = choice_.config->causal ? row : rows_ - 1, step = 1;
    switch (attention.pattern) {
      case BlockPattern::kDiagonal:
        first = last = row;
        break;
      case BlockPattern::kLocal:
        first = std::max(first, row - attention.width);
        last = std::min(last, row + attention.width);
        break;
      case BlockPattern::kStrided:
        first = row % attention.stride;
        step = attention.stride;
        break;
      case BlockPattern::kFirstAndDiagonal:
        last = row;
        step = std::max(1, row);
        break;
      case BlockPattern::kList: {
        auto block = std::lower_bound(attention.blocks.begin(), attention.blocks.end(), std::pair(row, 0));
        for (; block != attention.blocks.end() && block->first == row && block->second <= last; ++block) {
          add(block->second);
        }
        continue;
      }
      case BlockPattern::kLearned:
        break;
    }
    for (int32_t column = first; column <= last; column += step) add(column);
  }
  return blocks;
}

uint64_t BlockLayout::DiagonalEdges() const {
  uint64_t edges = 0;
  for (int32_t row = first_row_; row < rows_; ++row) edges += Has(row, row) ? Edges(row, row) : 0;
  return edges;
}

GroupedKeys BlockLayout::Groups(std::span<const Block> blocks) const {
  GroupedKeys groups = NoGroups(choice_, range_);
  size_t next = 0;
  for (int32_t row = first_row_; row < rows_; ++row) {
    for (; next < blocks.size() && blocks[next].row == row; ++next) {
      if (!blocks[next].kept) continue;
      const int32_t column = blocks[next].column;
      const int32_t end = TokenAt(column + 1);
      for (int32_t token = TokenAt(column); token < end; ++token) groups.keys.push_back(token);
    }
    if (TokenAt(row + 1) <= groups.group_begin.back()) continue;  // pads only
    groups.group_begin.push_back(TokenAt(row + 1));
    groups.key_offsets.push_back(static_cast<int64_t>(groups.keys.size()));
  }
  return groups;
}

// Drops blocks, but none on the diagonal, until `heads` heads of all sequences have at most `allowance` edges. Returns
// whether a block was dropped.
bool DropBlocks(std::span<std::pmr::vector<Block>> sequences, uint64_t heads, uint64_t allowance) {
  uint64_t all = 0;
  for (const std::pmr::vector<Block>& blocks : sequences) {
    for (const Block& block : blocks) all += block.edges;
  }
  if (heads * all <= allowance) return false;

  // Blocks off the diagonal are kept by score, then by distance from the diagonal, then in the order of the sequences.
  struct Candidate {
    Block* block;
    size_t sequence;
    auto Order() const {
      return std::tuple(-block->score, std::abs(block->row - block->column), sequence, block->row, block->column);
    }
  };
  std::vector<Candidate> candidates;
  uint64_t used = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (Block& block : sequences[s]) {
      if (block.row == block.column) {
        used += heads * block.edges;
      } else {
        candidates.push_back({&block, s});
      }
    }
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.Order() < b.Order(); });
  bool fits = true;
  for (const Candidate& candidate : candidates) {
    const uint64_t edges = heads * candidate.block->edges;
    fits = fits && used <= allowance && edges <= allowance - used;
    candidate.block->kept = fits;
    if (fits) used += edges;
  }
  return true;
}

uint64_t LeastEdges(const AttentionSpec& choice, const QueryRange& range) {
  return BlockLayout(choice, range).DiagonalEdges();
}

MemberPatterns Patterns(const AttentionSpec& choice, std::span<const QueryRange> ranges, uint64_t allowance) {
  MemberPatterns made{std::pmr::vector<AttentionPattern>(choice.memory)};
  std::pmr::vector<BlockLayout> layouts(choice.memory);
  std::pmr::vector<std::pmr::vector<Block>> sequences(choice.memory);
  for (const QueryRange& range : ranges) {
    layouts.emplace_back(choice, range);
    sequences.push_back(layouts.back().Blocks());
  }
  if (allowance != kNoCap) made.capped = DropBlocks(sequences, choice.config->num_attention_heads, allowance);
  for (size_t s = 0; s < ranges.size(); ++s) made.patterns.push_back(layouts[s].Groups(sequences[s]));
  return made;
}

}  // namespace

int32_t BlockSize(const AttentionConfig& attention, int32_t length) {
  if (attention.block_size > 0) return attention.block_size;
  const int64_t adapted = std::max<int64_t>(attention.min_block, FloorOfShare(attention.alpha, length));
  return static_cast<int32_t>(std::min<int64_t>(adapted, attention.max_block));
}

const std::vector<std::string>& BlockPatternNames() { return kPatterns; }

const AttentionKind kBlockKind = {.name = "block",
                                  .host_drops = true,
                                  .parse = Parse,
                                  .variant = Variant,
                                  .tensors = Tensors,
                                  .least_edges = LeastEdges,
                                  .patterns = Patterns};

}  // namespace edgewise
