#include "selfcheck/cusparse.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace edgewise::selfcheck {

absl::StatusOr<CusparseAttend*> OpenCusparse() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string path = (program.parent_path() / kCusparseModuleName).string();
  void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) return absl::UnavailableError(absl::StrCat("no cuSPARSE: ", dlerror()));
  auto* attend = reinterpret_cast<CusparseAttend*>(dlsym(module, kCusparseModuleSymbol));
  if (attend == nullptr) return absl::UnavailableError(absl::StrCat("no cuSPARSE: ", dlerror()));
  return attend;
}

}  // namespace edgewise::selfcheck
