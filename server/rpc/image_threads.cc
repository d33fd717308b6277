#include "server/rpc/image_threads.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cores.h"
#include "server/status_details.h"

namespace edgewise::server {
namespace {

constexpr int kCoresOfThread = 4, kMostThreads = 4;
constexpr int kNice = 5;  // behind the threads that compute and those of calls

}  // namespace

bool HasImages(const v1::PredictRequest& message) {
  return std::any_of(message.inputs().begin(), message.inputs().end(),
                     [](const v1::Input& input) { return input.sequence().has_image() || input.second().has_image(); });
}

int ImageThreads::UsualThreads() { return std::clamp(UsableCores() / kCoresOfThread, 1, kMostThreads); }

ImageThreads::ImageThreads(RequestHandler& handler, size_t most, int threads) : handler_(handler), most_(most) {
  for (int thread = 0; thread < threads; ++thread) {
    threads_.emplace_back([this] {
      pthread_setname_np(pthread_self(), "images");
      setpriority(PRIO_PROCESS, 0, kNice);  // on Linux: of this thread
      Run();
    });
  }
}

ImageThreads::~ImageThreads() {
  {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void ImageThreads::Start(const v1::PredictRequest& message, MemoryHold memory, Request of_rpc) {
  of_rpc.arrival = handler_.now();
  auto waiting = std::make_unique<Waiting>(Waiting{message, std::move(memory), std::move(of_rpc)});
  {
    const absl::MutexLock lock(&mutex_);
    if (count_ < most_) return Add(std::move(waiting));
    waiting = Displace(std::move(waiting));
  }
  absl::Status full =
      absl::ResourceExhaustedError(absl::StrCat(most_, " requests wait for their images to be decoded"));
  SetRetryDelay(full, 1.0);
  Refuse(waiting->message, waiting->request, WithRejection(full, Rejection::kQueueFull));
}

void ImageThreads::Add(WaitingPtr request) {
  const std::string& principal = request->request.principal.name;
  std::deque<WaitingPtr>& own = waiting_[principal];
  if (own.empty()) turns_.push_back(principal);
  own.push_back(std::move(request));
  ++count_;
}

ImageThreads::WaitingPtr ImageThreads::TakeNext() {
  const auto own = waiting_.find(turns_.front());
  WaitingPtr next = std::move(own->second.front());
  own->second.pop_front();
  --count_;
  if (own->second.empty()) {
    waiting_.erase(own);
  } else {
    turns_.push_back(turns_.front());
  }
  turns_.pop_front();
  return next;
}

ImageThreads::WaitingPtr ImageThreads::Displace(WaitingPtr request) {
  const auto own = waiting_.find(request->request.principal.name);
  const size_t has = own == waiting_.end() ? 0 : own->second.size();
  const auto most = std::max_element(waiting_.begin(), waiting_.end(),
                                     [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  if (most == waiting_.end() || most->second.size() < has + 2) return request;
  WaitingPtr newest = std::move(most->second.back());
  most->second.pop_back();  // it has others
  --count_;
  Add(std::move(request));
  return newest;
}

void ImageThreads::Run() {
  while (true) {
    WaitingPtr next;
    {
      const absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &ImageThreads::Due));
      if (turns_.empty()) return;
      next = TakeNext();
    }
    const absl::Status waited_for = CancelledOrExpired(next->request, handler_.now());
    waited_for.ok() ? handler_.Start(next->message, std::move(next->request))
                    : Refuse(next->message, next->request, waited_for);
  }
}

void ImageThreads::Refuse(const v1::PredictRequest& message, const Request& request, const absl::Status& status) {
  handler_.CountUnadmitted(message, status);
  request.reply(status);
}

}  // namespace edgewise::server
