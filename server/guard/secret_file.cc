#include "server/guard/secret_file.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace edgewise::server {
namespace {

constexpr uintmax_t kMaxFile = 16 << 20;  // bytes

}  // namespace

absl::StatusOr<std::string> ReadSecretFile(const std::string& path, const char* flag) {
  // A FIFO would wait for a writer, and a device never end.
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " ", path, ": is not a regular file"));
  }
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (!error && bytes > kMaxFile) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " ", path, ": has ", bytes, " bytes; at most ", kMaxFile, " are allowed"));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file || text.empty()) return absl::NotFoundError(absl::StrCat(flag, " ", path, ": cannot be read, or is empty"));
  return text;
}

bool FileWatch::Changed() {
  struct stat info;
  if (stat(path_.c_str(), &info) != 0) return false;
  const std::array<int64_t, 4> now = {static_cast<int64_t>(info.st_dev), static_cast<int64_t>(info.st_ino),
                                      info.st_size, info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec};
  return std::exchange(seen_, now) != now;
}

}  // namespace edgewise::server
