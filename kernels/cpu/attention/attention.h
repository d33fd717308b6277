// Attention on the CPU: edges are drawn, capped, scored and summed, one block of query rows at a time.
#ifndef EDGEWISE_KERNELS_CPU_ATTENTION_ATTENTION_H_
#define EDGEWISE_KERNELS_CPU_ATTENTION_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cpu/attention/cap.h"
#include "kernels/cpu/attention/probable.h"
#include "kernels/cpu/attention/work.h"
#include "kernels/cpu/runtime/thread_pool.h"
#include "kernels/cpu/simd/kernels.h"

namespace edgewise {

// All memory of CpuAttention between calls. One thread at a time.
struct AttentionScratch {
  cpu_attention::Memory heads;                 // operands and draw tables of a call's heads
  cpu_attention::Memory events;                // tables of those that may be drawn by events
  cpu_attention::Call call;                    // the last one
  cpu_attention::CapSearch search;             // of its caps
  std::vector<cpu_attention::Worker> workers;  // [threads of the pool]

  // Gives back what a long sequence, or many, took; throws nothing.
  void ReleaseAbove(size_t bytes_each);
};

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
  void Prepare(int64_t count);
  void AttendBlocks(int64_t count);
  void CountParts(int64_t count);

  const CpuKernels& kernels_;
  ThreadPool& pool_;
  AttentionScratch& scratch_;
  const AttentionInputs inputs_;
  const std::span<const AttentionProblem> problems_;
  const std::span<EdgeCap> caps_;
  const Matrix out_;
  cpu_attention::ProbableSearch probable_;
  double share_ = 0.0;               // of the first part, which the blocks are made for; 0: there are none yet
  bool optimistic_ = true;           // CapSearch::Start
  int64_t filled_ = 0, chunks_ = 0;  // of the operands and tables; of these in all
  bool prepared_ = false;            // all are filled
  int64_t left_ = 0;                 // blocks
  bool attended_ = false;            // none is left, and caps are kept
  int64_t counted_ = 0;              // of Call::expected
};

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CPU_ATTENTION_ATTENTION_H_
