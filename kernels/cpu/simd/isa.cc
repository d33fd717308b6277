#include "kernels/cpu/simd/isa.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/simd/kernels.h"

namespace edgewise {
namespace {

bool Has(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::kGeneric:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
             __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
    case Isa::kAvx512:
      return Has(Isa::kAvx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
             __builtin_cpu_supports("avx512vnni");
  }
#endif
  return isa == Isa::kGeneric;
}

}  // namespace

const char* IsaName(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kGeneric:
      break;
  }
  return "generic";
}

const CpuKernels& KernelsFor(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return kAvx512Kernels;
  if (isa == Isa::kAvx2) return kAvx2Kernels;
#endif
  static_cast<void>(isa);
  return kGenericKernels;
}

absl::StatusOr<Isa> SelectIsa(const std::string& name) {
  for (Isa isa : {Isa::kAvx512, Isa::kAvx2, Isa::kGeneric}) {
    if (name == "auto" && Has(isa)) return isa;
    if (name == IsaName(isa)) {
      if (Has(isa)) return isa;
      return absl::UnavailableError(absl::StrCat("isa: this CPU has no ", name));
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("isa is \"", name, "\"; allowed: auto, avx512, avx2, generic"));
}

}  // namespace edgewise
