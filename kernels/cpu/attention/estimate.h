// How many edges a head will have, before any is drawn.
#ifndef EDGEWISE_KERNELS_CPU_ATTENTION_ESTIMATE_H_
#define EDGEWISE_KERNELS_CPU_ATTENTION_ESTIMATE_H_

#include "kernels/cpu/attention/work.h"

namespace edgewise::cpu_attention {

// The approximate number of edges that heads are expected to have at a given tau, which tells where to look for the age
// that a cap allows. The chance of an edge at rate tau * p is a power series of tau * p, and so is the sum.
class EdgeEstimate {
 public:
  EdgeEstimate() = default;
  explicit EdgeEstimate(const Head& head);

  void Add(const EdgeEstimate& other);
  double Edges(double tau) const;
  // The tau at which `edges` are expected; 0 for none, 1 where fewer are expected at 1.
  double TauOf(double edges) const;
  double variance() const { return variance_; }  // of Edges(1)

 private:
  static constexpr int kTerms = 9;
  double terms_[kTerms] = {};  // coefficients of tau, tau^2, ...
  double variance_ = 0.0;
};

}  // namespace edgewise::cpu_attention

#endif  // EDGEWISE_KERNELS_CPU_ATTENTION_ESTIMATE_H_
