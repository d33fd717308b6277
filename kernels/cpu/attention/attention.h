// Attention on the CPU: edges are drawn, capped, scored and summed, one block of query rows at a time.
#ifndef EDGEWISE_KERNELS_CPU_ATTENTION_ATTENTION_H_
#define EDGEWISE_KERNELS_CPU_ATTENTION_ATTENTION_H_

#include <cstdint>
#include <span>

#include "kernels/attention.h"
#include "kernels/cpu/attention/probable.h"
#include "kernels/cpu/attention/work.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/thread_pool.h"

namespace edgewise {

// One call of Backend::Attend on the host, in parts. All pointers of `inputs` and `out` are host memory; they, the
// spans and the references outlive it. Scratch memory is O(edges + n), and under caps no more than the caps allow; no
// other call uses it meanwhile. Next throws std::bad_alloc, after which only the destructor may be called.
class CpuAttention {
 public:
  CpuAttention(const CpuKernels& kernels, ThreadPool& pool, AttentionScratch& scratch, const AttentionInputs& inputs,
               std::span<const AttentionProblem> problems, std::span<EdgeCap> caps, Matrix out);

  // AttentionParts::Next.
  bool Next(double share);

 private:
  void Begin(bool optimistic);
  void AttendBlocks(int64_t count);

  const CpuKernels& kernels_;
  ThreadPool& pool_;
  AttentionScratch& scratch_;
  const AttentionInputs inputs_;
  const std::span<const AttentionProblem> problems_;
  const std::span<EdgeCap> caps_;
  const Matrix out_;
  cpu_attention::CapSearch search_;
  cpu_attention::ProbableSearch probable_;
  int64_t left_ = 0;  // blocks
};

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CPU_ATTENTION_ATTENTION_H_
