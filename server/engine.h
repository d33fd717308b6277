// The one thread that uses the backend: it takes work from the queue, loads models, runs batches layer by layer and
// generations step by step, and answers every task exactly once. Between layers it looks at deadlines, cancellation and
// shutdown, and gives every generation a step.
#ifndef EDGEWISE_SERVER_ENGINE_H_
#define EDGEWISE_SERVER_ENGINE_H_

#include <thread>
#include <vector>

#include "server/generations.h"
#include "server/queue.h"

namespace edgewise::server {

class Engine {
 public:
  // `queue` must outlive the engine.
  Engine(TaskQueue& queue, size_t max_generations, uint64_t max_cache_bytes)
      : queue_(queue), generations_(queue, max_generations, max_cache_bytes) {}
  // The queue must be closed: waits for the work that is left.
  ~Engine() { Join(); }

  void Start();
  void Join();

 private:
  void Run();
  void RunBatch(std::vector<TaskPtr> batch);
  // Between the layers of a batch: starts generations that wait, and gives all their step.
  void StepGenerations();

  TaskQueue& queue_;
  Generations generations_;  // used by thread_ only
  std::thread thread_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_ENGINE_H_
