// Tables of weights that are computed when a model is loaded, row-major on the host.
#ifndef EDGEWISE_MODEL_CHECKPOINT_WEIGHT_TABLES_H_
#define EDGEWISE_MODEL_CHECKPOINT_WEIGHT_TABLES_H_

#include <cstdint>
#include <span>
#include <vector>

namespace edgewise {

// [positions, hidden]: columns 2i and 2i + 1 are sine and cosine of position / 10000^(2i / hidden).
std::vector<float> SinusoidalPositions(int64_t positions, int64_t hidden);

// [heads, 2 * positions - 1]: ALiBi's addition to the scores, -slope * |distance|, by distance. With p the largest
// power of two that is not above the number of heads, the first p heads have the slopes of p heads, and the others
// every other slope of 2p heads.
std::vector<float> AlibiBias(int64_t heads, int64_t positions);

// The buckets of distances that BucketBias knows: half of them for keys behind their query, of which half are exact.
inline constexpr int32_t kDistanceBuckets = 32;
// [heads, 2 * positions - 1] by distance, of the learned `values` [kDistanceBuckets, heads]: T5's buckets, the last one
// from a distance of 128 on, as MPNet has them.
std::vector<float> BucketBias(std::span<const float> values, int64_t heads, int64_t positions);

// [positions, 2 * angles]: cosines, then sines, of the position times each angle, times `factor`.
std::vector<float> RotaryTable(std::span<const double> angles, double factor, int64_t positions);

// Row t * positions + p: positions[p] + types[t]. `positions` [positions, hidden], `types` [types, hidden].
std::vector<float> TypedPositions(std::span<const float> positions, std::span<const float> types, int64_t hidden);

// Row 0: positions[0] + cls, for a row of features that are all zero; row p: positions[p] + bias. `positions`
// [positions, hidden], `cls` and `bias` [hidden].
std::vector<float> PatchPositions(std::span<const float> positions, std::span<const float> cls,
                                  std::span<const float> bias);

// [heads, 256] of the learned `values` [heads, buckets], zero beyond them: any byte is an index.
std::vector<float> PairwiseTable(std::span<const float> values, int64_t heads, int64_t buckets);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_CHECKPOINT_WEIGHT_TABLES_H_
