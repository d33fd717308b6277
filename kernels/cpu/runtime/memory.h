// Memory of the CPU backend.
#ifndef EDGEWISE_KERNELS_CPU_RUNTIME_MEMORY_H_
#define EDGEWISE_KERNELS_CPU_RUNTIME_MEMORY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/tensor.h"

namespace edgewise {

// `floats` floats, 64-byte aligned, not initialised; from 2 MiB on in huge pages where Linux gives them, because matrix
// products read weights faster from them. The caller frees them (std::free). Null: no memory.
float* AllocateFloats(int64_t floats);
// The same as a buffer. RESOURCE_EXHAUSTED: no memory.
absl::StatusOr<Buffer> AllocateOnHost(int64_t floats);

// Bytes of the buffers and of the scratch memory of all CPU backends of this process, weights apart. Any thread.
uint64_t WorkingBytes();
void CountWorkingBytes(int64_t more);

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CPU_RUNTIME_MEMORY_H_
