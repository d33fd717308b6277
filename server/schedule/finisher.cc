#include "server/schedule/finisher.h"

#include <pthread.h>

#include <utility>

namespace edgewise::server {

void Finisher::Start() {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "answers");
    Run();
  });
}

void Finisher::Stop() {
  if (!thread_.joinable()) return;
  {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void Finisher::End(std::shared_ptr<Request> request, const absl::Status& status) {
  if (thread_.joinable() && !inline_) {
    const absl::MutexLock lock(&mutex_);
    if (waiting_.size() < kMostWaiting) {
      waiting_.push_back({std::move(request), status});
      return;
    }
  }
  request->done(status);
}

void Finisher::Run() {
  const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !waiting_.empty(); };
  std::vector<Ended> ended;
  while (true) {
    {
      const absl::MutexLock lock(&mutex_, absl::Condition(&due));
      if (waiting_.empty()) return;
      ended.swap(waiting_);
    }
    for (const auto& [request, status] : ended) request->done(status);
    ended.clear();
  }
}

}  // namespace edgewise::server
