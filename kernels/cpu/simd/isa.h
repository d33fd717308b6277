// The instruction set of the CPU kernels, chosen once when the backend is made.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_ISA_H_
#define EDGEWISE_KERNELS_CPU_SIMD_ISA_H_

#include <string>

#include "absl/status/statusor.h"

namespace edgewise {

// avx2: with FMA; avx512: F, BW, DQ, VL, VBMI, VBMI2, VNNI; amx: also BF16, AMX TILE, INT8, BF16
enum class Isa { kGeneric, kAvx2, kAvx512, kAmx };

const char* IsaName(Isa isa);  // "generic", "avx2", "avx512", "amx"

// `name`: auto | generic | avx2 | avx512 | amx; auto is the last of them that is there. Asking for amx asks the system
// for the use of tiles, for the whole process. INVALID_ARGUMENT: unknown name; UNAVAILABLE: this CPU lacks it, or the
// system does not permit it.
absl::StatusOr<Isa> SelectIsa(const std::string& name);

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CPU_SIMD_ISA_H_
