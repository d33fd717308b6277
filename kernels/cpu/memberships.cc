#include "kernels/cpu/memberships.h"

#include <algorithm>
#include <cmath>

#include "kernels/membership_fold.h"

namespace edgewise {
namespace {

constexpr int64_t kItemRows = 64;

// Rows of [rows, columns] as columns of a [out, rows] weight, zero-padded to `out`.
std::vector<float> TransposePadded(const std::vector<float>& matrix, int64_t rows, int64_t columns, int64_t out) {
  std::vector<float> weight(out * rows, 0.0f);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) weight[c * rows + r] = matrix[r * columns + c];
  }
  return weight;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuMembershipWeights>> CpuMembershipWeights::Create(
    const CpuKernels& kernels, const MembershipParameters& parameters) {
  const int64_t d = parameters.head_dim;
  const int64_t k = parameters.num_clusters;
  auto weights = std::make_unique<CpuMembershipWeights>();
  weights->kernels_ = &kernels;
  weights->head_dim_ = parameters.head_dim;
  weights->num_clusters_ = parameters.num_clusters;

  auto hidden = CpuLinear::Create(kernels, parameters.weight0, parameters.bias0, d, d, Activation::kRelu);
  if (!hidden.ok()) return hidden.status();
  weights->hidden_ = *std::move(hidden);

  const FoldedMemberships folded = FoldMemberships(parameters);
  weights->rank_ = folded.rank;
  for (const FoldedHead& head : folded.heads) {
    Head entry;
    auto clusters = CpuLinear::Create(kernels, head.clusters, head.bias, k, d, Activation::kSigmoid);
    if (!clusters.ok()) return clusters.status();
    entry.clusters = *std::move(clusters);
    const BlockFactor& factor = head.factor;
    auto query = CpuLinear::Create(kernels, TransposePadded(factor.query, k, factor.rank, weights->rank_), {},
                                   weights->rank_, k, Activation::kNone);
    if (!query.ok()) return query.status();
    entry.query_factor = *std::move(query);
    if (!factor.semidefinite) {
      auto key = CpuLinear::Create(kernels, TransposePadded(factor.key, k, factor.rank, weights->rank_), {},
                                   weights->rank_, k, Activation::kNone);
      if (!key.ok()) return key.status();
      entry.key_factor = *std::move(key);
      entry.column_sums = factor.column_sums;
    }
    weights->heads_.push_back(std::move(entry));
  }
  return weights;
}

void CpuMembershipWeights::Run(ThreadPool& pool, std::vector<float>& scratch, ConstMatrix q, ConstMatrix k,
                               const Memberships& out) const {
  const int64_t floats = kItemRows * (head_dim_ + num_clusters_);  // of a thread
  scratch.resize(static_cast<size_t>(pool.num_threads() * floats));
  const int64_t heads = static_cast<int64_t>(heads_.size());
  const int64_t blocks = (q.rows + kItemRows - 1) / kItemRows;
  const int64_t products =
      (q.rows + k.rows) * heads * (head_dim_ * (head_dim_ + num_clusters_) + num_clusters_ * rank_);
  pool.For(blocks * heads * 2, products / 16, [&](int64_t item, int worker) {
    const bool query_side = item % 2 == 0;
    const int64_t head = item / 2 % heads;
    const int64_t first = item / 2 / heads * kItemRows;
    const int64_t rows = std::min(kItemRows, q.rows - first);
    const ConstMatrix z = (query_side ? q : k).Rows(first, rows).Columns(head * head_dim_, head_dim_);
    const int64_t row = head * out.rows + first;
    float* values = const_cast<float*>(query_side ? out.x : out.y) + row * rank_;
    float* bounds = const_cast<float*>(query_side ? out.query_bound : out.key_bound) + row;
    float* hidden = scratch.data() + worker * floats;
    RunBlock(heads_[head], query_side, z, Matrix(hidden, rows, head_dim_),
             Matrix(hidden + kItemRows * head_dim_, rows, num_clusters_), values, bounds);
  });
}

void CpuMembershipWeights::RunBlock(const Head& head, bool query_side, ConstMatrix z, Matrix hidden, Matrix memberships,
                                    float* out, float* bound) const {
  const int64_t rows = z.rows;
  hidden_->Run(z, hidden, false);
  head.clusters->Run(hidden, memberships, false);
  const CpuLinear& factor = query_side || head.key_factor == nullptr ? *head.query_factor : *head.key_factor;
  factor.Run(memberships, Matrix(out, rows, rank_), false);

  if (head.column_sums.empty()) {
    kernels_->squares(out, rows, rank_, bound);
    for (int64_t r = 0; r < rows; ++r) bound[r] = std::sqrt(bound[r]) * static_cast<float>(BoundMargin(rank_));
    return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = out + r * rank_;
    double value = 0.0;
    for (int32_t v = 0; v < num_clusters_; ++v) {
      const auto sum = static_cast<double>(head.column_sums[v]);
      if (query_side && sum > 0.0) value = std::max(value, static_cast<double>(row[v]) / sum);
      if (!query_side) value += static_cast<double>(row[v]) * sum;
    }
    bound[r] = static_cast<float>(value * BoundMargin(rank_));
  }
}

}  // namespace edgewise
