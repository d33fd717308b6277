// The versions of models in the folder of a repository: <root>/<name>/<version>/{config.json, model.safetensors}.
#ifndef EDGEWISE_SERVER_MODELS_FOLDER_H_
#define EDGEWISE_SERVER_MODELS_FOLDER_H_

#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/observe/log.h"

namespace edgewise::server {

// Of the files of a version: changes when they do.
struct Fingerprint {
  std::string config, weights;

  bool operator==(const Fingerprint&) const = default;
};

// A version to load.
struct LoadJob {
  std::string name;
  int64_t version = 0;
  std::string directory;
  Fingerprint fingerprint;
};

// A line for the log about something in the folder that an operator should know.
struct Remark {
  LogLevel level;
  std::string event;
  std::pair<std::string, std::string> subject, detail;  // key and value

  friend bool operator<(const Remark& a, const Remark& b) {
    return std::tie(a.event, a.subject, a.detail) < std::tie(b.event, b.subject, b.detail);
  }
};

struct FolderList {
  std::vector<LoadJob> versions;
  std::set<std::string> unreadable;  // models whose folder could not be listed whole
  std::vector<Remark> remarks;       // also on entries that are no models, which are left out
};

// 1 to 64 of a-z 0-9 _ . -, the first a letter or digit.
bool IsModelName(const std::string& name);

// Of the version in `directory`.
Fingerprint FingerprintOf(const std::string& directory);

// Symbolic links are not followed. NOT_FOUND: `root` cannot be read. Any thread.
absl::StatusOr<FolderList> ListFolder(const std::string& root);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_MODELS_FOLDER_H_
