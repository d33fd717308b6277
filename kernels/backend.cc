#include "kernels/backend.h"

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_backend.h"

namespace edgewise {

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options) {
  if (options.device == "auto" || options.device == "cpu") return CreateCpuBackend(options);
  if (options.device == "cuda" || absl::StartsWith(options.device, "cuda:")) {
    return absl::UnimplementedError(
        absl::StrCat("device ", options.device, ": this build has no CUDA backend; use --device=cpu or auto"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("device is \"", options.device, "\"; allowed: auto, cpu, cuda, cuda:N"));
}

}  // namespace edgewise
