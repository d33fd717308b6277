#include "server/models/folder.h"

#include <sys/stat.h>

#include <charconv>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"

namespace edgewise::server {
namespace {

namespace fs = std::filesystem;

// 1, 2, ...: no sign, no leading zero. 0: not a version.
int64_t ParseVersion(const std::string& text) {
  int64_t version = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  if (error != std::errc() || end != text.data() + text.size() || version <= 0 || text[0] == '0') return 0;
  return version;
}

Remark Ignored(const std::string& entry, const std::string& reason) {
  return {LogLevel::kWarning, "repository entry ignored", {"entry", entry}, {"reason", reason}};
}

// Folders in `parent`, symbolic links not followed. `shown`: what stands before an entry in a remark.
std::vector<fs::path> Folders(const fs::path& parent, const std::string& shown, std::error_code& error,
                              std::vector<Remark>& remarks) {
  std::vector<fs::path> folders;
  for (fs::directory_iterator it(parent, error), end; !error && it != end; it.increment(error)) {
    std::error_code entry_error;
    const fs::file_type type = it->symlink_status(entry_error).type();
    if (type == fs::file_type::none) {
      error = entry_error;
      break;
    }
    if (type == fs::file_type::directory) {
      folders.push_back(it->path());
    } else if (type == fs::file_type::symlink) {
      remarks.push_back(Ignored(shown + it->path().filename().string(), "a symbolic link"));
    }
  }
  return folders;
}

bool HoldsModelFiles(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / "config.json", ignored) || fs::exists(folder / "model.safetensors", ignored);
}

// The remedy for a folder of the repository that has no version.
std::string RemedyForEntry(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!HoldsModelFiles(path)) return absl::StrCat("put config.json and model.safetensors into ", name, "/1/");
  if (ParseVersion(name) > 0) return absl::StrCat("a version lies in the folder of its model: MODEL/", name, "/");
  return absl::StrCat("put ", name, "/config.json and model.safetensors into ", name, "/1/");
}

// The remedy for a repository without any version.
std::string RemedyForRepository(const std::string& root) {
  const fs::path folder = fs::absolute(root).lexically_normal();
  const fs::path path = folder.has_filename() ? folder : folder.parent_path();
  const std::string name = path.filename().string();
  const std::string parent = path.parent_path().filename().string();
  if (HoldsModelFiles(path)) {
    return ParseVersion(name) > 0
               ? "this is a version of a model: give the folder above " + parent
               : absl::StrCat("this is a model: put it into ", name, "/1/ and give the folder above ", name);
  }
  std::error_code ignored;
  std::vector<Remark> unused;
  for (const fs::path& entry : Folders(path, "", ignored, unused)) {
    if (ParseVersion(entry.filename().string()) > 0 && HoldsModelFiles(entry)) {
      return absl::StrCat("this is a model: give the folder above ", name);
    }
  }
  return "a model is <name>/<version>/config.json and model.safetensors, such as bert/1/config.json";
}

std::string FingerprintOfFile(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return "missing";
  return absl::StrCat(info.st_ino, ":", info.st_size, ":", info.st_mtim.tv_sec, ".", info.st_mtim.tv_nsec);
}

}  // namespace

bool IsModelName(const std::string& name) {
  if (name.empty() || name.size() > 64) return false;
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    const bool alphanumeric = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (!alphanumeric && (i == 0 || (c != '_' && c != '.' && c != '-'))) return false;
  }
  return true;
}

// Of what the loader may read of a folder of Hugging Face besides, in the order of the names: weights, what its tokens,
// prompts and sentences are, and the config.json of any folder in it, since modules.json may name each.
std::string FingerprintOfOthers(const std::string& directory) {
  static const std::set<fs::path> kRead = {".jinja", ".json", ".safetensors", ".txt"};
  std::set<std::string> files;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const bool counts = kRead.contains(it->path().extension());
    if (counts && name != "config.json" && name != "model.safetensors") files.insert(name);
    std::error_code ignored;
    if (it->symlink_status(ignored).type() == fs::file_type::directory) files.insert(name + "/config.json");
  }
  std::string fingerprint;
  for (const std::string& file : files) {
    absl::StrAppend(&fingerprint, " ", file, ":", FingerprintOfFile(absl::StrCat(directory, "/", file)));
  }
  return fingerprint;
}

Fingerprint FingerprintOf(const std::string& directory) {
  return {FingerprintOfFile(directory + "/config.json"),
          FingerprintOfFile(directory + "/model.safetensors") + FingerprintOfOthers(directory)};
}

absl::StatusOr<FolderList> ListFolder(const std::string& root) {
  FolderList list;
  std::error_code error;
  const std::vector<fs::path> names = Folders(root, "", error, list.remarks);
  if (error) return absl::NotFoundError(absl::StrCat("model repository ", root, ": ", error.message()));
  for (const fs::path& path : names) {
    const std::string name = path.filename().string();
    if (!IsModelName(name)) {
      list.remarks.push_back(Ignored(name, "not a model name"));
      continue;
    }
    std::error_code version_error;
    const size_t before = list.versions.size();
    for (const fs::path& folder : Folders(path, name + "/", version_error, list.remarks)) {
      const int64_t version = ParseVersion(folder.filename().string());
      if (version > 0) {
        list.versions.push_back({name, version, folder.string(), FingerprintOf(folder.string())});
      } else {
        list.remarks.push_back(Ignored(name + "/" + folder.filename().string(), "not a version number"));
      }
    }
    if (version_error) {
      list.unreadable.insert(name);
      list.remarks.push_back(
          {LogLevel::kError, "model folder not read", {"model", name}, {"error", version_error.message()}});
    } else if (list.versions.size() == before) {
      list.remarks.push_back(
          {LogLevel::kWarning, "model without a version", {"entry", name}, {"remedy", RemedyForEntry(path)}});
    }
  }
  if (list.versions.empty() && list.unreadable.empty()) {
    list.remarks.push_back({LogLevel::kWarning,
                            "repository without a model",
                            {"repository", root},
                            {"remedy", RemedyForRepository(root)}});
  }
  return list;
}

}  // namespace edgewise::server
