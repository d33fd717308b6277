// Files of tokens, certificates and keys.
#ifndef EDGEWISE_SERVER_GUARD_SECRET_FILE_H_
#define EDGEWISE_SERVER_GUARD_SECRET_FILE_H_

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace edgewise::server {

// The bytes of a file, which `flag` names. INVALID_ARGUMENT: it is not a regular file, or has more than 16 MiB;
// NOT_FOUND: it cannot be read, or is empty.
absl::StatusOr<std::string> ReadSecretFile(const std::string& path, const char* flag);

// Whether a file is another than when it was looked at last. One thread at a time.
class FileWatch {
 public:
  explicit FileWatch(std::string path) : path_(std::move(path)) { Changed(); }
  const std::string& path() const { return path_; }
  // False for a file that is not there: it is being replaced.
  bool Changed();

 private:
  std::string path_;
  std::array<int64_t, 4> seen_{};  // device, inode, size, time of the last change
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_GUARD_SECRET_FILE_H_
