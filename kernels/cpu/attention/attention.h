// Attention on the CPU: edges are drawn, capped, scored and summed, one block of query rows at a time.
#ifndef EDGEWISE_KERNELS_CPU_ATTENTION_ATTENTION_H_
#define EDGEWISE_KERNELS_CPU_ATTENTION_ATTENTION_H_

#include <span>

#include "absl/status/status.h"
#include "kernels/attention.h"
#include "kernels/cpu/attention/work.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/thread_pool.h"

namespace edgewise {

// Backend::Attend on the host. All pointers of `inputs` and `out` are host memory. Scratch memory is O(edges + n), and
// under caps no more than the caps allow. RESOURCE_EXHAUSTED: out of memory.
absl::Status CpuAttend(const CpuKernels& kernels, ThreadPool& pool, AttentionScratch& scratch,
                       const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                       std::span<EdgeCap> caps, Matrix out);

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CPU_ATTENTION_ATTENTION_H_
