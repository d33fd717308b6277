// Requests with images, apart from the threads of calls: decoding takes up to a second, and those threads serve every
// call of the server.
#ifndef EDGEWISE_SERVER_RPC_IMAGE_THREADS_H_
#define EDGEWISE_SERVER_RPC_IMAGE_THREADS_H_

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "edgewise/v1/inference.pb.h"
#include "server/calls/handler.h"
#include "server/memory.h"
#include "server/request.h"

namespace edgewise::server {

// Whether any input is an image.
bool HasImages(const v1::PredictRequest& message);

class ImageThreads {
 public:
  // One for four cores, up to four.
  static int UsualThreads();

  // At most `most` requests wait. The handler must outlive this.
  ImageThreads(RequestHandler& handler, size_t most, int threads = UsualThreads());
  // No request waits.
  ~ImageThreads();
  ImageThreads(const ImageThreads&) = delete;
  ImageThreads& operator=(const ImageThreads&) = delete;

  // Answers the message as RequestHandler::Start does, but on one of these threads; it is copied. Principals take
  // turns, a request each, those of one in order of arrival. `memory` holds the message, until it is checked. Where too
  // many wait, RESOURCE_EXHAUSTED with RetryInfo goes to the reply, or to that of the newest request of the principal
  // that has most, where it keeps as many as this one gets. A request whose client is gone by its turn, or whose
  // deadline has passed, is not decoded. Any thread.
  void Start(const v1::PredictRequest& message, MemoryHold memory, Request of_rpc);

 private:
  struct Waiting {
    v1::PredictRequest message;
    MemoryHold memory;
    Request request;
  };

  using WaitingPtr = std::unique_ptr<Waiting>;

  void Run();
  bool Due() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !turns_.empty(); }
  void Add(WaitingPtr request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  WaitingPtr TakeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The one that is refused now that `request` has come to a full line; it may be `request` itself.
  WaitingPtr Displace(WaitingPtr request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Answers without a check.
  void Refuse(const v1::PredictRequest& message, const Request& request, const absl::Status& status);

  RequestHandler& handler_;
  const size_t most_;
  absl::Mutex mutex_;
  // By the principal's name, the oldest first; none is empty.
  std::map<std::string, std::deque<WaitingPtr>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> turns_ ABSL_GUARDED_BY(mutex_);  // the names in `waiting_`, the next one first
  size_t count_ ABSL_GUARDED_BY(mutex_) = 0;               // of all that wait
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_RPC_IMAGE_THREADS_H_
