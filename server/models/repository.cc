#include "server/models/repository.h"

#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/did_you_mean.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "model/kinds/kind.h"
#include "server/base/status_details.h"
#include "server/models/warm_up.h"
#include "server/observe/log.h"
#include "server/request/request.h"

namespace edgewise::server {
namespace {

constexpr size_t kMostNamesShown = 20;  // of models, to a client that asks for another

std::string Named(const std::string& name, int64_t version) {
  return absl::StrCat("model \"", name, "\" version ", version);
}

// Names of files and tensors come from files: their control characters are escaped.
std::string OneLine(const std::string& text) {
  std::string line;
  for (const char c : text) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      absl::StrAppend(&line, absl::CHexEscape(std::string(1, c)));
    } else {
      line += c;
    }
  }
  return line;
}

// A model's name and a version as a request gives them.
absl::Status CheckNames(const std::string& name, int64_t version) {
  REFUSE_IF(name.empty(), "model", "is empty; give the name of a model (ListModels lists them)");
  REFUSE_IF(!IsModelName(name), "model", "is ", Quoted(name), "; allowed are ", kModelNames);
  REFUSE_IF(version < 0, "version", "is ", version, "; allowed are 0 (the latest) and more");
  return absl::OkStatus();
}

// Why the chat template of a model is not served; empty: it is, or there is none.
std::string UnservedChat(const Model& model) {
  const absl::Status status = model.chat_template().status();
  return status.ok() || absl::IsNotFound(status) ? std::string() : std::string(status.message());
}

// Says what to do where a GPU has too little memory: `first`, or something else.
absl::Status WithAdvice(const absl::Status& status, const Backend& backend, const char* first) {
  if (!absl::IsResourceExhausted(status) || !backend.Memory().has_value()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), "; ", first, "serve fewer models, give --precision=bf16, or end ",
                                   "what else holds memory of this GPU (`nvidia-smi`)"));
}

}  // namespace

void Repository::LogRemarks(const std::vector<Remark>& remarks, Scanning scanning) {
  std::set<Remark> remarked(remarks.begin(), remarks.end());
  for (const Remark& remark : remarked) {
    if (scanning == Scanning::kPoll && remarked_.count(remark)) continue;
    Log(remark.level, remark.event,
        {{remark.subject.first.c_str(), remark.subject.second}, {remark.detail.first.c_str(), remark.detail.second}});
  }
  remarked_ = std::move(remarked);
}

absl::StatusOr<std::vector<LoadJob>> Repository::Scan(Scanning scanning) {
  std::vector<LoadJob> jobs;
  {
    const absl::MutexLock one_at_a_time(&scanning_mutex_);
    absl::StatusOr<FolderList> list = ListModels(sources_);
    if (!list.ok()) {
      const std::string error(list.status().message());
      if (scanning == Scanning::kPoll) {  // nobody asked who could be told
        LogRemarks({{LogLevel::kError, "repository not read", {"repository", sources_.repository}, {"error", error}}},
                   scanning);
      }
      return list.status();
    }
    LogRemarks(list->remarks, scanning);
    for (LoadJob job : list->versions) {
      job.again = scanning == Scanning::kAsked;
      if (IsDue(job)) jobs.push_back(std::move(job));
    }
    const absl::MutexLock lock(&mutex_);
    Forget(*list);
    std::erase_if(jobs, [this](const LoadJob& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      Entry& entry = models_[job.name][job.version];
      if (!entry.metrics) entry.metrics = metrics_.ForModel(job.name, job.version);
      return std::exchange(entry.queued, true);
    });
  }
  if (listener_) listener_();
  return jobs;
}

void Repository::Forget(const FolderList& list) {
  std::set<std::pair<std::string, int64_t>> present;
  for (const LoadJob& version : list.versions) present.insert({version.name, version.version});
  for (auto& [name, versions] : models_) {
    if (list.unreadable.count(name)) continue;
    std::erase_if(versions, [&, &name = name](const auto& version) {
      if (present.count({name, version.first})) return false;
      Log(LogLevel::kInfo, "model removed", {{"model", name}, {"version", version.first}});
      version.second.metrics->Removed();
      version.second.leaving.request_stop();
      return true;
    });
  }
  std::erase_if(models_, [](const auto& model) { return model.second.empty(); });
}

