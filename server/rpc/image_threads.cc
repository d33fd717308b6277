#include "server/rpc/image_threads.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/status_details.h"

namespace edgewise::server {
namespace {

constexpr unsigned kCoresOfThread = 4, kMostThreads = 4;
constexpr int kNice = 5;  // behind the threads that compute and those of calls

}  // namespace

bool HasImages(const v1::PredictRequest& message) {
  return std::any_of(message.inputs().begin(), message.inputs().end(),
                     [](const v1::Input& input) { return input.sequence().has_image() || input.second().has_image(); });
}

unsigned ImageThreads::UsualThreads() {
  return std::clamp(std::thread::hardware_concurrency() / kCoresOfThread, 1u, kMostThreads);
}

ImageThreads::ImageThreads(RequestHandler& handler, size_t most, unsigned threads) : handler_(handler), most_(most) {
  for (unsigned thread = 0; thread < threads; ++thread) {
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
    if (waiting_.size() < most_) {
      waiting_.push_back(std::move(waiting));
      return;
    }
  }
  absl::Status full =
      absl::ResourceExhaustedError(absl::StrCat(most_, " requests wait for their images to be decoded"));
  SetRetryDelay(full, 1.0);
  Refuse(message, waiting->request, WithRejection(full, Rejection::kQueueFull));
}

void ImageThreads::Run() {
  while (true) {
    std::unique_ptr<Waiting> next;
    {
      const absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &ImageThreads::Due));
      if (waiting_.empty()) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
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
