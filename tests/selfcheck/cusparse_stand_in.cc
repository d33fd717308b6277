// The module of selfcheck/cusparse.h without a GPU: attention over the given edges, in float64 on the host.
#include <algorithm>
#include <cmath>
#include <vector>

#include "selfcheck/cusparse.h"

namespace edgewise::selfcheck {

extern "C" void EdgewiseCusparseAttend(int, const CsrAttention& problem, int, float* out, double* milliseconds,
                                       std::string*) {
  const int32_t d = problem.head_dim;
  for (int64_t i = 0; i < problem.n; ++i) {
    const int64_t begin = problem.edges->row_offsets[i], end = problem.edges->row_offsets[i + 1];
    std::vector<double> weights;
    for (int64_t e = begin; e < end; ++e) {
      const float *query = problem.q + i * problem.stride, *key = problem.k + problem.edges->keys[e] * problem.stride;
      double score = 0.0;
      for (int32_t c = 0; c < d; ++c) score += static_cast<double>(query[c]) * key[c];
      weights.push_back(score * problem.scale);
    }
    const double largest = weights.empty() ? 0.0 : *std::max_element(weights.begin(), weights.end());
    double sum = 0.0;
    for (double& weight : weights) sum += weight = std::exp(weight - largest);
    for (int32_t c = 0; c < d; ++c) {
      double value = 0.0;
      for (int64_t e = begin; e < end; ++e) {
        value += weights[e - begin] / sum * problem.v[problem.edges->keys[e] * problem.stride + c];
      }
      out[i * d + c] = static_cast<float>(value);
    }
  }
  *milliseconds = 1.0;
}

}  // namespace edgewise::selfcheck
