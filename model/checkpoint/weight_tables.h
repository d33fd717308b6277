// Tables that are made when a model is loaded.
#ifndef EDGEWISE_MODEL_CHECKPOINT_WEIGHT_TABLES_H_
#define EDGEWISE_MODEL_CHECKPOINT_WEIGHT_TABLES_H_

#include <cstdint>
#include <span>
#include <vector>

namespace edgewise {

// sin and cos of position / 10000^(2i / hidden), interleaved; [positions, hidden].
std::vector<float> SinusoidalPositions(int64_t positions, int64_t hidden);

// What ALiBi adds to the scores, by distance [heads, 2 * positions - 1]: -slope * |distance|. The slopes of the largest
// power of two of heads that there is, then every other one of twice as many.
std::vector<float> AlibiBias(int64_t heads, int64_t positions);

// The learned table of pairs [heads, buckets] with a row of 256 for every head: any byte is an index.
std::vector<float> PairwiseTable(std::span<const float> values, int64_t heads, int64_t buckets);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_CHECKPOINT_WEIGHT_TABLES_H_
