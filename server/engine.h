// The one thread that uses the backend: it takes work from the queue, loads models, runs batches layer by layer, and
// answers every task exactly once. Between layers it looks at deadlines, cancellation and shutdown.
#ifndef EDGEWISE_SERVER_ENGINE_H_
#define EDGEWISE_SERVER_ENGINE_H_

#include <thread>
#include <vector>

#include "server/queue.h"

namespace edgewise::server {

class Engine {
 public:
  // `queue` must outlive the engine.
  explicit Engine(TaskQueue& queue) : queue_(queue) {}
  // The queue must be closed: waits for the work that is left.
  ~Engine() { Join(); }

  void Start();
  void Join();

 private:
  void Run();
  void RunBatch(std::vector<TaskPtr> batch);

  TaskQueue& queue_;
  std::thread thread_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_ENGINE_H_
