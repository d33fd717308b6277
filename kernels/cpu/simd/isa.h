// The instruction set of the CPU kernels, chosen once when the backend is made.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_ISA_H_
#define EDGEWISE_KERNELS_CPU_SIMD_ISA_H_

#include <string>

#include "absl/status/statusor.h"

namespace edgewise {

enum class Isa { kGeneric, kAvx2, kAvx512 };  // avx512: F, BW, DQ, VL, VBMI, VBMI2, VNNI; avx2: with FMA

const char* IsaName(Isa isa);  // as in device strings: "generic", "avx2", "avx512"

// `name`: auto | generic | avx2 | avx512. INVALID_ARGUMENT: unknown name; UNAVAILABLE: this CPU lacks it.
absl::StatusOr<Isa> SelectIsa(const std::string& name);

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CPU_SIMD_ISA_H_
