// Tables of weights that are computed when a model is loaded, row-major on the host.
#ifndef EDGEWISE_MODEL_CHECKPOINT_WEIGHT_TABLES_H_
#define EDGEWISE_MODEL_CHECKPOINT_WEIGHT_TABLES_H_

#include <cstdint>
#include <span>
#include <vector>

namespace edgewise {

// [positions, hidden]: columns 2i and 2i + 1 are sine and cosine of position / 10000^(2i / hidden).
std::vector<float> SinusoidalPositions(int64_t positions, int64_t hidden);

// [heads, 2 * positions - 1]: ALiBi's addition to the scores, -slope * |distance|, by distance. The first heads, as
// many as the largest power of two that is not above their number, have the slopes of so many heads; the others have
// every other slope of twice as many.
std::vector<float> AlibiBias(int64_t heads, int64_t positions);

// [heads, 256] of the learned `values` [heads, buckets], zero beyond them: any byte is an index.
std::vector<float> PairwiseTable(std::span<const float> values, int64_t heads, int64_t buckets);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_CHECKPOINT_WEIGHT_TABLES_H_
