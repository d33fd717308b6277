#include "server/http/turns.h"

#include <chrono>
#include <utility>

namespace edgewise::server {
namespace {

// Then the thread reads what has come in the meantime: the next request of another principal may be among it.
constexpr std::chrono::microseconds kSlice{200};

}  // namespace

void Turns::Start(const std::string& principal, Work work) {
  {
    const absl::MutexLock lock(&mutex_);
    const Lines::iterator line = lines_.try_emplace(principal).first;
    if (line->second.empty()) turns_.push_back(line);
    line->second.push_back(std::move(work));
    if (running_ == most_) return;
    ++running_;
  }
  post_([this] { Run(); });
}

void Turns::Run() {
  const auto end = std::chrono::steady_clock::now() + kSlice;
  do {
    Work work = Next();
    if (!work) return;
    work();
  } while (std::chrono::steady_clock::now() < end);
  post_([this] { Run(); });
}

Turns::Work Turns::Next() {
  const absl::MutexLock lock(&mutex_);
  if (turns_.empty()) {
    --running_;
    return nullptr;
  }
  const Lines::iterator line = turns_.front();
  turns_.pop_front();
  Work work = std::move(line->second.front());
  line->second.pop_front();
  if (line->second.empty()) {
    lines_.erase(line);
  } else {
    turns_.push_back(line);
  }
  return work;
}

}  // namespace edgewise::server
