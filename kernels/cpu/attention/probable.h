// Edge caps that keep the drawn edges of the largest rates (CapRule::kProbable).
#ifndef EDGEWISE_KERNELS_CPU_ATTENTION_PROBABLE_H_
#define EDGEWISE_KERNELS_CPU_ATTENTION_PROBABLE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/attention/work.h"

namespace edgewise::cpu_attention {

class ProbableCap;  // probable.cc

// As CapSearch (cap.h), for the caps of kProbable: finds the edges that each of them keeps, sets EdgeCap::capped and
// fills call.kept, in parts. Every edge is drawn once. Edges that others have beaten are dropped on the way, so memory
// follows the allowance.
class ProbableSearch {
 public:
  ProbableSearch();
  ~ProbableSearch();
  // `optimistic`, unchecked, done, blocks and Next: as those of CapSearch.
  void Start(ThreadPool& pool, std::span<EdgeCap> caps, bool optimistic, Call& call);
  bool unchecked() const { return unchecked_; }
  bool done() const;
  int64_t blocks() const;
  void Next(ThreadPool& pool, std::span<Worker> workers, int64_t blocks, const Call& call);

 private:
  std::vector<ProbableCap> caps_;  // that have heads which draw; they hold the edges until the next start
  size_t next_ = 0;                // of caps_
  bool unchecked_ = false;
};

}  // namespace edgewise::cpu_attention

#endif  // EDGEWISE_KERNELS_CPU_ATTENTION_PROBABLE_H_
