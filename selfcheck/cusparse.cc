#include "selfcheck/cusparse.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace edgewise::selfcheck {
namespace {

std::string ModulePath() {
  if (const char* given = std::getenv("EDGEWISE_CUSPARSE_MODULE"); given != nullptr) return given;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  return (program.parent_path() / kCusparseModuleName).string();
}

}  // namespace

absl::StatusOr<CusparseAttend*> OpenCusparse() {
  void* module = dlopen(ModulePath().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) return absl::UnavailableError(absl::StrCat("not loaded: ", dlerror()));
  auto* attend = reinterpret_cast<CusparseAttend*>(dlsym(module, kCusparseModuleSymbol));
  if (attend == nullptr) return absl::UnavailableError(absl::StrCat("not loaded: ", dlerror()));
  return attend;
}

}  // namespace edgewise::selfcheck
