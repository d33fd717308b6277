// The one thread that uses the backend. The engine takes work from the queue, loads models, runs Predict requests layer
// by layer and generations step by step, and ends every request exactly once. Between layers it checks deadlines,
// cancellation and shutdown; cancellation also ends work inside a layer (Request::stopping). A Predict request and the
// generations that compete with it get the device by turns, for equal times.
#ifndef EDGEWISE_SERVER_SCHEDULE_ENGINE_H_
#define EDGEWISE_SERVER_SCHEDULE_ENGINE_H_

#include <functional>
#include <thread>
#include <utility>

#include "server/schedule/generations.h"
#include "server/schedule/queue.h"

namespace edgewise {
class Pass;
}

namespace edgewise::server {

class Engine {
 public:
  // `queue` must outlive the engine. `after_work` is called on the engine's thread after each job, request or step.
  Engine(RequestQueue& queue, size_t max_generations, uint64_t max_cache_bytes, Clock::duration unread_timeout,
         std::function<void()> after_work)
      : queue_(queue),
        generations_(queue, max_generations, max_cache_bytes, unread_timeout),
        after_work_(std::move(after_work)) {}
  // The queue must be closed. Waits for the work that is left.
  ~Engine() { Join(); }

  void Start();
  void Join();

 private:
  void Run();
  // Computes a Predict request and ends it.
  void RunPredict(Request& request);
  // Runs the layers of its pass, until a deadline, a cancellation, a shutdown or a failure.
  absl::Status RunLayers(Pass& pass, Request& request);
  // After a layer that took `seconds`: starts waiting generations and gives generations as much time.
  void ShareWithGenerations(double seconds);

  RequestQueue& queue_;
  // Used by thread_ only, both.
  Generations generations_;
  double generation_seconds_ = 0.0;  // that generations may take before the next layer; < 0: they took more than that
  const std::function<void()> after_work_;
  std::thread thread_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_SCHEDULE_ENGINE_H_
