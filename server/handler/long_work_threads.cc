#include "server/handler/long_work_threads.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/cores.h"
#include "server/base/status_details.h"

namespace edgewise::server {
namespace {

constexpr int kCoresOfOne = 4, kMostOfOne = 4;
constexpr int kNice = 5;  // behind the threads that compute and those of calls
constexpr double kRetrySeconds = 1.0;

}  // namespace

int LongWorkThreads::UsualOfOne() { return std::clamp(UsableCores() / kCoresOfOne, 1, kMostOfOne); }

void LongWorkThreads::Start(const std::string& principal, Work work) {
  {
    const absl::MutexLock lock(&mutex_);
    if (waiting_ < most_) return Add(principal, std::move(work));
    work = Displace(principal, std::move(work));
  }
  absl::Status full = absl::ResourceExhaustedError(absl::StrCat(most_, " long messages wait to be checked"));
  SetRetryDelay(full, kRetrySeconds);
  work(WithRejection(std::move(full), Rejection::kQueueFull));
}

int64_t LongWorkThreads::count() const {
  const absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(waiting_ + running_);
}

void LongWorkThreads::Stop() {
  std::vector<std::thread> threads;
  {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

LongWorkThreads::Turns::const_iterator LongWorkThreads::Next() const {
  return std::find_if(turns_.begin(), turns_.end(), [this](const std::string& name) {
    mutex_.AssertReaderHeld();
    return lines_.at(name).running < of_one_;
  });
}

void LongWorkThreads::Add(const std::string& principal, Work work) {
  Line& line = lines_[principal];
  if (line.waiting.empty()) turns_.push_back(principal);
  line.waiting.push_back(std::move(work));
  ++waiting_;
  // A thread that has just been made takes what comes next, where another is quicker.
  if (!stopping_ && threads_.size() < std::min(most_threads_, waiting_ + running_)) {
    threads_.emplace_back([this] { Run(); });
  }
}

LongWorkThreads::Work LongWorkThreads::Displace(const std::string& principal, Work work) {
  const auto own = lines_.find(principal);
  const size_t has = own == lines_.end() ? 0 : own->second.waiting.size();
  const auto most = std::max_element(lines_.begin(), lines_.end(), [](const auto& a, const auto& b) {
    return a.second.waiting.size() < b.second.waiting.size();
  });
  if (most == lines_.end() || most->second.waiting.size() < has + 2) return work;
  Work newest = std::move(most->second.waiting.back());
  most->second.waiting.pop_back();  // it has others
  --waiting_;
  Add(principal, std::move(work));
  return newest;
}

void LongWorkThreads::Run() {
  pthread_setname_np(pthread_self(), name_);
  setpriority(PRIO_PROCESS, 0, kNice);  // on Linux: of this thread
  while (true) {
    std::string principal;
    Work work;
    {
      const absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &LongWorkThreads::Due));
      const auto next = Next();
      if (next == turns_.end()) return;
      principal = *next;
      turns_.erase(next);
      Line& line = lines_[principal];
      work = std::move(line.waiting.front());
      line.waiting.pop_front();
      if (!line.waiting.empty()) turns_.push_back(principal);
      ++line.running;
      --waiting_;
      ++running_;
    }
    work(absl::OkStatus());
    work = nullptr;
    const absl::MutexLock lock(&mutex_);
    Line& line = lines_[principal];
    --running_;
    if (--line.running == 0 && line.waiting.empty()) lines_.erase(principal);
  }
}

}  // namespace edgewise::server
