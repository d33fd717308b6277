// A layer's membership network with random weights.
#ifndef EDGEWISE_BENCH_MEMBERSHIP_NETWORK_H_
#define EDGEWISE_BENCH_MEMBERSHIP_NETWORK_H_

#include "kernels/backend.h"
#include "selfcheck/synthetic.h"

namespace edgewise::bench {

class MembershipNetwork {
 public:
  static constexpr int kClusters = 128;

  MembershipNetwork(int heads, int head_dim);
  // In this object's memory.
  MembershipParameters parameters() const;

 private:
  int heads_, head_dim_;
  selfcheck::Floats weight0_, weight1_, bias_, clusters_;
};

}  // namespace edgewise::bench

#endif  // EDGEWISE_BENCH_MEMBERSHIP_NETWORK_H_
