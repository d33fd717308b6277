// The one thread that uses the backend. The engine takes work from the queue: jobs of the loader, passes layer by layer
// and generations step by step, in the order that the scheduler gives, and ends every request exactly once. Between
// steps it looks at deadlines, cancellation and shutdown; cancellation also ends work inside a layer
// (Request::stopping).
#ifndef EDGEWISE_SERVER_SCHEDULE_ENGINE_H_
#define EDGEWISE_SERVER_SCHEDULE_ENGINE_H_

#include <functional>
#include <thread>
#include <utility>

#include "server/options.h"
#include "server/schedule/generations.h"
#include "server/schedule/passes.h"
#include "server/schedule/queue.h"

namespace edgewise::server {

class Engine {
 public:
  // `queue` must outlive the engine. `after_work` is called on the engine's thread after each job or step.
  Engine(RequestQueue& queue, const ServerOptions& options, std::function<void()> after_work)
      : queue_(queue),
        passes_(queue, options.max_step),
        generations_(queue, options.max_generations, options.limits.max_cache_bytes, options.unread_timeout),
        after_work_(std::move(after_work)) {}
  // The queue must be closed. Waits for the work that is left.
  ~Engine() { Join(); }

  void Start();
  void Join();

 private:
  void Run();

  RequestQueue& queue_;
  // Used by thread_ only, both.
  Passes passes_;
  Generations generations_;
  const std::function<void()> after_work_;
  std::thread thread_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_SCHEDULE_ENGINE_H_
