// How many edges heads are expected to have at a given tau, about: where to look for the age that a cap allows.
#ifndef EDGEWISE_KERNELS_CPU_ATTENTION_EDGE_ESTIMATE_H_
#define EDGEWISE_KERNELS_CPU_ATTENTION_EDGE_ESTIMATE_H_

#include "kernels/cpu/attention/work.h"

namespace edgewise::cpu_attention {

// Chances of an edge at rate tau * p are the power series of tau * p, and so are their sums over all pairs.
class EdgeEstimate {
 public:
  EdgeEstimate() = default;
  explicit EdgeEstimate(const HeadWork& head);

  void Add(const EdgeEstimate& other);
  double Edges(double tau) const;
  // Where `edges` are expected; 0 for none, 1 where there are never so many.
  double TauOf(double edges) const;
  double variance() const { return variance_; }  // of Edges(1)

 private:
  static constexpr int kTerms = 9;
  double terms_[kTerms] = {};  // coefficients of tau, tau^2, ...
  double variance_ = 0.0;
};

}  // namespace edgewise::cpu_attention

#endif  // EDGEWISE_KERNELS_CPU_ATTENTION_EDGE_ESTIMATE_H_
