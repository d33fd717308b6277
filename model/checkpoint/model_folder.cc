#include "model/checkpoint/model_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace edgewise {
namespace {

// The beginning of the file that git leaves in place of one that git-lfs was not asked for.
constexpr absl::string_view kGitLfs = "version https://git-lfs";

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

FileState StateFrom(const struct stat& info) {
  return {.there = true,
          .mode = info.st_mode,
          .device = info.st_dev,
          .inode = info.st_ino,
          .bytes = static_cast<uint64_t>(info.st_size),
          .seconds = info.st_mtim.tv_sec,
          .nanoseconds = info.st_mtim.tv_nsec};
}

// Why `path` could not be opened.
absl::Status NotOpened(const std::string& path, int error) {
  if (error == ELOOP) return Invalid("is a symbolic link that leads in a circle");
  struct stat info {};
  const bool link = lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode);
  if (link && (error == ENOENT || error == ENOTDIR)) {
    return Invalid("is a symbolic link to a file that does not exist; cp -rL copies files in place of their links");
  }
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError("no such file");
  return Invalid(absl::StrCat("cannot be opened: ", strerror(error)));
}

}  // namespace

FileState StateOf(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? StateFrom(info) : FileState();
}

absl::StatusOr<OpenFile> OpenFile::Open(const std::string& path) {
  // O_NONBLOCK: a pipe in place of a file would wait for its writer.
  const int descriptor = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return NotOpened(path, errno);
  OpenFile file(descriptor, {});
  struct stat info {};
  if (fstat(descriptor, &info) != 0) return Invalid(absl::StrCat("cannot be read: ", strerror(errno)));
  if (S_ISDIR(info.st_mode)) return Invalid("is a folder; a file is expected");
  if (!S_ISREG(info.st_mode)) return Invalid("is not a regular file");
  file.state_ = StateFrom(info);
  char begin[kGitLfs.size()];
  if (file.bytes() >= sizeof(begin) && file.Read(begin, sizeof(begin), 0).ok() &&
      absl::string_view(begin, sizeof(begin)) == kGitLfs) {
    return Invalid("is a pointer of git-lfs, not the file itself; run git lfs pull in the folder that it came from");
  }
  return file;
}

OpenFile::~OpenFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status OpenFile::Read(char* data, uint64_t size, uint64_t offset) const {
  while (size > 0) {
    const ssize_t count = pread(descriptor_, data, std::min<uint64_t>(size, 1 << 30), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Invalid(absl::StrCat("cannot be read: ", strerror(errno)));
    if (count == 0) return Invalid("became shorter while it was read");
    data += count;
    size -= static_cast<uint64_t>(count);
    offset += static_cast<uint64_t>(count);
  }
  return absl::OkStatus();
}

bool ModelFolder::Has(const std::string& name) {
  const std::string path = absl::StrCat(path_, "/", name);
  seen_.emplace(name, StateOf(path));
  struct stat info {};
  return lstat(path.c_str(), &info) == 0;
}

absl::StatusOr<OpenFile> ModelFolder::Open(const std::string& name) {
  const std::string path = absl::StrCat(path_, "/", name);
  absl::StatusOr<OpenFile> file = OpenFile::Open(path);
  const FileState state = file.ok() ? file->state() : StateOf(path);
  const auto [place, first] = seen_.emplace(name, state);
  if (!first && !(place->second == state)) return Invalid("changed while the model was read");
  return file;
}

absl::StatusOr<std::string> ModelFolder::Read(const std::string& name, uint64_t most) {
  const absl::StatusOr<OpenFile> file = Open(name);
  if (!file.ok()) return file.status();
  if (file->bytes() > most) {
    return Invalid(absl::StrCat("has ", file->bytes(), " bytes; at most ", most, " are allowed"));
  }
  std::string text(file->bytes(), '\0');
  const absl::Status status = file->Read(text.data(), text.size(), 0);
  if (!status.ok()) return status;
  return text;
}

bool HasChanged(const std::string& path, const std::map<std::string, FileState>& seen) {
  return std::any_of(seen.begin(), seen.end(),
                     [&](const auto& file) { return !(StateOf(absl::StrCat(path, "/", file.first)) == file.second); });
}

}  // namespace edgewise
