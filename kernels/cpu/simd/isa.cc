#include "kernels/cpu/simd/isa.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/simd/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace edgewise {
namespace {

#if defined(__x86_64__)
// The CPU's word and the system's, which keeps the tiles of a thread only for a process that has asked.
bool HasTiles() {
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAmxInt8 = 1u << 25,
                     kAmx = kAmxBf16 | kAmxTile | kAmxInt8;
  constexpr unsigned kAvx512Bf16 = 1u << 5;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kAmx) != kAmx) return false;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0 || (a & kAvx512Bf16) == 0) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

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
    case Isa::kAmx: {
      static const bool tiles = Has(Isa::kAvx512) && HasTiles();
      return tiles;
    }
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
    case Isa::kAmx:
      return "amx";
    case Isa::kGeneric:
      break;
  }
  return "generic";
}

const CpuKernels& KernelsFor(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAmx) {
    static const CpuKernels amx = WithTiles(avx512::Table());
    return amx;
  }
  if (isa == Isa::kAvx512) return avx512::Table();
  if (isa == Isa::kAvx2) return avx2::Table();
#endif
  static_cast<void>(isa);
  return generic::Table();
}

absl::StatusOr<Isa> SelectIsa(const std::string& name) {
  for (Isa isa : {Isa::kAmx, Isa::kAvx512, Isa::kAvx2, Isa::kGeneric}) {
    if (name == "auto" && Has(isa)) return isa;
    if (name == IsaName(isa)) {
      if (Has(isa)) return isa;
      const char* const permission = isa == Isa::kAmx ? ", or the system does not permit its use" : "";
      return absl::UnavailableError(absl::StrCat("isa: this CPU has no ", name, permission));
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("isa is \"", name, "\"; allowed: auto, amx, avx512, avx2, generic"));
}

}  // namespace edgewise
