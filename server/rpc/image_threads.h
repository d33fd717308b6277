// Requests with images, apart from the threads of calls: decoding takes up to a second, and those threads serve every
// call of the server.
#ifndef EDGEWISE_SERVER_RPC_IMAGE_THREADS_H_
#define EDGEWISE_SERVER_RPC_IMAGE_THREADS_H_

#include <cstddef>
#include <deque>
#include <memory>
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
  static unsigned UsualThreads();

  // At most `most` requests wait. The handler must outlive this.
  ImageThreads(RequestHandler& handler, size_t most, unsigned threads = UsualThreads());
  // No request waits.
  ~ImageThreads();
  ImageThreads(const ImageThreads&) = delete;
  ImageThreads& operator=(const ImageThreads&) = delete;

  // Answers the message as RequestHandler::Start does, but on one of these threads, in order of arrival; it is copied.
  // `memory` holds it, until it is checked. RESOURCE_EXHAUSTED with RetryInfo goes to the reply where too many wait; a
  // request whose client is gone by its turn, or whose deadline has passed, is not decoded. Any thread.
  void Start(const v1::PredictRequest& message, MemoryHold memory, Request of_rpc);

 private:
  struct Waiting {
    v1::PredictRequest message;
    MemoryHold memory;
    Request request;
  };

  void Run();
  bool Due() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !waiting_.empty(); }
  // Answers without a check.
  void Refuse(const v1::PredictRequest& message, const Request& request, const absl::Status& status);

  RequestHandler& handler_;
  const size_t most_;
  absl::Mutex mutex_;
  std::deque<std::unique_ptr<Waiting>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_RPC_IMAGE_THREADS_H_
