// The direction that bounds of a head's rates refer to, and what pays along it: bounds by key (squeeze_avx512.inl) and
// certificates (kernels/draw/certificate.h). Whatever is chosen, the graph is the same.
#ifndef EDGEWISE_KERNELS_CPU_ATTENTION_DIRECTION_H_
#define EDGEWISE_KERNELS_CPU_ATTENTION_DIRECTION_H_

#include "kernels/cpu/attention/work.h"

namespace edgewise::cpu_attention {

// Finds a direction that bounds p well, the mean of some keys. Bounds along any direction hold; those that NaN and
// infinities give are not used.
bool FindDirection(HeadPlan& head);

// Decides which bounds by key pay for a head that is drawn pair by pair, and fills its direction where some do.
void MeasureSplit(const CpuKernels& kernels, HeadPlan& head);

// Whether a head may have certificates, before its own bounds are known; and whether they pay along its direction.
bool MayCertify(const HeadPlan& head);
bool PaysToCertify(const CpuKernels& kernels, const HeadPlan& head);

}  // namespace edgewise::cpu_attention

#endif  // EDGEWISE_KERNELS_CPU_ATTENTION_DIRECTION_H_
