#include "server/models/loader.h"

#include <pthread.h>
#include <sys/resource.h>

#include <optional>
#include <utility>

namespace edgewise::server {
namespace {

constexpr int kNice = 10;  // a tenth of the share of a thread that computes

}  // namespace

absl::StatusOr<size_t> Loader::Scan(Scanning scanning) {
  absl::StatusOr<std::vector<LoadJob>> found = repository_.Scan(scanning);
  if (!found.ok()) return found.status();
  const absl::MutexLock lock(&mutex_);
  for (LoadJob& job : *found) jobs_.push_back(std::move(job));
  return found->size();
}

absl::StatusOr<size_t> Loader::Scan() { return Scan(Scanning::kAsked); }

void Loader::Start() {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "loader");
    setpriority(PRIO_PROCESS, 0, kNice);  // on Linux: of this thread
    Run();
  });
}

void Loader::Stop() {
  {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void Loader::Run() {
  while (true) {
    std::optional<LoadJob> job;
    {
      const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !jobs_.empty(); };
      const absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&due), poll_);
      if (stopping_) return;
      if (!jobs_.empty()) {
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
    }
    if (job) {
      repository_.Load(*job, backend_, use_backend_);
    } else {
      (void)Scan(Scanning::kPoll);  // the repository has logged an error
    }
  }
}

}  // namespace edgewise::server
