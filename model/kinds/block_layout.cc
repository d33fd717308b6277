#include "model/kinds/block_layout.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <tuple>

namespace edgewise {
namespace {

// floor(share * length), 0 <= share <= 1, length < 2^21.
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
  int power = 0;  // at most 0; from_chars leaves it at 0 for "+00"
  if (mark != end) std::from_chars(mark + 1, end, power);
  exponent -= power;
  if (exponent > 24) return 0;  // digits * length < 10^24
  __extension__ typedef unsigned __int128 Wide;
  Wide value = static_cast<Wide>(digits) * static_cast<Wide>(length);
  for (; exponent > 0; --exponent) value /= 10;
  return static_cast<int64_t>(value);
}

}  // namespace

int32_t BlockSize(const AttentionConfig& attention, int32_t length) {
  if (attention.block_size > 0) return attention.block_size;
  const int64_t adapted = std::max<int64_t>(attention.min_block, FloorOfShare(attention.alpha, length));
  return static_cast<int32_t>(std::min<int64_t>(adapted, attention.max_block));
}

BlockLayout::BlockLayout(const AttentionSpec& choice, const QueryRange& range)
    : choice_(choice), positions_(range.sequence->positions), first_query_(range.first_query) {
  // Pads behind the last token are no part of the length.
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
  // The first query attends to those up to itself, the last one to all.
  const uint64_t first = QueriesBegin(row) - TokenAt(row) + 1;
  return queries * (first + keys) / 2;
}

std::vector<Block> BlockLayout::Blocks() const {
  const AttentionConfig& attention = *choice_.attention;
  std::vector<Block> blocks;
  for (int32_t row = first_row_; row < rows_; ++row) {
    const auto add = [&](int32_t column) {
      const uint64_t edges = Edges(row, column);
      if (edges == 0 || !Has(row, column)) return;
      blocks.push_back(
          {row, column, true, attention.pattern == BlockPattern::kLearned ? Score(row, column) : 0.0, edges});
    };
    const int32_t columns = choice_.config->causal ? row + 1 : rows_;
    switch (attention.pattern) {
      case BlockPattern::kDiagonal:
        add(row);
        break;
      case BlockPattern::kLocal:
        for (int32_t c = std::max(0, row - attention.width); c < columns && c <= row + attention.width; ++c) add(c);
        break;
      case BlockPattern::kStrided:
        for (int32_t c = row % attention.stride; c < columns; c += attention.stride) add(c);
        break;
      case BlockPattern::kFirstAndDiagonal:
        add(0);
        if (row > 0) add(row);
        break;
      case BlockPattern::kList: {
        auto block = std::lower_bound(attention.blocks.begin(), attention.blocks.end(), std::pair(row, 0));
        for (; block != attention.blocks.end() && block->first == row && block->second < columns; ++block) {
          add(block->second);
        }
        break;
      }
      case BlockPattern::kLearned:
        for (int32_t c = 0; c < columns; ++c) add(c);
        break;
    }
  }
  return blocks;
}

uint64_t BlockLayout::DiagonalEdges() const {
  uint64_t edges = 0;
  for (int32_t row = first_row_; row < rows_; ++row) edges += Has(row, row) ? Edges(row, row) : 0;
  return edges;
}

GroupedKeys BlockLayout::Groups(std::span<const Block> blocks) const {
  GroupedKeys groups;
  groups.causal = choice_.config->causal;
  groups.group_begin.push_back(first_query_);
  groups.key_offsets.push_back(0);
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

bool DropBlocks(std::span<std::vector<Block>> sequences, uint64_t heads, uint64_t allowance) {
  uint64_t all = 0;
  for (const std::vector<Block>& blocks : sequences) {
    for (const Block& block : blocks) all += block.edges;
  }
  if (heads * all <= allowance) return false;

  // Kept first: the diagonals, then by score and distance, then as they come.
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

}  // namespace edgewise
