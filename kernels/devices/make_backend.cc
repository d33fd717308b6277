#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/ops/linear.h"
#include "kernels/cuda_module.h"

namespace edgewise {

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options, std::string* why_cpu) {
  if (options.device == "cpu") return CreateCpuBackend(options);
  const absl::Status weights = ParseWeightFormat(options.weights).status();
  if (!weights.ok()) return weights;
  if (options.device == "cuda" || absl::StartsWith(options.device, "cuda:")) {
    if (options.weights == "float32") return CreateCudaBackend(options);
    return absl::UnimplementedError(absl::StrCat("weights is \"", options.weights, "\", which the CPU alone serves; ",
                                                 options.device, " takes float32, and precision bf16"));
  }
  if (options.device != "auto") {
    return absl::InvalidArgumentError(
        absl::StrCat("device is \"", options.device, "\"; allowed: auto, cpu, cuda, cuda:N"));
  }
  if (options.weights != "float32") return CreateCpuBackend(options);  // which alone serves them
  BackendOptions first_gpu = options;
  first_gpu.device = "cuda";
  absl::StatusOr<std::unique_ptr<Backend>> backend = CreateCudaBackend(first_gpu);
  const bool no_gpu = absl::IsUnavailable(backend.status()) || absl::IsUnimplemented(backend.status());
  if (!no_gpu) return backend;
  if (why_cpu != nullptr) {  // without what those who want a GPU can do
    const absl::string_view reason = absl::StripPrefix(backend.status().message(), "device cuda: ");
    *why_cpu = std::string(reason.substr(0, reason.find("; ")));
  }
  return CreateCpuBackend(options);
}

}  // namespace edgewise
