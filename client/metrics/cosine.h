// How alike two embeddings are.
#ifndef EDGEWISE_CLIENT_METRICS_COSINE_H_
#define EDGEWISE_CLIENT_METRICS_COSINE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

namespace edgewise {

// The cosine of the angle between two vectors of one length, in [-1, 1]; 0 where one of them is all zeros.
inline double Cosine(std::span<const float> a, std::span<const float> b) {
  double aa = 0, bb = 0, ab = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    aa += static_cast<double>(a[i]) * a[i];
    bb += static_cast<double>(b[i]) * b[i];
    ab += static_cast<double>(a[i]) * b[i];
  }
  return aa == 0 || bb == 0 ? 0.0 : std::clamp(ab / std::sqrt(aa * bb), -1.0, 1.0);
}

}  // namespace edgewise

#endif  // EDGEWISE_CLIENT_METRICS_COSINE_H_
