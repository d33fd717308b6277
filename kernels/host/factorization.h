// The block matrix S of an SBM head, factored once at load so that an edge rate is a short inner product.
#ifndef EDGEWISE_KERNELS_HOST_FACTORIZATION_H_
#define EDGEWISE_KERNELS_HOST_FACTORIZATION_H_

#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace edgewise {

// q_hat S k_hat^T = <query^T q_hat, key^T k_hat> to within `error`, for memberships in (0, 1)^k.
//
// S = softmax(C C^T) is an entrywise exponential of a Gram matrix, hence positive semidefinite (docs/maths.md): then
// query = key = U sqrt(Lambda) Q, cut to the smallest rank whose error is certified, and |p| <= |x| |y| bounds a rate.
// The rotation Q makes it lower triangular: a membership is multiplied only by what lies left of the diagonal.
// Any other S falls back to query = S, key = I, and the bound is max_v (x_v / w_v) * <y, w> with w the column sums of
// S.
struct BlockFactor {
  int32_t num_clusters = 0;  // k
  int32_t rank = 0;          // columns of the factors; not padded
  bool semidefinite = false;
  std::vector<float> query;        // [k, rank] row-major
  std::vector<float> key;          // [k, rank]
  std::vector<float> column_sums;  // [k] w; only where not semidefinite
  double error = 0.0;              // certified |delta p|
};

// `s` [k, k] row-major float64, entries >= 0.
BlockFactor FactorBlockMatrix(const std::vector<double>& s, int32_t num_clusters);

// S of one head, [k, k] row-major: as given, or softmax over all entries of C C^T.
std::vector<double> BlockMatrix(const MembershipParameters& parameters, int32_t head);

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_HOST_FACTORIZATION_H_
