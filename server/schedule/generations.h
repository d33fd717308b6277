// The generations that run, side by side, one step each in turn. A state machine without thread or lock: the engine
// drives it, between the layers of its batches too.
#ifndef EDGEWISE_SERVER_SCHEDULE_GENERATIONS_H_
#define EDGEWISE_SERVER_SCHEDULE_GENERATIONS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "model/forward/generation.h"
#include "server/schedule/queue.h"

namespace edgewise::server {

class Generations {
 public:
  // `queue` gives the time and says when to stop; it must outlive this.
  Generations(TaskQueue& queue, size_t max_generations, uint64_t max_cache_bytes, Clock::duration unread_timeout)
      : queue_(queue),
        max_generations_(max_generations),
        max_cache_bytes_(max_cache_bytes),
        unread_timeout_(unread_timeout) {}

  bool empty() const { return running_.empty(); }
  // Whether none of those that run can go on: their clients have not taken what was sent.
  bool stalled() const;
  GenerationRoom room() const;

  // Starts a task that fits into room(); answers it at once where the model refuses it.
  void Start(TaskPtr task);
  // Ends those that are cancelled, late or shut down, and those whose client has taken nothing for unread_timeout: they
  // keep others from running.
  void EndCancelled();
  // Takes one step, a layer of a prompt or a token, of the next in turn whose client keeps up; answers it if that was
  // its last. Prompts run one after the other, so that the rows of one are in memory. False: there is none.
  bool Step();

 private:
  struct Running {
    TaskPtr task;
    std::unique_ptr<Generation> generation;
    double queue_seconds = 0.0;
    double compute_seconds = 0.0;
    Time ready;  // when its client last kept up
  };

  // Takes a step; true: it goes on. None of these may be called with an entry of running_.
  bool Advance(Running& running);
  // Answers one that nobody waits for any more.
  void Cancel(Running& running, absl::Status why);
  void Answer(Running& running, absl::Status status, double cancelled_seconds = 0.0);

  TaskQueue& queue_;
  const size_t max_generations_;
  const uint64_t max_cache_bytes_;
  const Clock::duration unread_timeout_;
  uint64_t cache_bytes_ = 0;
  std::deque<Running> running_;  // the next in turn first
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_SCHEDULE_GENERATIONS_H_
