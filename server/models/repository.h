// The models of the sources, loaded, loading or failed.
//
// The name in a request is only used as the key of a map; paths come from the sources. A version that fails to load, or
// to load again, never replaces one that serves. A version is loaded again when a file that was read of it has changed,
// or one that was looked for has come: ModelFolder keeps the list.
#ifndef EDGEWISE_SERVER_MODELS_REPOSITORY_H_
#define EDGEWISE_SERVER_MODELS_REPOSITORY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "model/checkpoint/model_folder.h"
#include "model/load/load.h"
#include "model/load/reserve.h"
#include "model/model.h"
#include "server/models/folder.h"
#include "server/observe/metrics.h"

namespace edgewise::server {

// A version that is ready. Immutable; requests in flight share its ownership.
struct LoadedModel {
  std::string name;
  int64_t version = 0;
  // Shared with the objects of the same weights that have other profiles.
  std::shared_ptr<const Model> model;
  std::shared_ptr<LoadedMetrics> metrics;
  std::shared_ptr<CostModel> costs = std::make_shared<CostModel>();
  Profiles profiles;  // those of now; Model::config() has those of the time when the weights were read
  // Requested when the version has left the repository, or other weights have taken its place.
  std::stop_token leaving;
};

enum class ModelState { kLoading, kReady, kFailed, kDraining };

struct ModelStatus {
  std::string name;
  int64_t version = 0;
  ModelState state = ModelState::kLoading;
  std::string error;                          // of the load, or of the last reload of a version that serves
  std::shared_ptr<const LoadedModel> loaded;  // null unless it serves
};

// The version that a request names.
struct Resolved {
  absl::Status status;
  std::shared_ptr<const LoadedModel> loaded;  // when OK
  std::shared_ptr<ModelMetrics> metrics;      // never null: `_other` for a version that the repository lacks
};

// Why the repository is listed.
enum class Scanning {
  kAsked,  // versions that failed are tried again, and everything that is wrong is logged
  kPoll  // a version that failed is tried again when its files have changed; what was wrong before is not logged again
};

// Any thread, except where a method says otherwise.
class Repository {
 public:
  // `metrics` must outlive the repository. `limits`: the generations that memory is reserved for when a model
  // that generates is loaded. `warm_up`: seconds of the device (WarmUp).
  Repository(ModelSources sources, Metrics& metrics, GenerationLimits limits = {}, double warm_up = 0.0)
      : sources_(std::move(sources)), metrics_(metrics), limits_(limits), warm_up_(warm_up) {}

  // `listener` is called after every change of state, on the thread that made it, without a lock held. Call before use.
  void SetListener(std::function<void()> listener) { listener_ = std::move(listener); }

  // Lists the sources, forgets versions that are no longer there, and returns those that are to be loaded: new,
  // changed, or failed before. One that loads now and is one of these is returned too, one that was returned and has
  // not begun is not. Entries that are not models are logged and ignored. A model whose folder cannot be read is logged
  // and keeps its versions. A model or a repository without a version is logged, with the remedy. NOT_FOUND: the
  // repository itself cannot be read, which is logged for kPoll.
  absl::StatusOr<std::vector<LoadJob>> Scan(Scanning scanning = Scanning::kAsked);
  // Loads one version, which then takes the place of the one that serves under its number; does nothing where an
  // earlier call has seen the same files. Where the version that serves differs in profiles and limits alone, only
  // these are read. `use_backend`: as LoadModel. One thread at a time.
  void Load(const LoadJob& job, Backend& backend, const RunWork& use_backend = RunHere);

  // Version 0: the highest that is ready. INVALID_ARGUMENT: no name of a model, or a negative version, which counts for
  // the metrics of version 0. NOT_FOUND: not there. FAILED_PRECONDITION: it failed to load. UNAVAILABLE: it loads.
  Resolved Resolve(const std::string& name, int64_t version) const;
  // Those of Resolve for a version that the repository lacks.
  const std::shared_ptr<ModelMetrics>& unknown_metrics() const { return metrics_.other(); }
  std::vector<ModelStatus> List() const;  // by name, then version
  // Whether every version was loaded or failed at least once.
  bool settled() const;
  // Makes every loaded version DRAINING in List().
  void SetDraining();

 private:
  using Files = std::map<std::string, FileState>;  // ModelFolder::seen
  struct Entry {
    bool queued = false;                 // a job was returned and has not begun
    bool running = false;                // one has begun
    std::string error;                   // of the last one; empty: it went well, or none has ended
    std::shared_ptr<const Files> tried;  // what the last one saw; null: none has ended
    std::shared_ptr<const LoadedModel> loaded;
    std::shared_ptr<const Files> read;  // what was seen for `loaded`
    std::stop_source leaving;           // LoadedModel::leaving
    std::shared_ptr<ModelMetrics> metrics;

    ModelState state() const {
      return loaded ? ModelState::kReady : queued || running ? ModelState::kLoading : ModelState::kFailed;
    }
  };
  using Versions = std::map<int64_t, Entry>;

  void LogRemarks(const std::vector<Remark>& remarks, Scanning scanning) ABSL_EXCLUSIVE_LOCKS_REQUIRED(scanning_mutex_);
  // Forgets the versions that `list` lacks.
  void Forget(const FolderList& list) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null: the repository does not have the version any more.
  Entry* Find(const LoadJob& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the version is new, has other files than when it was tried, or failed and is to be tried again.
  bool IsDue(const LoadJob& job) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether there is still something to load.
  bool Begin(const LoadJob& job);
  absl::StatusOr<std::unique_ptr<Model>> LoadModel(ModelFolder& files, Backend& backend,
                                                   const RunWork& use_backend) const;
  // `serving`, which was read from the files `read`, with the profiles that config.json has now; null where anything
  // else has changed, or a file is wrong. Adds what it sees to `read`.
  static std::shared_ptr<LoadedModel> WithNewProfiles(const std::string& directory, const LoadedModel& serving,
                                                      Files& read);
  // All of a version but its metrics.
  absl::StatusOr<std::shared_ptr<LoadedModel>> LoadWhole(const LoadJob& job, ModelFolder& files, Backend& backend,
                                                         const RunWork& use_backend) const;
  // NOT_FOUND, with the names of known models.
  absl::Status UnknownModel(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // NOT_FOUND, with the versions that there are.
  static absl::Status UnknownVersion(const std::string& name, int64_t version, const Versions& versions);
  static absl::Status NotServing(const std::string& name, int64_t version, const Entry& entry);
  static Versions::const_iterator Latest(const Versions& versions);  // `versions` is not empty

  const ModelSources sources_;
  Metrics& metrics_;
  const GenerationLimits limits_;
  const double warm_up_;
  std::function<void()> listener_;
  absl::Mutex scanning_mutex_;
  std::set<Remark> remarked_ ABSL_GUARDED_BY(scanning_mutex_);  // by the last scan
  mutable absl::Mutex mutex_;
  std::map<std::string, Versions> models_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_MODELS_REPOSITORY_H_
