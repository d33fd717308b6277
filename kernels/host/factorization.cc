#include "kernels/host/factorization.h"

#include <Eigen/Eigenvalues>
#include <Eigen/QR>
#include <algorithm>
#include <cmath>

namespace edgewise {
namespace {

// Certified for memberships that are all one; the error for trained memberships is smaller by orders of magnitude.
constexpr double kRateTolerance = 1.0 / (1 << 18);
constexpr double kSymmetryTolerance = 1e-9;

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

}  // namespace

BlockFactor FactorBlockMatrix(const std::vector<double>& s, int32_t num_clusters) {
  const int32_t k = num_clusters;
  const Eigen::Map<const RowMajor> matrix(s.data(), k, k);
  BlockFactor factor;
  factor.num_clusters = k;

  if ((matrix - matrix.transpose()).cwiseAbs().maxCoeff() * k <= kSymmetryTolerance) {
    const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(matrix);  // eigenvalues ascend
    const Eigen::VectorXd& values = solver.eigenvalues();
    // Dropping eigenvalues changes a rate by at most max|lambda| * |q_hat| * |k_hat| < max|lambda| * k.
    int32_t rank = k;
    while (rank > 1 && std::max(values[k - rank], -values[0]) * k <= kRateTolerance) --rank;
    const double dropped = rank < k ? std::max(values[k - rank - 1], -values[0]) : -std::min(values[0], 0.0);
    if (std::max(dropped, -values[0]) * k <= kRateTolerance) {
      factor.semidefinite = true;
      factor.rank = rank;
      factor.error = std::max(dropped, 0.0) * k;
      const Eigen::MatrixXd root =
          solver.eigenvectors().rightCols(rank) * values.tail(rank).cwiseMax(0.0).cwiseSqrt().asDiagonal();
      // root = L Q, and Q changes no inner product. Below the diagonal Householder's vectors share R's memory.
      const Eigen::HouseholderQR<Eigen::MatrixXd> turned(root.transpose());
      factor.query.assign(static_cast<size_t>(k) * rank, 0.0f);
      for (int32_t c = 0; c < k; ++c) {
        for (int32_t r = 0; r <= std::min(c, rank - 1); ++r) {
          factor.query[c * rank + r] = static_cast<float>(turned.matrixQR()(r, c));
        }
      }
      factor.key = factor.query;
      return factor;
    }
  }

  factor.rank = k;
  factor.query.assign(s.begin(), s.end());
  factor.key.assign(static_cast<size_t>(k) * k, 0.0f);
  for (int32_t c = 0; c < k; ++c) factor.key[c * k + c] = 1.0f;
  factor.column_sums.assign(k, 0.0f);
  for (int32_t c = 0; c < k; ++c) factor.column_sums[c] = static_cast<float>(matrix.col(c).sum());
  return factor;
}

std::vector<double> BlockMatrix(const MembershipParameters& parameters, int32_t head) {
  const int64_t k = parameters.num_clusters;
  if (!parameters.block_matrix.empty()) {
    const auto given = parameters.block_matrix.subspan(head * k * k, k * k);
    return {given.begin(), given.end()};
  }
  const int64_t size = k * parameters.head_dim;
  using FloatRows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Eigen::MatrixXd clusters =
      Eigen::Map<const FloatRows>(parameters.clusters.data() + head * size, k, parameters.head_dim).cast<double>();
  std::vector<double> s(static_cast<size_t>(k) * k);
  Eigen::Map<RowMajor> matrix(s.data(), k, k);
  matrix = clusters * clusters.transpose();
  matrix = (matrix.array() - matrix.maxCoeff()).exp();
  matrix /= matrix.sum();
  return s;
}

}  // namespace edgewise