Repository::Entry* Repository::Find(const LoadJob& job) {
  const auto versions = models_.find(job.name);
  if (versions == models_.end()) return nullptr;
  const auto version = versions->second.find(job.version);
  return version == versions->second.end() ? nullptr : &version->second;
}

bool Repository::IsDue(const LoadJob& job) {
  std::shared_ptr<const Files> tried;
  {
    const absl::MutexLock lock(&mutex_);
    const Entry* entry = Find(job);
    if (entry == nullptr || (job.again && !entry->error.empty())) return true;
    tried = entry->tried;
  }
  return tried == nullptr || HasChanged(job.directory, *tried);  // without the lock, which requests wait for
}

bool Repository::Begin(const LoadJob& job) {
  {
    const absl::MutexLock lock(&mutex_);
    Entry* entry = Find(job);
    if (entry == nullptr) return false;
    entry->queued = false;
    entry->running = true;
  }
  if (IsDue(job)) return true;
  const absl::MutexLock lock(&mutex_);
  if (Entry* entry = Find(job)) entry->running = false;
  return false;
}

absl::StatusOr<std::unique_ptr<Model>> Repository::LoadModel(ModelFolder& files, Backend& backend,
                                                             const RunWork& use_backend) const {
  absl::StatusOr<std::unique_ptr<Model>> model = edgewise::LoadModel(files, backend, Kinds(), use_backend);
  if (!model.ok()) {
    if (StateOf(files.path()).there) return WithAdvice(model.status(), backend, "");
    return absl::NotFoundError("the folder of the version is a symbolic link that leads nowhere or in a circle");
  }
  if (HasChanged(files.path(), files.seen())) {
    return absl::InvalidArgumentError(
        "a file changed while the model was read; SIGHUP reads it again, --repository_mode=poll does by itself");
  }
  const RunWork& reserve = backend.PreparesBeside() ? RunHere : use_backend;
  const absl::Status reserved = reserve([&] { return ReserveForGenerations(**model, limits_); });
  if (reserved.ok()) return model;
  const absl::Status status(reserved.code(), absl::StrCat("generations (--max_cache_bytes=", limits_.cache_bytes,
                                                          "): ", std::string(reserved.message())));
  return WithAdvice(status, backend, "lower --max_cache_bytes or --max_generations, ");
}

absl::StatusOr<std::shared_ptr<LoadedModel>> Repository::LoadWhole(const LoadJob& job, ModelFolder& files,
                                                                   Backend& backend, const RunWork& use_backend) const {
  auto loaded = std::make_shared<LoadedModel>();
  loaded->name = job.name;
  loaded->version = job.version;
  ASSIGN_OR_RETURN(loaded->model, LoadModel(files, backend, use_backend));
  loaded->profiles = loaded->model->config().profiles;
  WarmUp(*loaded->model, warm_up_, use_backend, *loaded->costs);
  loaded->costs->Anchor();
  return loaded;
}

std::shared_ptr<LoadedModel> Repository::WithNewProfiles(const std::string& directory, const LoadedModel& serving,
                                                         Files& read) {
  read.erase("config.json");
  if (HasChanged(directory, read)) return nullptr;
  ModelFolder files(directory);
  absl::StatusOr<ModelConfig> config = LoadConfig(files);
  if (!config.ok() || config->others != serving.model->config().others) return nullptr;
  for (const auto& [name, state] : files.seen()) read[name] = state;
  if (HasChanged(directory, read)) return nullptr;
  auto loaded = std::make_shared<LoadedModel>(serving);
  loaded->profiles = std::move(config->profiles);
  return loaded;
}

