// The one thread that uses the backend. The engine takes work from the queue, loads models, runs batches layer by layer
// and generations step by step, and answers every task exactly once. Between layers it checks deadlines, cancellation
// and shutdown; cancellation also ends work inside a layer (Task::stopping). A batch and the generations that compete
// with it get the device by turns, for equal times.
#ifndef EDGEWISE_SERVER_SCHEDULE_ENGINE_H_
#define EDGEWISE_SERVER_SCHEDULE_ENGINE_H_

#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "server/schedule/generations.h"
#include "server/schedule/queue.h"

namespace edgewise {
class Pass;
}

namespace edgewise::server {

class Engine {
 public:
  // `queue` must outlive the engine. `after_work` is called on the engine's thread after each job, batch or step.
  Engine(TaskQueue& queue, size_t max_generations, uint64_t max_cache_bytes, Clock::duration unread_timeout,
         std::function<void()> after_work)
      : queue_(queue),
        generations_(queue, max_generations, max_cache_bytes, unread_timeout),
        after_work_(std::move(after_work)) {}
  // The queue must be closed. Waits for the work that is left.
  ~Engine() { Join(); }

  void Start();
  void Join();

 private:
  struct RunningBatch;

  void Run();
  void RunBatch(std::vector<TaskPtr> tasks);
  // Runs the layers of a batch. False: every task is answered, with an error.
  bool RunSteps(Pass& pass, RunningBatch& batch);
  // After a layer of a batch that took `seconds`: starts waiting generations and gives generations as much time.
  void ShareWithGenerations(double seconds);

  TaskQueue& queue_;
  // Used by thread_ only, both.
  Generations generations_;
  double generation_seconds_ = 0.0;  // that generations may take before the next layer; < 0: they took more than that
  const std::function<void()> after_work_;
  std::thread thread_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_SCHEDULE_ENGINE_H_
