// Weights of one side of one head, in order:
//   hidden    [steps][2 steps tiles] fragments
//   clusters  [cluster steps][steps][2 tiles]
//   floats    biases of the hidden layer [16 steps] and of the clusters [16 cluster steps]; weights of bounds [rank], 1
//   / w_v or
//             w_v; then as uint32_t, for each run of rank_tiles of x or y and each cluster step, a bit for each 4 tiles
//             that are not zero
//   factor    [runs][cluster steps][those 4 tiles]
// A fragment is 32 uint4: high halves, then low ones. Thread t of four has, of 16 columns, 4 t to 4 t + 3, in the order
// of which column 2 t + e of tile i is 4 t + 2 i + e, so that it reads and writes 16 bytes of a row at once.
#include "kernels/cuda/ops/membership_halves.h"

#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

namespace edgewise::cuda {
namespace {

constexpr int kMostRank = 512;
constexpr int kLargestExponent = 14;  // the largest weight becomes at least 2^14, less than 2^15

uint32_t BitsOf(__half half) {
  uint16_t bits = 0;
  static_assert(sizeof(half) == sizeof(bits));
  std::memcpy(&bits, &half, sizeof(bits));
  return bits;
}

// Element (i, o) is data[i * in_stride + o * out_stride] * scale; zero from (in, out) on.
struct View {
  double At(size_t i, size_t o) const {
    return i < in && o < out ? static_cast<double>(data[i * in_stride + o * out_stride]) * scale : 0.0;
  }
  int Exponent() const {  // 2^exponent times the matrix has its largest element where kLargestExponent says
    double largest = 0.0;
    for (size_t i = 0; i < in; ++i) {
      for (size_t o = 0; o < out; ++o) largest = std::max(largest, std::abs(At(i, o)));
    }
    return largest > 0.0 && std::isfinite(largest) ? kLargestExponent - std::ilogb(largest) : 0;
  }

  const float* data;
  size_t in, out, in_stride, out_stride;
  double scale;
};

class Writer {
 public:
  void AddTile(const View& view, size_t step, size_t tile) {
    for (size_t lane = 0; lane < 32; ++lane) {
      const size_t g = lane / 4, t = lane % 4;
      const size_t out = 16 * (tile / 2) + 4 * (g / 2) + 2 * (tile % 2) + g % 2;
      uint32_t high[2] = {}, low[2] = {};
      for (size_t i = 0; i < 4; ++i) {
        const double value = view.At(16 * step + 4 * t + i, out);
        const __half top = __float2half_rn(static_cast<float>(value));
        const __half rest = __float2half_rn(static_cast<float>(value - static_cast<double>(__half2float(top))));
        high[i / 2] |= BitsOf(top) << (16 * (i % 2));
        low[i / 2] |= BitsOf(rest) << (16 * (i % 2));
      }
      words.push_back({high[0], high[1], low[0], low[1]});
    }
  }
  void AddWords(const void* data, size_t count) {  // of 4 bytes, and zeros up to a whole uint4
    const size_t begin = words.size();
    words.resize(begin + (count + 3) / 4, {});
    std::memcpy(words.data() + begin, data, 4 * count);
  }

