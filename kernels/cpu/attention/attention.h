// Attention on the CPU: draw, cap, score, softmax and weighted sum, block of query rows by block of query rows.
#ifndef EDGEWISE_KERNELS_CPU_ATTENTION_ATTENTION_H_
#define EDGEWISE_KERNELS_CPU_ATTENTION_ATTENTION_H_

#include <span>

#include "absl/status/status.h"
#include "kernels/attention.h"
#include "kernels/cpu/simd/isa.h"
#include "kernels/cpu/thread_pool.h"

namespace edgewise {

// Backend::Attend on the host. All pointers of `inputs` and `out` are host memory. Scratch memory is O(edges + n) and
// no more than the caps allow where there are caps. RESOURCE_EXHAUSTED: out of memory.
absl::Status CpuAttend(Isa isa, ThreadPool& pool, const AttentionInputs& inputs,
                       std::span<const AttentionProblem> problems, std::span<EdgeCap> caps, Matrix out);

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CPU_ATTENTION_ATTENTION_H_
