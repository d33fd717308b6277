#include "server/guard/open_rpcs.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace edgewise::server {

void OpenRpcs::AddStream(Drainable* stream) {
  const absl::MutexLock lock(&mutex_);
  streams_.insert(stream);
}

void OpenRpcs::RemoveStream(Drainable* stream) {
  const absl::MutexLock lock(&mutex_);
  streams_.erase(stream);
}

void OpenRpcs::DrainStreams() {
  const absl::MutexLock lock(&mutex_);
  for (Drainable* stream : streams_) stream->Drain();
}

int64_t OpenRpcs::streams() const {
  const absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(streams_.size());
}

void OpenRpcs::FinishAfterWrites(std::string peer, std::function<void()> finish) {
  {
    const absl::MutexLock lock(&endings_mutex_);
    if (waits_) {
      endings_.push_back({std::move(peer), std::move(finish)});
      return;
    }
  }
  finish();
}

void OpenRpcs::FinishWritten(const std::function<bool(const std::string& peer)>& has_all) {
  std::vector<Ending> written;
  {
    const absl::MutexLock lock(&endings_mutex_);
    const auto first =
        std::partition(endings_.begin(), endings_.end(), [&](const Ending& ending) { return !has_all(ending.peer); });
    written.assign(std::make_move_iterator(first), std::make_move_iterator(endings_.end()));
    endings_.erase(first, endings_.end());
  }
  for (const Ending& ending : written) ending.finish();
}

void OpenRpcs::FinishAll() {
  {
    const absl::MutexLock lock(&endings_mutex_);
    waits_ = false;
  }
  FinishWritten([](const std::string&) { return true; });
}

}  // namespace edgewise::server
