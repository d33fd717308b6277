#include "server/models/repository.h"

#include <sys/stat.h>

#include <charconv>
#include <filesystem>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "model/load.h"
#include "server/observe/log.h"
#include "server/request.h"
#include "server/status_details.h"
#include "text/did_you_mean.h"
#include "text/field_error.h"

namespace edgewise::server {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostNamesShown = 20;  // of models, to a client that asks for another

// 1, 2, ...: no sign, no leading zero. 0: not a version.
int64_t ParseVersion(const std::string& text) {
  int64_t version = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  if (error != std::errc() || end != text.data() + text.size() || version <= 0 || text[0] == '0') return 0;
  return version;
}

std::string Fingerprint(const std::string& directory) {
  std::string fingerprint;
  for (const char* file : {"/config.json", "/model.safetensors"}) {
    struct stat info {};
    if (lstat((directory + file).c_str(), &info) != 0) {
      absl::StrAppend(&fingerprint, "missing;");
      continue;
    }
    absl::StrAppend(&fingerprint, info.st_ino, ":", info.st_size, ":", info.st_mtim.tv_sec, ".", info.st_mtim.tv_nsec,
                    ";");
  }
  return fingerprint;
}

// Folders in `parent`, symbolic links not followed. Others are reported once a scan.
std::vector<fs::path> Folders(const fs::path& parent, std::error_code& error) {
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
      Log(LogLevel::kWarning, "repository entry ignored",
          {{"entry", it->path().filename().string()}, {"reason", "a symbolic link"}});
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
  std::error_code ignored;
  if (HoldsModelFiles(path)) {
    return ParseVersion(name) > 0
               ? "this is a version of a model: give the folder above " + parent
               : absl::StrCat("this is a model: put it into ", name, "/1/ and give the folder above ", name);
  }
  for (const fs::path& entry : Folders(path, ignored)) {
    if (ParseVersion(entry.filename().string()) > 0 && HoldsModelFiles(entry)) {
      return absl::StrCat("this is a model: give the folder above ", name);
    }
  }
  return "a model is <name>/<version>/config.json and model.safetensors, such as bert/1/config.json";
}

std::string Named(const std::string& name, int64_t version) {
  return absl::StrCat("model \"", name, "\" version ", version);
}

// A model's name and a version as a request gives them.
absl::Status CheckNames(const std::string& name, int64_t version) {
  REFUSE_IF(name.empty(), "model", "is empty; give the name of a model (ListModels lists them)");
  REFUSE_IF(!IsModelName(name), "model", "is ", Quoted(name),
            "; allowed are 1 to 64 of a-z 0-9 _ . -, the first a letter or digit");
  REFUSE_IF(version < 0, "version", "is ", version, "; allowed are 0 (the latest) and more");
  return absl::OkStatus();
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

std::vector<LoadJob> Repository::ListFolder(absl::Status& status, std::set<std::string>& unreadable) const {
  std::vector<LoadJob> found;
  std::error_code error;
  const std::vector<fs::path> names = Folders(root_, error);
  if (error) {
    status = absl::NotFoundError(absl::StrCat("model repository ", root_, ": ", error.message()));
    return found;
  }
  for (const fs::path& path : names) {
    const std::string name = path.filename().string();
    if (!IsModelName(name)) {
      Log(LogLevel::kWarning, "repository entry ignored", {{"entry", name}, {"reason", "not a model name"}});
      continue;
    }
    std::error_code version_error;
    const size_t before = found.size();
    for (const fs::path& folder : Folders(path, version_error)) {
      const int64_t version = ParseVersion(folder.filename().string());
      if (version == 0) {
        Log(LogLevel::kWarning, "repository entry ignored",
            {{"entry", name + "/" + folder.filename().string()}, {"reason", "not a version number"}});
        continue;
      }
      found.push_back({name, version, folder.string(), Fingerprint(folder.string())});
    }
    if (version_error) {
      unreadable.insert(name);
      Log(LogLevel::kError, "model folder not read", {{"model", name}, {"error", version_error.message()}});
    } else if (found.size() == before) {
      Log(LogLevel::kWarning, "model without a version", {{"entry", name}, {"remedy", RemedyForEntry(path)}});
    }
  }
  if (found.empty() && unreadable.empty()) {
    Log(LogLevel::kWarning, "repository without a model",
        {{"repository", root_}, {"remedy", RemedyForRepository(root_)}});
  }
  return found;
}

absl::StatusOr<std::vector<LoadJob>> Repository::Scan() {
  absl::Status status;
  std::set<std::string> unreadable;
  std::vector<LoadJob> found = ListFolder(status, unreadable);
  if (!status.ok()) return status;
  std::vector<LoadJob> jobs;
  {
    const absl::MutexLock lock(&mutex_);
    std::set<std::pair<std::string, int64_t>> present;
    for (LoadJob& job : found) {
      present.insert({job.name, job.version});
      Entry& entry = models_[job.name][job.version];
      if (!entry.metrics) entry.metrics = &metrics_.ForModel(job.name, job.version);
      if (entry.fingerprint == job.fingerprint && entry.state != ModelState::kFailed) continue;
      entry.fingerprint = job.fingerprint;
      if (!entry.loaded) entry.state = ModelState::kLoading;
      jobs.push_back(std::move(job));
    }
    for (auto model = models_.begin(); model != models_.end();) {
      for (auto version = model->second.begin(); version != model->second.end();) {
        if (unreadable.count(model->first) || present.count({model->first, version->first})) {
          ++version;
          continue;
        }
        Log(LogLevel::kInfo, "model removed", {{"model", model->first}, {"version", version->first}});
        version->second.metrics->Removed();
        version = model->second.erase(version);
      }
      model = model->second.empty() ? models_.erase(model) : std::next(model);
    }
  }
  if (listener_) listener_();
  return jobs;
}

absl::StatusOr<std::unique_ptr<Model>> Repository::LoadModel(const std::string& directory, Backend& backend) const {
  absl::StatusOr<std::unique_ptr<Model>> model = edgewise::LoadModel(directory, backend);
  if (!model.ok()) return model;
  const absl::Status reserved = ReserveForGenerations(**model, limits_);
  if (reserved.ok()) return model;
  return absl::Status(reserved.code(), absl::StrCat("generations (--max_cache_bytes=", limits_.cache_bytes,
                                                    "): ", std::string(reserved.message())));
}

void Repository::Load(const LoadJob& job, Backend& backend) {
  const Time start = Clock::now();
  absl::StatusOr<std::unique_ptr<Model>> model = LoadModel(job.directory, backend);
  const double seconds = Seconds(Clock::now() - start);
  ModelMetrics& metrics = metrics_.ForModel(job.name, job.version);
  std::shared_ptr<const LoadedModel> previous;  // freed after the lock
  std::string error;
  {
    const absl::MutexLock lock(&mutex_);
    const MetricsEvent event = metrics.Event();
    metrics.CountLoad(event, model.ok(), seconds);
    const auto versions = models_.find(job.name);
    if (versions == models_.end() || !versions->second.count(job.version)) return;  // removed meanwhile
    Entry& entry = versions->second[job.version];
    if (model.ok()) {
      auto loaded = std::make_shared<LoadedModel>();
      loaded->name = job.name;
      loaded->version = job.version;
      loaded->metrics = metrics.Loaded(event, **model);
      loaded->model = *std::move(model);
      previous = std::exchange(entry.loaded, std::move(loaded));
      entry.state = ModelState::kReady;
      entry.error.clear();
    } else {
      // Clients read this: no paths.
      error = absl::StrReplaceAll(std::string(model.status().message()), {{job.directory + "/", ""}, {root_, ""}});
      entry.error = error;
      if (entry.loaded) {
        entry.fingerprint.clear();  // the next scan tries again
      } else {
        entry.state = ModelState::kFailed;
      }
    }
  }
  if (error.empty()) {
    Log(LogLevel::kInfo, "model loaded", {{"model", job.name}, {"version", job.version}, {"seconds", seconds}});
  } else {
    Log(LogLevel::kError, "model failed to load", {{"model", job.name}, {"version", job.version}, {"error", error}});
  }
  if (listener_) listener_();
}

absl::Status Repository::UnknownModel(const std::string& name) const {
  std::set<std::string> names;
  for (const auto& [known, versions] : models_) names.insert(known);
  std::string hint = DidYouMean(name, names);
  if (hint.empty() && names.size() <= kMostNamesShown) {
    hint = names.empty() ? ", which is empty" : absl::StrCat("; it has ", absl::StrJoin(names, ", "));
  }
  return absl::NotFoundError(absl::StrCat("model \"", name, "\" is not in the repository", hint));
}

// Why a version that the repository has does not serve.
absl::Status Repository::NotServing(const std::string& name, int64_t version, const Entry& entry) {
  if (entry.state != ModelState::kLoading) {
    return absl::FailedPreconditionError(absl::StrCat(Named(name, version), " failed to load: ", entry.error));
  }
  absl::Status loading = absl::UnavailableError(absl::StrCat(Named(name, version), " is loading"));
  SetRetryDelay(loading, 1.0);
  return loading;
}

absl::Status Repository::UnknownVersion(const std::string& name, int64_t version, const Versions& versions) {
  auto show = [](std::string* text, const auto& known) { absl::StrAppend(text, known.first); };
  return absl::NotFoundError(
      absl::StrCat(Named(name, version), " is not in the repository; it has ", absl::StrJoin(versions, ", ", show)));
}

Resolved Repository::Resolve(const std::string& name, int64_t version) const {
  const absl::Status checked = CheckNames(name, version);
  const absl::MutexLock lock(&mutex_);
  const auto model = models_.find(name);
  if (model == models_.end()) return {checked.ok() ? UnknownModel(name) : checked, nullptr, &metrics_.other()};
  const Versions& versions = model->second;
  const auto found = version > 0 ? versions.find(version) : Latest(versions);
  if (found == versions.end()) return {UnknownVersion(name, version, versions), nullptr, &metrics_.other()};
  const Entry& entry = found->second;
  if (checked.ok() && entry.loaded) return {absl::OkStatus(), entry.loaded, entry.metrics};
  return {checked.ok() ? NotServing(name, found->first, entry) : checked, nullptr, entry.metrics};
}

// The highest version that is ready; else the highest that loads; else the highest, whose error is the answer.
Repository::Versions::const_iterator Repository::Latest(const Versions& versions) {
  const auto rank = [](const Entry& entry) { return entry.loaded ? 2 : entry.state == ModelState::kLoading ? 1 : 0; };
  auto latest = versions.begin();
  for (auto version = versions.begin(); version != versions.end(); ++version) {
    if (rank(version->second) >= rank(latest->second)) latest = version;
  }
  return latest;
}

std::vector<ModelStatus> Repository::List() const {
  const absl::MutexLock lock(&mutex_);
  std::vector<ModelStatus> list;
  for (const auto& [name, versions] : models_) {
    for (const auto& [version, entry] : versions) {
      const ModelState state = draining_ && entry.loaded ? ModelState::kDraining : entry.state;
      list.push_back({name, version, state, entry.error, entry.loaded});
    }
  }
  return list;
}

bool Repository::settled() const {
  const absl::MutexLock lock(&mutex_);
  for (const auto& [name, versions] : models_) {
    for (const auto& [version, entry] : versions) {
      if (entry.state == ModelState::kLoading) return false;
    }
  }
  return true;
}

void Repository::SetDraining() {
  const absl::MutexLock lock(&mutex_);
  draining_ = true;
}

}  // namespace edgewise::server
