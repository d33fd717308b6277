// How many edges a head will have, before any is drawn.
#ifndef EDGEWISE_KERNELS_CPU_ATTENTION_ESTIMATE_H_
#define EDGEWISE_KERNELS_CPU_ATTENTION_ESTIMATE_H_

#include <span>

#include "kernels/cpu/attention/work.h"

namespace edgewise::cpu_attention {

// The approximate number of edges that heads are expected to have at a given tau, which tells where to look for the age
// that a cap allows. The chance of an edge at rate tau * p is a power series of tau * p, and so is the sum. It decides
// the time of a search alone, never its result.
class EdgeEstimate {
 public:
  EdgeEstimate() = default;
  EdgeEstimate(const CpuKernels& kernels, const HeadPlan& head);

  void Add(const EdgeEstimate& other);
  double Edges(double tau) const;
  // The tau at which `edges` are expected; 0 for none, 1 where fewer are expected at 1.
  double TauOf(double edges) const;
  // The standard deviation of the number of edges at the tau at which `edges` are expected, around the estimate.
  double DeviationAt(double edges) const;
  // Whether `edges` is nearly surely enough for those that are drawn: many deviations above their expected number.
  bool IsSlack(double edges) const;

 private:
  static constexpr int kTerms = 9;

  double terms_[kTerms] = {};  // coefficients of tau, tau^2, ...
  double squares_ = 0.0;       // the sum of squared chances at tau 1, or less
  double variance_ = 0.0;      // of Edges(1), because pairs were sampled
};

// The sum over heads.
EdgeEstimate EstimateHeads(ThreadPool& pool, const CpuKernels& kernels, std::span<HeadPlan* const> heads);

}  // namespace edgewise::cpu_attention

#endif  // EDGEWISE_KERNELS_CPU_ATTENTION_ESTIMATE_H_
