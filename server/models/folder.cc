#include "server/models/folder.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/field_error.h"

namespace edgewise::server {
namespace {

namespace fs = std::filesystem;

bool IsLetterOrDigit(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

// 1, 2, ...: no sign, no leading zero. 0: not a version.
int64_t ParseVersion(const std::string& text) {
  int64_t version = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  if (error != std::errc() || end != text.data() + text.size() || version <= 0 || text[0] == '0') return 0;
  return version;
}

// Folders in `parent`, by name, but for those of tools and file systems (.git, ..data, lost+found). A link that leads
// nowhere counts: whoever reads the folder says what is wrong.
std::vector<fs::path> Folders(const fs::path& parent, std::error_code& error) {
  std::vector<fs::path> folders;
  for (fs::directory_iterator it(parent, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name[0] == '.' || name == "lost+found") continue;
    std::error_code entry_error, ignored;
    const fs::file_type type = it->status(entry_error).type();
    const bool nothing = type == fs::file_type::none || type == fs::file_type::not_found;
    if (type == fs::file_type::directory || (nothing && it->is_symlink(ignored))) {
      folders.push_back(it->path());
    } else if (type == fs::file_type::none) {
      error = entry_error;
      break;
    }
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

bool HoldsModelFiles(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / "config.json", ignored) || fs::exists(folder / "model.safetensors", ignored);
}

// The folder of model files at `path`: itself, its highest version, or a snapshot, where it is a model of the hub's
// cache. Empty: none.
fs::path ModelFilesAt(const fs::path& path) {
  if (HoldsModelFiles(path)) return path;
  std::error_code ignored;
  fs::path found;
  for (const fs::path& version : Folders(path, ignored)) {
    const auto number = [](const fs::path& folder) { return ParseVersion(folder.filename().string()); };
    if (number(version) > number(found) && HoldsModelFiles(version)) found = version;
  }
  if (!found.empty()) return found;
  std::string revision;  // that the hub's name "main" stands for
  std::ifstream(path / "refs" / "main") >> revision;
  for (const fs::path& snapshot : Folders(path / "snapshots", ignored)) {
    if (!HoldsModelFiles(snapshot)) continue;
    found = snapshot;
    if (snapshot.filename() == revision) break;
  }
  return found;
}

// A model name like that of a folder: in lower case, a "-" for other characters. For a model in the hub's cache it
// leaves out the owner, also where the folder is a snapshot of it.
std::string ProposedName(fs::path folder) {
  if (folder.parent_path().filename() == "snapshots") folder = folder.parent_path().parent_path();
  const std::string whole = folder.filename().string();
  const size_t owner = whole.rfind("--");
  std::string name;
  for (const char c : whole.substr(owner == std::string::npos ? 0 : owner + 2)) {
    const char lower = absl::ascii_tolower(static_cast<unsigned char>(c));
    const bool allowed = IsLetterOrDigit(lower) || lower == '_' || lower == '.' || lower == '-';
    if (name.empty() && !IsLetterOrDigit(lower)) continue;
    if (allowed || name.back() != '-') name += allowed ? lower : '-';
  }
  name.resize(std::min<size_t>(name.size(), 64));
  return name.empty() ? "model" : name;
}

// The flag that serves the model files in `folder` where they are.
std::string FlagFor(const fs::path& folder, const std::string& name) {
  return absl::StrCat("--model=", name, "=", folder.string());
}

Remark Ignored(const std::string& entry, const std::string& reason) {
  return {LogLevel::kWarning, "repository entry ignored", {"entry", entry}, {"reason", reason}};
}

Remark NotAName(const fs::path& path) {
  const std::string proposed = ProposedName(path);
  const fs::path files = ModelFilesAt(path);
  return Ignored(path.filename().string(),
                 absl::StrCat("not a model name, which is ", kModelNames, "; rename it, such as to ", proposed,
                              files.empty() ? "" : ", or give " + FlagFor(files, proposed)));
}

// The remedy for a folder of the repository that has no version.
std::string RemedyForEntry(const fs::path& path) {
  const std::string name = path.filename().string();
  const fs::path files = ModelFilesAt(path);
  if (files.empty()) return absl::StrCat("put config.json and model.safetensors into ", name, "/1/");
  if (files != path) return absl::StrCat("this is a model of a hub's cache: give ", FlagFor(files, ProposedName(path)));
  if (ParseVersion(name) > 0) return absl::StrCat("a version lies in the folder of its model: MODEL/", name, "/");
  return absl::StrCat("put ", name, "/config.json and model.safetensors into ", name, "/1/, or give ",
                      FlagFor(files, name));
}

// The remedy for a repository without any version.
std::string RemedyForRepository(const std::string& repository) {
  const fs::path folder = fs::absolute(repository).lexically_normal();
  const fs::path path = folder.has_filename() ? folder : folder.parent_path();
  const fs::path files = ModelFilesAt(path);
  if (files.empty()) return "a model is <name>/<version>/config.json and model.safetensors, such as bert/1/config.json";
  const std::string name = path.filename().string();
  if (files == path && ParseVersion(name) > 0) {
    const fs::path parent = path.parent_path();
    return absl::StrCat("this is a version of a model: give the folder above ", parent.filename().string(), ", or ",
                        FlagFor(files, ProposedName(parent)));
  }
  const std::string flag = FlagFor(files, ProposedName(path));
  if (files == path) {
    return absl::StrCat("this is a model: give ", flag, ", or put it into ", name, "/1/ and give the folder above ",
                        name);
  }
  return absl::StrCat("this is a model: give ", files.parent_path() == path ? "the folder above " + name + ", or " : "",
                      flag);
}

// The versions of a model of the repository.
void ListVersions(const fs::path& path, FolderList& list) {
  const std::string name = path.filename().string();
  std::error_code error, ignored;
  const bool cached = fs::exists(path / "snapshots", ignored);  // a model of the hub's cache
  const size_t before = list.versions.size();
  for (const fs::path& folder : Folders(path, error)) {
    const int64_t version = ParseVersion(folder.filename().string());
    if (version > 0) {
      list.versions.push_back({name, version, folder.string()});
    } else if (!cached) {
      list.remarks.push_back(Ignored(name + "/" + folder.filename().string(), "not a version number"));
    }
  }
  if (error) {
    list.unreadable.insert(name);
    list.remarks.push_back({LogLevel::kError, "model folder not read", {"model", name}, {"error", error.message()}});
  } else if (list.versions.size() == before) {
    list.remarks.push_back(
        {LogLevel::kWarning, "model without a version", {"entry", name}, {"remedy", RemedyForEntry(path)}});
  }
}

// `named`: models that the repository cannot have beside.
absl::Status ListRepository(const std::string& repository, const std::set<std::string>& named, FolderList& list) {
  std::error_code error;
  const std::vector<fs::path> models = Folders(repository, error);
  if (error) return absl::NotFoundError(absl::StrCat("model repository ", repository, ": ", error.message()));
  const size_t before = list.versions.size(), unreadable = list.unreadable.size();
  for (const fs::path& path : models) {
    const std::string name = path.filename().string();
    if (!IsModelName(name)) {
      list.remarks.push_back(NotAName(path));
    } else if (named.contains(name)) {
      list.remarks.push_back(Ignored(name, "--model has a model of that name"));
    } else {
      ListVersions(path, list);
    }
  }
  if (list.versions.size() == before && list.unreadable.size() == unreadable) {
    list.remarks.push_back({LogLevel::kWarning,
                            "repository without a model",
                            {"repository", repository},
                            {"remedy", RemedyForRepository(repository)}});
  }
  return absl::OkStatus();
}

}  // namespace

bool IsModelName(const std::string& name) {
  if (name.empty() || name.size() > 64) return false;
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (!IsLetterOrDigit(c) && (i == 0 || (c != '_' && c != '.' && c != '-'))) return false;
  }
  return true;
}

absl::Status CheckSources(const ModelSources& sources) {
  std::set<std::string> named;
  for (const auto& [name, directory] : sources.models) {
    const std::string flag = absl::StrCat("--model=", name, "=", directory, ": ");
    if (!IsModelName(name)) {
      return absl::InvalidArgumentError(absl::StrCat(flag, Quoted(name), " is not a model name, which is ", kModelNames,
                                                     "; such as ", FlagFor(directory, ProposedName(name))));
    }
    if (!named.insert(name).second) {
      return absl::InvalidArgumentError(absl::StrCat(flag, "another --model has that name too; each needs its own"));
    }
    std::error_code error;
    const fs::file_status status = fs::status(directory, error);
    if (status.type() != fs::file_type::directory) {
      return absl::NotFoundError(absl::StrCat(flag, error ? error.message() : "is not a folder",
                                              "; give the folder that has the model's config.json"));
    }
    const fs::path files = ModelFilesAt(directory);
    if (files.empty() || files == directory) continue;  // empty: they may come
    return absl::InvalidArgumentError(absl::StrCat(flag, "the model's files lie below; give ", FlagFor(files, name)));
  }
  std::error_code ignored;
  for (const fs::path& path : Folders(sources.repository, ignored)) {
    const std::string name = path.filename().string();
    if (!named.contains(name)) continue;
    return absl::InvalidArgumentError(absl::StrCat("--model=", name, ": the repository ", sources.repository,
                                                   " has a model of that name too; give it another name"));
  }
  return absl::OkStatus();
}

absl::StatusOr<FolderList> ListModels(const ModelSources& sources) {
  FolderList list;
  std::set<std::string> named;
  for (const auto& [name, directory] : sources.models) {
    named.insert(name);
    std::error_code error;
    if (fs::is_directory(directory, error)) {
      list.versions.push_back({name, 1, directory});
    } else {
      list.unreadable.insert(name);
      const std::string reason = error ? error.message() : "not a folder";
      list.remarks.push_back({LogLevel::kError, "model folder not read", {"model", name}, {"error", reason}});
    }
  }
  if (!sources.repository.empty()) {
    const absl::Status status = ListRepository(sources.repository, named, list);
    if (!status.ok()) return status;
  }
  return list;
}

}  // namespace edgewise::server