void Repository::Load(const LoadJob& job, Backend& backend, const RunWork& use_backend) {
  if (!Begin(job)) {
    if (listener_) listener_();
    return;
  }
  const Time start = Clock::now();
  std::shared_ptr<const LoadedModel> serving;
  Files seen;
  {
    const absl::MutexLock lock(&mutex_);
    const Entry* entry = Find(job);
    if (entry != nullptr && entry->loaded) {
      serving = entry->loaded;
      seen = *entry->read;
    }
  }
  absl::StatusOr<std::shared_ptr<LoadedModel>> loaded =
      serving ? WithNewProfiles(job.directory, *serving, seen) : nullptr;
  const bool whole = *loaded == nullptr;
  if (whole) {
    ModelFolder files(job.directory);
    loaded = LoadWhole(job, files, backend, use_backend);
    seen = files.seen();
  }
  const double seconds = Seconds(Clock::now() - start);
  std::string skipped, skipped_fields;
  if (whole && loaded.ok()) {
    skipped = absl::StrJoin((*loaded)->model->skipped_tensors(), ", ");
    skipped_fields = absl::StrJoin((*loaded)->model->skipped_fields(), ", ");
  }
  const std::string chat = whole && loaded.ok() ? UnservedChat(*(*loaded)->model) : std::string();
  const std::string unread = whole && loaded.ok() ? (*loaded)->model->config().tokenizer.unread : std::string();
  std::shared_ptr<const LoadedModel> previous;  // freed after the lock
  std::string error;
  {
    const absl::MutexLock lock(&mutex_);
    Entry* entry = Find(job);
    if (entry == nullptr) return;  // removed meanwhile
    const MetricsEvent event = entry->metrics->Event();
    entry->metrics->CountLoad(event, loaded.ok(), seconds);
    entry->running = false;
    entry->tried = std::make_shared<const Files>(std::move(seen));
    if (loaded.ok()) {
      if (whole || !entry->loaded) {
        (*loaded)->metrics = entry->metrics->Loaded(event, *(*loaded)->model);
        std::exchange(entry->leaving, std::stop_source()).request_stop();
        (*loaded)->leaving = entry->leaving.get_token();
      }
      if ((*loaded)->profiles.shadow) (*loaded)->metrics->ExpectShadow(event);
      previous = std::exchange(entry->loaded, *std::move(loaded));
      entry->read = entry->tried;
      entry->error.clear();
    } else {
      error = entry->error = OneLine(std::string(loaded.status().message()));
    }
  }
  if (error.empty()) {
    Log(LogLevel::kInfo, whole ? "model loaded" : "profiles loaded",
        {{"model", job.name}, {"version", job.version}, {"seconds", seconds}});
    if (!skipped.empty()) {
      Log(LogLevel::kInfo, "tensors not read",
          {{"model", job.name}, {"version", job.version}, {"reason", "of other tasks"}, {"tensors", skipped}});
    }
    if (!skipped_fields.empty()) {
      Log(LogLevel::kInfo, "fields not read",
          {{"model", job.name},
           {"version", job.version},
           {"reason", "they make no difference to an answer"},
           {"fields", skipped_fields}});
    }
    if (!chat.empty()) {
      Log(LogLevel::kWarning, "chat template not served",
          {{"model", job.name}, {"version", job.version}, {"reason", chat}});
    }
    if (!unread.empty()) {
      Log(LogLevel::kWarning, "tokenizer not read",
          {{"model", job.name}, {"version", job.version}, {"reason", unread}});
    }
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
  if (entry.state() != ModelState::kLoading) {
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
  const absl::MutexLock lock(&mutex_);
  const auto model = models_.find(name);
  if (model == models_.end()) {
    const absl::Status checked = CheckNames(name, version);
    return {checked.ok() ? UnknownModel(name) : checked, nullptr, metrics_.other()};
  }
  const Versions& versions = model->second;
  const auto found = version > 0 ? versions.find(version) : Latest(versions);
  if (found == versions.end()) return {UnknownVersion(name, version, versions), nullptr, metrics_.other()};
  const Entry& entry = found->second;
  if (version < 0) return {CheckNames(name, version), nullptr, entry.metrics};
  if (!entry.loaded) return {NotServing(name, found->first, entry), nullptr, entry.metrics};
  return {absl::OkStatus(), entry.loaded, entry.metrics};
}

// The highest version that is ready; else the highest that loads; else the highest, whose error is the answer.
Repository::Versions::const_iterator Repository::Latest(const Versions& versions) {
  const auto rank = [](const Entry& entry) { return entry.loaded ? 2 : entry.state() == ModelState::kLoading ? 1 : 0; };
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
      const ModelState state = draining_ && entry.loaded ? ModelState::kDraining : entry.state();
      list.push_back({name, version, state, entry.error, entry.loaded});
    }
  }
  return list;
}

bool Repository::settled() const {
  const absl::MutexLock lock(&mutex_);
  for (const auto& [name, versions] : models_) {
    for (const auto& [version, entry] : versions) {
      if (entry.state() == ModelState::kLoading) return false;
    }
  }
  return true;
}

void Repository::SetDraining() {
  const absl::MutexLock lock(&mutex_);
  draining_ = true;
}

}  // namespace edgewise::server
