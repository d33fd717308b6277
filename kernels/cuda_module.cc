#include "kernels/cuda_module.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace edgewise {
namespace {

namespace fs = std::filesystem;

// Path of the module; empty: none.
std::string FindModule() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return "";
  const fs::path folder = program.parent_path();
  for (const fs::path& place : {folder / kCudaModuleName, folder.parent_path() / "lib/edgewise" / kCudaModuleName}) {
    if (fs::exists(place, error)) return place.string();
  }
  return "";
}

// Devices that the driver sees. Asks the driver directly, so that no CUDA library is loaded in vain.
absl::StatusOr<int> CountDevices() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return absl::UnavailableError("there is no NVIDIA driver (libcuda.so.1) on this machine");
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto get_count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  int count = 0;
  const int error = init == nullptr || get_count == nullptr ? -1 : init(0) != 0 ? init(0) : get_count(&count);
  if (error != 0)
    return absl::UnavailableError(absl::StrCat("the NVIDIA driver found no device (CUDA error ", error, ")"));
  return count;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(const BackendOptions& options) {
  int ordinal = 0;
  const absl::string_view device = options.device;
  if (device != "cuda" && (!absl::SimpleAtoi(device.substr(5), &ordinal) || ordinal < 0)) {
    return absl::InvalidArgumentError(absl::StrCat("device is \"", device, "\"; allowed: auto, cpu, cuda, cuda:N"));
  }
  const char* given = std::getenv("EDGEWISE_CUDA_MODULE");
  const std::string path = given != nullptr ? given : FindModule();
  if (path.empty()) {
    return absl::UnimplementedError(absl::StrCat("device ", device, ": this build has no CUDA backend (",
                                                 kCudaModuleName,
                                                 " is not beside the program); use --device=cpu or auto"));
  }
  if (given == nullptr) {
    const absl::StatusOr<int> devices = CountDevices();
    if (!devices.ok()) {
      return absl::UnavailableError(
          absl::StrCat("device ", device, ": ", devices.status().message(), "; use --device=cpu or auto"));
    }
    if (ordinal >= *devices) {
      return absl::UnavailableError(
          absl::StrCat("device ", device, ": this machine has ", *devices, " CUDA device(s), numbered from 0"));
    }
  }
  if (options.precision != "fp32" && options.precision != "bf16") {
    return absl::InvalidArgumentError(
        absl::StrCat("precision is \"", options.precision, "\"; allowed on a GPU: fp32, bf16"));
  }
  void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) return absl::UnavailableError(absl::StrCat("device ", device, ": ", dlerror()));
  const auto create = reinterpret_cast<CudaModuleCreate*>(dlsym(module, kCudaModuleSymbol));
  if (create == nullptr) return absl::UnavailableError(absl::StrCat("device ", device, ": ", dlerror()));
  absl::StatusOr<std::unique_ptr<Backend>> backend = absl::InternalError("the CUDA module made no backend");
  create(options, ordinal, &backend);
  return backend;
}

}  // namespace edgewise
