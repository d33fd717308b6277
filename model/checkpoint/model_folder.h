// The folder of a model, as its readers see it: they name files, and the folder opens them and remembers what was read,
// so that who loaded a model can tell later whether one of its files has changed.
//
// Symbolic links are followed: who may write the folder is trusted with what the process may read. A file is opened
// once for each read, checked through its descriptor and read from it, so that what was checked is what is read.
#ifndef EDGEWISE_MODEL_CHECKPOINT_MODEL_FOLDER_H_
#define EDGEWISE_MODEL_CHECKPOINT_MODEL_FOLDER_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace edgewise {

// Identifies the file that a name leads to, its contents and who may read it: differs where the file was written to or
// replaced, or where its rights were changed. A link counts as its target.
struct FileState {
  bool there = false;
  uint32_t mode = 0;
  uint64_t device = 0, inode = 0, bytes = 0;
  int64_t seconds = 0, nanoseconds = 0;  // since 1970, of the last write

  bool operator==(const FileState&) const = default;
};

// The identity of the file that `path` leads to now; without one where there is nothing, or nothing that can be looked
// at.
FileState StateOf(const std::string& path);

// A regular file, open for reading. Movable; closes itself. One thread.
class OpenFile {
 public:
  // NOT_FOUND: there is no such file. INVALID_ARGUMENT: it is a folder or a device, links lead nowhere or in a circle,
  // it may not be read, or it is a pointer of git-lfs in place of a file.
  static absl::StatusOr<OpenFile> Open(const std::string& path);
  OpenFile(OpenFile&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)), state_(other.state_) {}
  OpenFile& operator=(OpenFile&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(state_, other.state_);
    return *this;
  }
  ~OpenFile();

  const FileState& state() const { return state_; }  // when it was opened
  uint64_t bytes() const { return state_.bytes; }
  // The bytes [offset, offset + size). INVALID_ARGUMENT: they cannot be read, or the file became shorter.
  absl::Status Read(char* data, uint64_t size, uint64_t offset) const;

 private:
  OpenFile(int descriptor, const FileState& state) : descriptor_(descriptor), state_(state) {}

  int descriptor_ = -1;
  FileState state_;
};

// One thread.
class ModelFolder {
 public:
  explicit ModelFolder(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }

  // Names are relative to the folder: "config.json", "1_Pooling/config.json". Who takes one from a file checks it.

  // Whether anything has this name. A link counts, wherever it leads.
  bool Has(const std::string& name);
  // Errors: OpenFile::Open, without the name; and INVALID_ARGUMENT where an earlier read saw another file.
  absl::StatusOr<OpenFile> Open(const std::string& name);
  // The bytes of a file. INVALID_ARGUMENT also where it has more than `most` bytes.
  absl::StatusOr<std::string> Read(const std::string& name, uint64_t most);

  // Every name that was asked for, with the file that it led to then; those that led to none too, since a file of that
  // name changes what is read.
  const std::map<std::string, FileState>& seen() const { return seen_; }

 private:
  const std::string path_;
  std::map<std::string, FileState> seen_;
};

// Whether the folder at `path` now has other files under these names.
bool HasChanged(const std::string& path, const std::map<std::string, FileState>& seen);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_CHECKPOINT_MODEL_FOLDER_H_
