// The thread that brings models into the repository, one version after the other, while requests are served.
//
// It reads and checks a version at low priority, and brings the weights to the backend where the backend allows another
// thread to do so. Work that only the backend's own thread may do (a weight of a GPU, a layer of the self-test) runs
// there, piece by piece, between the steps of requests. The version replaces an older one once all of that has
// succeeded.
#ifndef EDGEWISE_SERVER_MODELS_LOADER_H_
#define EDGEWISE_SERVER_MODELS_LOADER_H_

#include <deque>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kernels/backend.h"
#include "model/load/load.h"
#include "server/models/repository.h"

namespace edgewise::server {

// Any thread may call any method.
class Loader {
 public:
  // `repository` and `backend` must outlive the loader. `use_backend` runs a piece of work on the backend's thread. The
  // loader looks into the repository every `poll`, and when it is asked; absl::InfiniteDuration(): only then.
  Loader(Repository& repository, Backend& backend, RunWork use_backend, absl::Duration poll)
      : repository_(repository), backend_(backend), use_backend_(std::move(use_backend)), poll_(poll) {}
  ~Loader() { Stop(); }

  // Looks into the repository now, and returns how many versions will be loaded. Errors: Repository::Scan.
  absl::StatusOr<size_t> Scan();
  void Start();
  // Waits for the version that loads; those behind it are not loaded any more. `use_backend` must work until then.
  void Stop();

 private:
  void Run();
  absl::StatusOr<size_t> Scan(Scanning scanning);

  Repository& repository_;
  Backend& backend_;
  const RunWork use_backend_;
  const absl::Duration poll_;
  absl::Mutex mutex_;
  std::deque<LoadJob> jobs_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_MODELS_LOADER_H_
