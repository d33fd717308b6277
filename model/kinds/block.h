// Attention kind block: blocks of positions that attend to each other (docs/model-format.md, "Blocks, exactly").
#ifndef EDGEWISE_MODEL_KINDS_BLOCK_H_
#define EDGEWISE_MODEL_KINDS_BLOCK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "model/config/config.h"

namespace edgewise {

// B, the positions of a block, of a text of `length` positions: fixed, or adapted to the length. floor(alpha * length)
// takes alpha as the shortest decimal that reads back to it: 0.29 of 100 is 29, though in doubles 0.29 * 100
// is 28.999...
int32_t BlockSize(const AttentionConfig& attention, int32_t length);

// The names of the patterns in config.json, by BlockPattern.
const std::vector<std::string>& BlockPatternNames();

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_KINDS_BLOCK_H_
