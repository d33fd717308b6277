// Block-sparse attention: which blocks of positions attend to which (docs/model-format.md, "Blocks, exactly").
#ifndef EDGEWISE_MODEL_KINDS_BLOCK_LAYOUT_H_
#define EDGEWISE_MODEL_KINDS_BLOCK_LAYOUT_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "model/kinds/patterns.h"

namespace edgewise {

// B: fixed, or adapted to the length. floor(alpha * length) takes alpha as the shortest decimal that reads back to it:
// 0.29 of 100 is 29, though 0.29 * 100 is 28.999... in doubles.
int32_t BlockSize(const AttentionConfig& attention, int32_t length);

// One block of the pattern that holds edges.
struct Block {
  int32_t row = 0, column = 0;
  bool kept = true;
  double score = 0.0;  // learned patterns
  uint64_t edges = 0;  // of one head
};

// One sequence cut into blocks of positions. Nothing is kept of every token, so the row of one token costs what its
// keys cost.
class BlockLayout {
 public:
  BlockLayout(const AttentionSpec& choice, const QueryRange& range);

  // The blocks of the pattern that hold edges, rows ascending, columns ascending within a row.
  std::vector<Block> Blocks() const;
  // The edges of one head that lie in the pattern's blocks on the diagonal.
  uint64_t DiagonalEdges() const;
  // One group per row of blocks that has queries.
  GroupedKeys Groups(std::span<const Block> blocks) const;

 private:
  bool Has(int32_t row, int32_t column) const;  // in the pattern
  double Score(int32_t row, int32_t column) const;
  uint64_t Edges(int32_t row, int32_t column) const;  // of one head
  int32_t TokenAt(int32_t block) const;               // valid tokens before it
  int32_t QueriesBegin(int32_t row) const;

  const AttentionSpec& choice_;
  const std::vector<int32_t>& positions_;
  const int32_t first_query_;
  int32_t size_ = 0;                  // B
  int32_t first_row_ = 0, rows_ = 0;  // rows with queries: first_row_ .. rows_ - 1
};

// Drops blocks until `heads` heads of all sequences have at most `allowance` edges; those on the diagonal stay. Returns
// whether any was dropped.
bool DropBlocks(std::span<std::vector<Block>> sequences, uint64_t heads, uint64_t allowance);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_KINDS_BLOCK_LAYOUT_H_
