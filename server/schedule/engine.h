// The one thread that uses the backend: it takes work from the queue, loads models, runs batches layer by layer and
// generations step by step, and answers every task exactly once. Between layers it looks at deadlines, cancellation and
// shutdown; a client that goes ends its work inside a layer too (Task::stopping). A batch and the generations that
// compete with it get the device for equal times, by turns.
#ifndef EDGEWISE_SERVER_SCHEDULE_ENGINE_H_
#define EDGEWISE_SERVER_SCHEDULE_ENGINE_H_

#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "server/schedule/generations.h"
#include "server/schedule/queue.h"

namespace edgewise::server {

class Engine {
 public:
  // `queue` must outlive the engine. `after_work` is called on the engine's thread after everything it does.
  Engine(TaskQueue& queue, size_t max_generations, uint64_t max_cache_bytes, Clock::duration unread_timeout,
         std::function<void()> after_work)
      : queue_(queue),
        generations_(queue, max_generations, max_cache_bytes, unread_timeout),
        after_work_(std::move(after_work)) {}
  // The queue must be closed: waits for the work that is left.
  ~Engine() { Join(); }

  void Start();
  void Join();

 private:
  void Run();
  void RunBatch(std::vector<TaskPtr> batch);
  // After a layer of a batch that took `seconds`: starts generations that wait, and gives them as much time.
  void ShareWithGenerations(double seconds);

  TaskQueue& queue_;
  Generations generations_;    // this and the next two are used by thread_ only
  double owed_seconds_ = 0.0;  // to the generations; < 0: their last step took more than was owed
  const std::function<void()> after_work_;
  std::thread thread_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_SCHEDULE_ENGINE_H_
