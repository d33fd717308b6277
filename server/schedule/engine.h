// The one thread that uses the backend, but for loans of its turns (queue.h). The engine takes work from the queue:
// jobs of the loader, passes layer by layer and generations step by step, in the order that the scheduler gives, and
// ends every request exactly once. Between steps it looks at deadlines, cancellation and shutdown; cancellation also
// ends work inside a layer (Ticket::stopping).
#ifndef EDGEWISE_SERVER_SCHEDULE_ENGINE_H_
#define EDGEWISE_SERVER_SCHEDULE_ENGINE_H_

#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "kernels/backend.h"
#include "server/base/options.h"
#include "server/schedule/finisher.h"
#include "server/schedule/generations.h"
#include "server/schedule/passes.h"
#include "server/schedule/queue.h"

namespace edgewise::server {

class Engine {
 public:
  // `queue` and `device` must outlive the engine. `on_lost` is called once, on the engine's thread, after the step in
  // which the device was lost (Backend::lost).
  Engine(RequestQueue& queue, const ServerOptions& options, const Backend* device = nullptr,
         std::function<void()> on_lost = nullptr)
      : queue_(queue),
        passes_(queue, finisher_, options.max_step),
        background_(queue, finisher_, options.max_step),
        generations_(queue, options),
        device_(device),
        on_lost_(std::move(on_lost)) {}
  // The queue must be closed. Waits for the work that is left.
  ~Engine() { Join(); }

  // Runs RunOnce on a thread of its own until the queue is closed and nothing is left. Where the process has more than
  // one core, a second thread ends the requests of passes. `lends`: threads that push may have loans (queue.h).
  void Start(bool lends = false);
  // When it returns every request has ended.
  void Join();

  // Does what is next, a job or a turn, and returns the turn, which may be kNothing; no value: the queue is closed and
  // nothing is left. With `wait` it waits where there is nothing to do. For tests that use no thread: call this or
  // Start, not both.
  std::optional<Turn> RunOnce(bool wait);

 private:
  // Takes the turns of a loan on this thread: until its request has ended, other work comes, or
  // RequestQueue::kLoanSeconds are over. The engine does what is left.
  void RunLent();

  RequestQueue& queue_;
  Finisher finisher_;
  // Used by one thread at a time, all three: by thread_, or by one that has a loan.
  Passes passes_;
  Passes background_;  // at most one, which takes a step where there is nothing else to do
  Generations generations_;
  const Backend* const device_;
  std::function<void()> on_lost_;  // null once it was called
  std::thread thread_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_SCHEDULE_ENGINE_H_
