#include "kernels/cpu/ops/memberships.h"

#include <algorithm>
#include <cmath>

#include "kernels/host/membership_fold.h"

namespace edgewise {
namespace {

// [rows, columns] turned into [columns, rows].
std::vector<float> Transposed(const std::vector<float>& matrix, int64_t rows, int64_t columns) {
  std::vector<float> turned(matrix.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) turned[c * rows + r] = matrix[r * columns + c];
  }
  return turned;
}

}  // namespace

CpuMembershipWeights::CpuMembershipWeights(const CpuKernels& kernels, const MembershipParameters& parameters)
    : kernels_(&kernels), head_dim_(parameters.head_dim), num_clusters_(parameters.num_clusters) {
  hidden_ = Pack(parameters.weight0, parameters.bias0, head_dim_, head_dim_, head_dim_);
  FoldedMemberships folded = FoldMemberships(parameters);
  rank_ = folded.rank;
  for (FoldedHead& head : folded.heads) {
    Head& entry = heads_.emplace_back();
    entry.clusters = Pack(head.clusters, head.bias, num_clusters_, num_clusters_, head_dim_);
    const BlockFactor& factor = head.factor;
    const auto pack = [&](const std::vector<float>& values) {
      return Pack(Transposed(values, num_clusters_, factor.rank), {}, rank_, factor.rank, num_clusters_);
    };
    entry.query_factor = pack(factor.query);
    if (!factor.semidefinite) entry.key_factor = pack(factor.key);
    entry.column_sums = factor.column_sums;
  }
}

CpuMembershipWeights::Product CpuMembershipWeights::Pack(std::span<const float> weight, std::span<const float> bias,
                                                         int columns, int out, int in) const {
  const int lanes = kernels_->lanes;
  Product product;
  product.columns = (columns + lanes - 1) / lanes * lanes;
  product.data.reserve(static_cast<size_t>(product.columns) * (in + 1));  // panels point into it
  for (int first = 0; first < product.columns; first += 2 * lanes) {
    const int end = std::min(first + 2 * lanes, product.columns);
    const auto at = [&](int column, int i) { return column < out ? weight[column * int64_t{in} + i] : 0.0f; };
    const auto is_used = [&](int i) {
      for (int column = first; column < end; ++column) {
        if (at(column, i) != 0.0f) return true;
      }
      return false;
    };
    MembershipPanel panel;
    panel.end = in;
    while (panel.end > 0 && !is_used(panel.end - 1)) --panel.end;
    while (panel.begin < panel.end && !is_used(panel.begin)) ++panel.begin;
    panel.bias = product.data.data() + product.data.size();
    for (int column = first; column < end; ++column) {
      product.data.push_back(column < static_cast<int>(bias.size()) ? bias[column] : 0.0f);
    }
    panel.weights = product.data.data() + product.data.size();
    for (int i = panel.begin; i < panel.end; ++i) {
      for (int column = first; column < end; ++column) product.data.push_back(at(column, i));
    }
    product.panels.push_back(panel);
  }
  return product;
}

void CpuMembershipWeights::Run(ThreadPool& pool, std::vector<float>& scratch, ConstMatrix q, ConstMatrix k,
                               const Memberships& out) const {
  const int64_t heads = static_cast<int64_t>(heads_.size());
  const int64_t floats = kMembershipRows * (hidden_.columns + heads_[0].clusters.columns);  // of a thread
  scratch.resize(static_cast<size_t>(pool.num_threads() * floats));
  const int64_t tiles = (q.rows + kMembershipRows - 1) / kMembershipRows;
  const int64_t products =
      (q.rows + k.rows) * heads * (head_dim_ * (head_dim_ + num_clusters_) + num_clusters_ * rank_);
  pool.For(tiles * heads * 2, products / 16, [&](int64_t item, int worker) {
    const bool query_side = item % 2 == 0;
    const Head& head = heads_[item / 2 % heads];
    const int64_t first = q.rows * (item / 2 / heads) / tiles, end = q.rows * (item / 2 / heads + 1) / tiles;
    const ConstMatrix z = (query_side ? q : k).Columns(item / 2 % heads * head_dim_, head_dim_);
    const int64_t row = item / 2 % heads * out.rows + first;
    float* bounds = const_cast<float*>(query_side ? out.query_bound : out.key_bound) + row;
    MembershipTile tile;
    tile.rows = end - first;
    tile.z = z.row(first);
    tile.z_stride = z.stride;
    tile.hidden = hidden_.view();
    tile.clusters = head.clusters.view();
    tile.factor = (query_side || head.column_sums.empty() ? head.query_factor : head.key_factor).view();
    tile.scratch = scratch.data() + worker * floats;
    tile.out = const_cast<float*>(query_side ? out.x : out.y) + row * rank_;
    tile.squares = bounds;
    kernels_->memberships(tile);
    SetBounds(head, query_side, tile.out, tile.rows, bounds);
  });
}

void CpuMembershipWeights::SetBounds(const Head& head, bool query_side, const float* values, int64_t rows,
                                     float* bounds) const {
  for (int64_t r = 0; r < rows; ++r) {
    double bound = 0.0;
    if (head.column_sums.empty()) bound = std::sqrt(bounds[r]);
    for (size_t v = 0; v < head.column_sums.size(); ++v) {
      const auto value = static_cast<double>(values[r * rank_ + static_cast<int64_t>(v)]);
      const auto sum = static_cast<double>(head.column_sums[v]);
      if (!query_side) bound += value * sum;
      if (query_side && sum > 0.0) bound = std::max(bound, value / sum);
    }
    bounds[r] = static_cast<float>(bound * BoundMargin(rank_));
  }
}

}  // namespace edgewise
