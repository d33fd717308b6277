// Where models come from: the folder of a repository, <repository>/<name>/<version>/, and folders that are given a
// name. Links are followed, in both.
#ifndef EDGEWISE_SERVER_MODELS_FOLDER_H_
#define EDGEWISE_SERVER_MODELS_FOLDER_H_

#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/observe/log.h"

namespace edgewise::server {

struct ModelSources {
  std::string repository;  // empty: none
  // Names, and the folder of each, which is version 1 of the model of that name.
  std::vector<std::pair<std::string, std::string>> models;
};

// A version to load.
struct LoadJob {
  std::string name;
  int64_t version = 0;
  std::string directory;
  bool again = false;  // if it failed, whatever has become of its files
};

// A line for the log about something in a folder that an operator should know.
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
inline constexpr char kModelNames[] = "1 to 64 of a-z 0-9 _ . -, the first a letter or digit";

// The models that a server is started with. INVALID_ARGUMENT: a name that is none, or that two models have; or a folder
// that has a name is that of versions, or of a model in the hub's cache. NOT_FOUND: it is none.
absl::Status CheckSources(const ModelSources& sources);

// Where the repository has a model of a name that a folder was given, it is left out. NOT_FOUND: the repository cannot
// be read. Any thread.
absl::StatusOr<FolderList> ListModels(const ModelSources& sources);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_MODELS_FOLDER_H_