  std::vector<uint4> words;
};

// The tiles of the factor that have a number other than zero, in `tiles`; and which of each run of `run` columns they
// are, by bits.
std::vector<uint32_t> AddUsedTiles(const View& factor, size_t cluster_steps, size_t rank, size_t run, Writer& tiles) {
  std::vector<uint32_t> used;
  for (size_t first = 0; first < rank; first += run) {
    for (size_t step = 0; step < cluster_steps; ++step) {
      uint32_t bits = 0;
      for (size_t quad = 0; quad < run / 32; ++quad) {
        const size_t column = first + 32 * quad;
        bool zero = true;
        for (size_t i = 0; i < 16; ++i) {
          for (size_t o = 0; o < 32; ++o) zero = zero && factor.At(16 * step + i, column + o) == 0.0;
        }
        if (zero) continue;
        bits |= 1u << quad;
        for (size_t tile = 0; tile < 4; ++tile) tiles.AddTile(factor, step, column / 8 + tile);
      }
      used.push_back(bits);
    }
  }
  return used;
}

std::vector<float> Padded(const std::vector<float>& values, size_t count, double scale) {
  std::vector<float> padded(count, 0.0f);
  for (size_t i = 0; i < values.size(); ++i) padded[i] = static_cast<float>(values[i] * scale);
  return padded;
}

}  // namespace

std::optional<MembershipHalves> SplitIntoHalves(const MembershipParameters& parameters, const FoldedMemberships& folded,
                                                int64_t shared_bytes) {
  const auto d = static_cast<size_t>(parameters.head_dim), k = static_cast<size_t>(parameters.num_clusters);
  const auto rank = static_cast<size_t>(folded.rank);
  MembershipHalves halves;
  SplitLayout& layout = halves.call.layout;
  for (const int most : {2, 4, 8, 14}) {
    if (layout.most_steps == 0 && parameters.head_dim <= 16 * most) layout.most_steps = most;
  }
  if (layout.most_steps == 0 || folded.rank > kMostRank) return std::nullopt;
  layout.rank_tiles = folded.rank <= 32 || layout.most_steps == 14 ? 4 : 16;
  const size_t steps = layout.most_steps <= 4 ? static_cast<size_t>(layout.most_steps) : (d + 31) / 32 * 2;
  const size_t cluster_steps = (k + 15) / 16, run = 8 * static_cast<size_t>(layout.rank_tiles);
  const size_t runs = (rank + run - 1) / run;
  layout.steps = static_cast<int32_t>(steps);
  layout.cluster_steps = static_cast<int32_t>(cluster_steps);
  const size_t hidden = 64 * steps * steps, clusters = 64 * steps * cluster_steps;
  const size_t floats = 4 * steps + 4 * cluster_steps + rank / 4 + (runs * cluster_steps + 3) / 4;
  layout.floats = static_cast<int32_t>(hidden + clusters);
  layout.factor = static_cast<int32_t>(hidden + clusters + floats);
  const auto fits = [&](size_t words) { return words <= static_cast<size_t>(shared_bytes) / sizeof(uint4); };
  if (!fits(hidden + clusters + floats)) return std::nullopt;

  View weight0 = {parameters.weight0.data(), d, d, 1, d, 1.0};
  halves.call.hidden_exponent = weight0.Exponent();
  weight0.scale = std::ldexp(1.0, halves.call.hidden_exponent);
  Writer common;
  for (size_t step = 0; step < steps; ++step) {
    for (size_t tile = 0; tile < 2 * steps; ++tile) common.AddTile(weight0, step, tile);
  }
  const std::vector<float> hidden_bias(parameters.bias0.begin(), parameters.bias0.end());

  for (const FoldedHead& head : folded.heads) {
    // Sigmoid(v) is 1 / (1 + 2^w), where w is v times this.
    constexpr double kSigmoidBase = -1.4426950408889634;
    View of_clusters = {head.clusters.data(), d, k, 1, d, kSigmoidBase};
    const int cluster_exponent = of_clusters.Exponent();
    of_clusters.scale = std::ldexp(kSigmoidBase, cluster_exponent);
    const auto add_side = [&](const std::vector<float>& factor, MembershipBound bound) {
      const auto own = static_cast<size_t>(head.factor.rank);
      View of_factor = {factor.data(), k, own, own, 1, 1.0};
      const int exponent = of_factor.Exponent();
      of_factor.scale = std::ldexp(1.0, exponent);
      Writer writer = common;
      for (size_t pair = 0; pair < cluster_steps; ++pair) {
        for (size_t step = 0; step < steps; ++step) {
          for (size_t i = 0; i < 2; ++i) writer.AddTile(of_clusters, step, 2 * pair + i);
        }
      }
      std::vector<float> values = Padded(hidden_bias, 16 * steps, 1.0);
      const std::vector<float> cluster_bias = Padded(head.bias, 16 * cluster_steps, kSigmoidBase);
      std::vector<float> bound_weights = Padded(head.factor.column_sums, rank, 1.0);
      if (bound == MembershipBound::kLargest) {
        for (float& weight : bound_weights) weight = weight > 0.0f ? 1.0f / weight : 0.0f;
      }
      values.insert(values.end(), cluster_bias.begin(), cluster_bias.end());
      values.insert(values.end(), bound_weights.begin(), bound_weights.end());
      writer.AddWords(values.data(), values.size());
      Writer of_used;
      const std::vector<uint32_t> used = AddUsedTiles(of_factor, cluster_steps, rank, run, of_used);
      writer.AddWords(used.data(), used.size());
      writer.words.insert(writer.words.end(), of_used.words.begin(), of_used.words.end());
      // Memberships are halves of m * 2^14.
      const SplitHead side = {std::ssize(halves.weights), static_cast<int32_t>(writer.words.size()), cluster_exponent,
                              static_cast<float>(std::ldexp(1.0, -kLargestExponent - exponent)), bound};
      halves.weights.insert(halves.weights.end(), writer.words.begin(), writer.words.end());
      halves.heads.push_back(side);
      halves.call.most_weights = std::max(halves.call.most_weights, side.size);
    };
    const BlockFactor& factor = head.factor;
    add_side(factor.query, factor.semidefinite ? MembershipBound::kNorm : MembershipBound::kLargest);
    if (factor.semidefinite) {
      halves.heads.push_back(halves.heads.back());
    } else {
      add_side(factor.key, MembershipBound::kSum);
    }
  }
  if (!fits(static_cast<size_t>(halves.call.most_weights))) return std::nullopt;
  return halves;
}

}  // namespace edgewise::cuda
