#include "server/schedule/answers.h"

#include <pthread.h>

#include <utility>

namespace edgewise::server {

void Answers::Start() {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "answers");
    Run();
  });
}

void Answers::Stop() {
  if (!thread_.joinable()) return;
  {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void Answers::End(std::shared_ptr<Request> request, const absl::Status& status) {
  if (thread_.joinable() && !inline_) {
    const absl::MutexLock lock(&mutex_);
    if (waiting_.size() < kMostWaiting) {
      waiting_.push_back({std::move(request), status});
      return;
    }
  }
  request->done(status);
}

void Answers::Run() {
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
