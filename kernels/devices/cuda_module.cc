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

// Values of CUresult.
constexpr int kNoDevice = 100, kInvalidDevice = 101, kSystemNotReady = 802, kDriverMismatch = 803;

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

// With what to do about it.
std::string Reason(int error, const char* name) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string found =
      absl::StrCat("the NVIDIA driver found no device (", name, ")",
                   visible != nullptr ? absl::StrCat(" with CUDA_VISIBLE_DEVICES=\"", visible, "\"") : "", "; ");
  switch (error) {
    case kNoDevice:
    case kInvalidDevice:
      if (visible != nullptr) {
        return absl::StrCat(found, "let CUDA_VISIBLE_DEVICES name what `nvidia-smi -L` lists (0, GPU-..., MIG-...), ",
                            "or unset it");
      }
      return absl::StrCat(found,
                          "see what `nvidia-smi -L` lists, and give a container its GPU (docker run --gpus all)");
    case kSystemNotReady:
      return absl::StrCat(found, "start the fabric manager (nvidia-fabricmanager), which this machine's GPUs need");
    case kDriverMismatch:
      return absl::StrCat(found, "the driver was replaced: start this machine again, or this container");
    default:
      return absl::StrCat(found, "see what `nvidia-smi` and the kernel's log say");
  }
}

// OK: the driver sees devices. Asks it directly, so that no CUDA library is loaded in vain.
absl::Status FindDevices() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) {
    return absl::UnavailableError(absl::StrCat("there is no NVIDIA driver (libcuda.so.1) on this machine; install ",
                                               kLeastDriver,
                                               " or newer, or give the container its GPU (docker run --gpus all)"));
  }
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto get_count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  const auto get_name = reinterpret_cast<int (*)(int, const char**)>(dlsym(driver, "cuGetErrorName"));
  int count = 0, error = -1;
  if (init != nullptr && get_count != nullptr) error = init(0);
  if (error == 0) error = get_count(&count);
  if (error == 0 && count > 0) return absl::OkStatus();
  if (error == 0) error = kNoDevice;
  const char* name = nullptr;
  if (get_name != nullptr) get_name(error, &name);
  return absl::UnavailableError(Reason(error, name != nullptr ? name : absl::StrCat("CUDA error ", error).c_str()));
}

absl::StatusOr<std::unique_ptr<Backend>> OpenModule(const BackendOptions& options, int ordinal) {
  const char* given = std::getenv("EDGEWISE_CUDA_MODULE");
  const std::string path = given != nullptr ? given : FindModule();
  if (path.empty()) {
    return absl::UnimplementedError(
        absl::StrCat("this build has no CUDA backend (", kCudaModuleName, " is not beside the program)"));
  }
  if (given == nullptr) {
    if (const absl::Status found = FindDevices(); !found.ok()) return found;
  }
  if (options.precision != "fp32" && options.precision != "bf16") {
    return absl::InvalidArgumentError(
        absl::StrCat("precision is \"", options.precision, "\"; allowed on a GPU: fp32, bf16"));
  }
  void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) {
    const char* reason = dlerror();
    std::error_code error;
    return absl::UnavailableError(absl::StrCat(
        reason,
        fs::exists(path, error) ? "; libcublasLt of CUDA 13 has to be beside the module, or on LD_LIBRARY_PATH" : ""));
  }
  const auto create = reinterpret_cast<CudaModuleCreate*>(dlsym(module, kCudaModuleSymbol));
  if (create == nullptr) return absl::UnavailableError(dlerror());
  absl::StatusOr<std::unique_ptr<Backend>> backend = absl::InternalError("the CUDA module made no backend");
  create(options, ordinal, &backend);
  return backend;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(const BackendOptions& options) {
  int ordinal = 0;
  const absl::string_view device = options.device;
  if (device != "cuda" && (!absl::SimpleAtoi(device.substr(5), &ordinal) || ordinal < 0)) {
    return absl::InvalidArgumentError(absl::StrCat("device is \"", device, "\"; allowed: auto, cpu, cuda, cuda:N"));
  }
  absl::StatusOr<std::unique_ptr<Backend>> backend = OpenModule(options, ordinal);
  if (backend.ok() || absl::IsInvalidArgument(backend.status())) return backend;
  const char* instead = absl::IsResourceExhausted(backend.status())
                            ? "; end what holds it (`nvidia-smi`), name another GPU, or use --device=cpu"
                            : "; use --device=cpu or auto";
  return absl::Status(backend.status().code(),
                      absl::StrCat("device ", device, ": ", backend.status().message(), instead));
}

}  // namespace edgewise
